"""`deferd key new`: make a token for a client, and the entry with its hash for the keys of the service."""

from __future__ import annotations

import argparse
import json
import secrets
import sys

from deferd.api.auth.api_keys import KeysRefused, Scope, hash_of, parse_keys

TOKEN_BYTES = 32
TOKEN_PREFIX = "deferd_"  # noqa: S105 (people and secret scanners recognize a token by it)
_BOUNDS = {
    "max_jobs": "most live jobs in one topic",
    "max_jobs_total": "most jobs in all its topics together, including dead and retained ones",
    "max_bytes_total": "most bytes in all its topics together",
    "max_topics": "most topics in use",
    "max_retain": "longest retain of its jobs, in seconds",
    "max_ttl": "longest ttl of its jobs, in seconds",
    "max_dead_retain": "how long its dead jobs are kept at most, in seconds",
    "max_parked_pops": "most waiting pops, in each server process",
    "max_body_bytes": "largest request body",
    "max_batch": "most jobs in one request",
    "max_depth": "deepest nesting of a request's JSON",
}
EXAMPLES = """examples:
  deferd key new --name shop --scope put --scope cancel --topic 'orders.*' >> keys.toml
  deferd key new --name closer --scope pop --topic orders.close --requests-per-second 50 --burst 100

The entry is written to standard output, the token to standard error. The token is shown only now; the service keeps
its hash.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of `deferd key new`."""
    parser.description, parser.epilog = "Make a key for the file that `deferd serve --keys-file` reads.", EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--name", required=True, help="its unique name, which logs show")
    parser.add_argument(
        "--scope",
        required=True,
        action="append",
        choices=[scope.value for scope in Scope],
        dest="scopes",
        help="what it allows; repeatable. admin allows everything",
    )
    parser.add_argument(
        "--topic",
        action="append",
        dest="topics",
        metavar="PATTERN",
        help="a topic that it is for; `*` stands for any characters; repeatable. Default: all topics",
    )
    parser.add_argument("--requests-per-second", type=float, metavar="RATE", help="its average request rate")
    parser.add_argument("--burst", type=int, metavar="NUMBER", help="most requests at once. Default: one second's")
    for name, text in _BOUNDS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="NUMBER", help=text)


def run(given: argparse.Namespace) -> int:
    """Print a new key and return 0; return 2, with the reason on standard error, when the key would be invalid."""
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
    sys.stdout.write(f"\n{entry}")  # the file it is appended to may not end in a newline
    sys.stdout.flush()
    sys.stderr.write(f"the token, shown this once: {token}\n")
    return 0
