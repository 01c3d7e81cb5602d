"""`deferd key new`: a token for a caller, and the entry with its hash for the service's keys."""

from __future__ import annotations

import argparse
import json
import secrets
import sys

from deferd.api.auth.api_keys import KeysRefused, Scope, hash_of, parse_keys

TOKEN_BYTES = 32
TOKEN_PREFIX = "deferd_"  # noqa: S105 (by it people, and programs that look for secrets, see what the rest is)
_BOUNDS = {
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
EXAMPLES = """examples:
  deferd key new --name shop --scope put --scope cancel --topic 'orders.*' >> keys.toml
  deferd key new --name closer --scope pop --topic orders.close --requests-per-second 50 --burst 100

The entry goes to standard output and the token to standard error: it is shown this once, and only its hash is kept.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `deferd key new`."""
    parser.description, parser.epilog = "Make a key. See --keys-file of `deferd serve` for where it goes.", EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--name", required=True, help="what logs call it; no two keys may have the same")
    parser.add_argument(
        "--scope",
        required=True,
        action="append",
        choices=[scope.value for scope in Scope],
        dest="scopes",
        help="what it allows; may be given several times. admin allows everything",
    )
    parser.add_argument(
        "--topic",
        action="append",
        dest="topics",
        metavar="PATTERN",
        help="a topic that it is for, `*` stands for any characters; may be given several times. Default: all",
    )
    parser.add_argument("--requests-per-second", type=float, metavar="RATE", help="most requests in the long run")
    parser.add_argument("--burst", type=int, metavar="NUMBER", help="most requests at once. Default: those of a second")
    for name, about in _BOUNDS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="NUMBER", help=about)


def run(given: argparse.Namespace) -> int:
    """Print a new key and return 0; 2 when the service would not take it, with why on standard error."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    lines = [
        "[[key]]",
        f"name = {json.dumps(given.name)}",
        f"hash = {json.dumps(hash_of(token))}",
        f"scopes = {json.dumps(list(dict.fromkeys(given.scopes)))}",
        f"topics = {json.dumps(given.topics or ['*'])}",
    ]
    if given.requests_per_second is not None:
        lines.append(f"requests_per_second = {given.requests_per_second}")
    if given.burst is not None:
        lines.append(f"burst = {given.burst}")
    lines += [f"{name} = {getattr(given, name)}" for name in _BOUNDS if getattr(given, name) is not None]
    entry = "\n".join(lines) + "\n"
    try:
        parse_keys(entry)
    except KeysRefused as exc:
        sys.stderr.write(f"deferd: the key would be {exc}\n")
        return 2
    sys.stdout.write(f"\n{entry}")  # the empty line first: the file that it is appended to may not end in a newline
    sys.stdout.flush()
    sys.stderr.write(f"the token, shown this once: {token}\n")
    return 0
