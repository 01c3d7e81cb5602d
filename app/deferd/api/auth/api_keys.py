"""Bearer keys: what a key allows, how keys are written, and how the key of a token is found.

Keys are written as TOML, one table per key::

    [[key]]
    name = "shop"
    hash = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    scopes = ["put", "cancel"]     # of put, pop, cancel, read, admin; admin includes all others
    topics = ["orders.*"]          # `*` stands for any characters; default: all topics
    # Rate limit, in each server process; default: none.
    requests_per_second = 100
    burst = 200
    # Limits of what the key may have in the store, over all its topics together, dead and retained jobs included:
    max_jobs_total = 1000000
    max_bytes_total = 1000000000
    max_topics = 1000
    # Limits of single topics and jobs:
    max_jobs = 100000              # live jobs of a topic, over which the key may put no more there
    max_retain = 86400             # longest `retain` and `ttl` of its jobs, in seconds
    max_ttl = 86400                # (values that come from the topic's settings are not limited)
    max_dead_retain = 86400        # how long its dead jobs are kept at most, in seconds
    # Limits of requests:
    max_waiting_pops = 50          # waiting pops, in each server process
    max_body_bytes = 65536
    max_batch = 100                # jobs in one request
    max_depth = 10                 # nesting of a request's JSON

Only the hash of a token is kept. A token is 32 random bytes (made by `deferd key new`), so a plain SHA-256 is enough:
slow hashes protect what can be guessed, and 256 bits cannot. No error text here shows a value in place of a hash, since
somebody will paste a token there.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from deferd.contract import limits
from deferd.contract.scopes import Scope
from deferd.contract.topic_patterns import TopicPatterns, is_pattern

if TYPE_CHECKING:
    from deferd.contract.model import JobPolicy
    from deferd.engine.script_arguments import EncodedPut

KEYS_MAX = 1000
"""Most keys of one service: an unknown token is compared with all of them."""
RATE_MAX = 1_000_000
TOKEN_MAX_BYTES = 512
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")
_PATTERN = re.compile(rf"[A-Za-z0-9._:*-]{{1,{limits.TOPIC_LENGTH}}}")
_POSITION = re.compile(r"at (?:line \d+, column \d+|end of document)")


class KeysRefused(Exception):
    """The keys are invalid; the text says where, and shows nothing secret."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A rate limit: the average rate, and up to `burst` requests at once."""

    requests_per_second: float
    burst: int


def _bound(low: int, high: int, about: str) -> Any:
    return field(default=None, metadata={"low": low, "high": high, "about": about})


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a key, each with the range of its values; None: no limit beyond those of the service."""

    max_jobs: int | None = _bound(1, limits.MAX_JOBS_MAX, "most live jobs in one topic")
    max_jobs_total: int | None = _bound(
        1, limits.MAX_JOBS_MAX, "most jobs in all its topics together, including dead and retained ones"
    )
    max_bytes_total: int | None = _bound(1000, 1024**5, "most bytes in all its topics together")
    max_topics: int | None = _bound(1, 1_000_000, "most topics in use")
    max_retain: int | None = _bound(0, limits.RETAIN_MAX_S, "longest retain of its jobs, in seconds")
    max_ttl: int | None = _bound(1, limits.TTL_MAX_S, "longest ttl of its jobs, in seconds")
    max_dead_retain: int | None = _bound(0, limits.RETAIN_MAX_S, "how long its dead jobs are kept at most, in seconds")
    max_waiting_pops: int | None = _bound(0, 1_000_000, "most waiting pops, in each server process")
    max_body_bytes: int | None = _bound(0, 64 * 1024 * 1024, "largest request body")
    max_batch: int | None = _bound(1, limits.BATCH_MAX, "most jobs in one request")
    max_depth: int | None = _bound(1, limits.JSON_DEPTH_MAX, "deepest nesting of a request's JSON")


NO_BOUNDS = Bounds()
_BOUNDS = {one.name: one.metadata for one in fields(Bounds)}
_FIELDS = ("name", "hash", "scopes", "topics", "requests_per_second", "burst", *_BOUNDS)


@dataclass(frozen=True, slots=True)
class Key:
    """A key: its name (not secret), the SHA-256 of its token, and what it allows."""

    name: str
    digest: bytes = field(repr=False)
    scopes: frozenset[Scope]
    topics: TopicPatterns
    limit: Limit | None = None
    bounds: Bounds = NO_BOUNDS


class KeyRing:
    """Finds the keys of a service by their tokens."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.keys = tuple(keys)
        self._by_digest = {key.digest: key for key in keys}
        # Holds verified tokens only, so never more entries than keys; a reload makes a new ring.
        self._verified: dict[bytes, Key] = {}

    def find(self, token: bytes) -> Key | None:
        """The key whose token this is, or None.

        A new token is compared with every key, in constant time each and without stopping at a match, so the time
        reveals nothing about the keys.
        """
        if len(token) > TOKEN_MAX_BYTES:
            return None
        digest = hashlib.sha256(token).digest()
        found = self._verified.get(digest)
        if found is None:
            for key in self.keys:
                if hmac.compare_digest(key.digest, digest):
                    found = key
            if found is not None:
                self._verified[digest] = found
        return found

    def of_digest(self, digest: bytes) -> Key | None:
        """The key whose token has this SHA-256; None if it was revoked."""
        return self._by_digest.get(digest)


def hash_of(token: str) -> str:
    """The hash that is kept of a token."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def parse_keys(text: str) -> list[Key]:
    """Parse 1 to KEYS_MAX keys, no two with the same name or token.

    Raises:
        KeysRefused: the text is invalid.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as exc:  # also for numbers and nesting beyond Python's limits
        at = _POSITION.search(str(exc))
        raise KeysRefused("not valid TOML" + (f" ({at[0]})" if at else "")) from None  # it may quote a secret
    tables = document.get("key", [])
    if (
        document.keys() - {"key"}
        or not isinstance(tables, list)
        or not all(isinstance(table, dict) for table in tables)
    ):
        raise KeysRefused("invalid: it must consist of [[key]] tables only")
    if not 1 <= len(tables) <= KEYS_MAX:
        raise KeysRefused(f"invalid: it has {len(tables)} keys and must have 1 to {KEYS_MAX}")
    keys: list[Key] = []
    for number, table in enumerate(tables, 1):
        key = _key(table, number)
        for other in keys:
            if other.name == key.name:
                raise KeysRefused(f"invalid: two keys have the name {key.name!r}")
            if other.digest == key.digest:
                raise KeysRefused(f"invalid: the keys {other.name!r} and {key.name!r} have the same hash")
        keys.append(key)
    return keys


def _key(table: dict[str, Any], number: int) -> Key:
    name = table.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise KeysRefused(
            f"invalid: key {number}: `name` must be 1 to 64 of A-Z a-z 0-9 . _ : @ -, the first a letter or digit"
        )
    try:
        return Key(name, _digest(table), _scopes(table), _topics(table), _limit(table), _bounds(table))
    except KeysRefused as exc:
        raise KeysRefused(f"invalid: key {number} ({name}): {exc}") from None


def _digest(table: dict[str, Any]) -> bytes:
    if table.keys() - set(_FIELDS):
        raise KeysRefused(f"it has an unknown field; the fields are {', '.join(_FIELDS)}")
    value = table.get("hash")
    found = _HASH.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise KeysRefused("`hash` must be sha256: and 64 hexadecimal digits, as `deferd key new` prints it")
    return bytes.fromhex(found[1])


def _scopes(table: dict[str, Any]) -> frozenset[Scope]:
    value = table.get("scopes")
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(scope, str) and scope in set(Scope) for scope in value)
    ):
        raise KeysRefused(f"`scopes` must be a list of one or more of {', '.join(Scope)}")
    return frozenset(Scope) if Scope.ADMIN in value else frozenset(map(Scope, value))


def _topics(table: dict[str, Any]) -> TopicPatterns:
    value = table.get("topics", ["*"])
    if (
        not isinstance(value, list)
        or not value
        or not all(isinstance(pattern, str) and _PATTERN.fullmatch(pattern) for pattern in value)
    ):
        raise KeysRefused(
            f"`topics` must be a list of patterns, each 1 to {limits.TOPIC_LENGTH} of A-Z a-z 0-9 . _ : - and *"
        )
    return TopicPatterns(value)


def _limit(table: dict[str, Any]) -> Limit | None:
    rate, burst = table.get("requests_per_second"), table.get("burst")
    if rate is None:
        if burst is not None:
            raise KeysRefused("`burst` needs `requests_per_second`")
        return None
    if type(rate) not in (int, float) or not 0.001 <= rate <= RATE_MAX:
        raise KeysRefused(f"`requests_per_second` must be a number from 0.001 to {RATE_MAX}")
    if burst is None:
        burst = math.ceil(rate)
    if type(burst) is not int or not 1 <= burst <= RATE_MAX:
        raise KeysRefused(f"`burst` must be a whole number from 1 to {RATE_MAX}")
    return Limit(float(rate), burst)


def _bounds(table: dict[str, Any]) -> Bounds:
    for name, bound in _BOUNDS.items():
        value, low, high = table.get(name), bound["low"], bound["high"]
        if value is not None and (type(value) is not int or not low <= value <= high):
            raise KeysRefused(f"`{name}` must be a whole number from {low} to {high}")
    return Bounds(**{name: table[name] for name in _BOUNDS if name in table})


Arguments = Mapping[str, Any]


def topics_of_path(arguments: Arguments) -> Collection[str]:
    """The topics and patterns in the path: several for a pop, none where the path has no topic."""
    topics: str | None = arguments.get("topic")
    return () if topics is None else topics.split(",")


def no_topics(_arguments: Arguments) -> Collection[str]:
    return ()


def end_topics(jobs: Iterable[JobPolicy | EncodedPut]) -> set[str]:
    """The topics into which the ends of these jobs put jobs."""
    return {topic for job in jobs if (topic := job.end_topic) is not None}


@dataclass(frozen=True, slots=True)
class Recorded:
    """How the calls of an operation get into the list of changes, `GET /activity`.

    `via`: only calls that come this way, as `api.change_recording` tells them apart. `filter` is the argument that
    selects jobs. `joins`: one entry may stand for many calls of one caller, except in the console.
    """

    via: frozenset[str] = frozenset(("console", "cli", "api"))
    filter: str | None = None
    joins: bool = False


ALL_CALLS = Recorded()


@dataclass(frozen=True, slots=True)
class Permission:
    """The scope and topics that a key must have. `scope` None: the operation is public.

    `topics` gives the topics of a request from its bound arguments; with `all_topics` the key must match every topic
    there can be. `puts_into` gives topics for which the key needs the scope `put` as well, and `ends_into` those of
    `on_end`, for which it needs that too. `operation` names the operation in the audit log, which records its requests
    if `is_audited`. `recorded`: see Recorded; an operation whose row has `done` has it.
    """

    scope: Scope | None
    topics: Callable[[Arguments], Collection[str]] = topics_of_path
    all_topics: bool = False
    puts_into: Callable[[Arguments], Collection[str]] = no_topics
    ends_into: Callable[[Arguments], Collection[str]] = no_topics
    operation: str = ""
    is_audited: bool = False
    recorded: Recorded | None = None

    def denied_topic(self, key: Key, arguments: Arguments) -> str | None:
        """The first topic of a request that `key` does not match, `*` for all topics; None when it matches all.

        A pattern is denied when no topic can match both it and the key. Otherwise its topics that the key does not
        match are left out.
        """
        if key.topics.everything:
            return None
        if self.all_topics:
            return "*"
        return next((topic for topic in self.topics(arguments) if not admits(key, topic)), None)


def admits(key: Key, topic: str) -> bool:
    """Whether a key is for a topic; for a pattern, whether some topic can match both."""
    return bool(key.topics.overlapping(topic)) if is_pattern(topic) else key.topics.match(topic)
