"""`deferd key new`: make a token for a client, and the entry with its hash for the keys of the service."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import fields

from deferd.api.auth.api_keys import Bounds, hash_of, parse_keys

TOKEN_BYTES = 32
TOKEN_PREFIX = "deferd_"  # noqa: S105 (people and secret scanners recognize a token by it)
BOUNDS: dict[str, str] = {one.name: one.metadata["about"] for one in fields(Bounds)}


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
