"""`deferd key new`: a token for a caller, and the entry with its hash for the service's keys."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping

from deferd.api.auth.api_keys import hash_of, parse_keys

TOKEN_BYTES = 32
TOKEN_PREFIX = "deferd_"  # noqa: S105 (by it people, and programs that look for secrets, see what the rest is)
BOUNDS = {
    "max_jobs": "live jobs of a topic with which it may put no more there",
    "max_jobs_total": "jobs kept in all its topics together, dead and retained ones too, with which it may put no more",
    "max_bytes_total": "bytes kept in all its topics together with which it may put no more",
    "max_topics": "topics in use with which it may put into no other",
    "max_retain": "longest retain of its jobs, in seconds",
    "max_ttl": "longest ttl of its jobs, in seconds",
    "max_dead_retain": "for how many seconds its dead jobs are kept at most",
    "max_parked_pops": "most pops that wait, in each serving process",
    "max_body_bytes": "largest request body",
    "max_batch": "most jobs in one request",
    "max_depth": "deepest nesting of a request's JSON",
}


def make_key(
    name: str, scopes: Iterable[str], topics: Iterable[str], bounds: Mapping[str, float | None]
) -> tuple[str, str]:
    """Make a token, and the TOML entry with its hash. Without topics it is for all; a bound that is None is left out.

    Raises:
        KeysRefused: the service would refuse the entry.
    """
    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    lines = [
        "[[key]]",
        f"name = {json.dumps(name)}",
        f"hash = {json.dumps(hash_of(token))}",
        f"scopes = {json.dumps(list(dict.fromkeys(scopes)))}",
        f"topics = {json.dumps(list(topics) or ['*'])}",
        *(f"{bound} = {value}" for bound, value in bounds.items() if value is not None),
    ]
    entry = "\n".join(lines) + "\n"
    parse_keys(entry)
    return token, entry
