"""Bearer keys: what a key may do, how keys are written down, and how the one that a token belongs to is found.

Keys are written as TOML, one table a key::

    [[key]]
    name = "shop"
    hash = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    scopes = ["put", "cancel"]     # of put, pop, cancel, read, admin; admin means all of them
    topics = ["orders.*"]          # `*` stands for any characters; all topics when left out
    requests_per_second = 100      # with `burst`: a limit, in each serving process; none when left out
    burst = 200
    max_jobs = 100000              # a put is refused while its topic holds so many live jobs
    max_jobs_total = 1000000       # all topics that the key is for together: jobs kept, dead and retained ones too,
    max_bytes_total = 1000000000   # their bytes,
    max_topics = 1000              # and topics in use
    max_retain = 86400             # longest `retain` and `ttl` of its jobs, in seconds
    max_ttl = 86400                # (what a job leaves out comes from its topic and is not bounded by these)
    max_dead_retain = 86400        # its dead jobs are kept for so many seconds at most
    max_parked_pops = 50           # pops that wait, in each serving process
    max_body_bytes = 65536         # largest request body
    max_batch = 100                # most jobs in one request
    max_depth = 10                 # deepest nesting of a request's JSON; no bound of these when left out

Only the hash of a token is kept. A token is 32 random bytes (`deferd key new` makes them), so a plain SHA-256 is
enough: slow hashes protect what people can guess, and nobody guesses 256 bits. Nothing here shows a value that stands
where a hash should, since somebody will paste a token there.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from deferd.contract import limits

KEYS_MAX = 1000
"""Most keys of one service: an unknown token is held against all of them."""
RATE_MAX = 1_000_000
TOKEN_MAX_BYTES = 512
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")
_PATTERN = re.compile(rf"[A-Za-z0-9._:*-]{{1,{limits.TOPIC_LENGTH}}}")
_BOUNDS = {
    "max_jobs": (1, limits.MAX_JOBS_MAX),
    "max_jobs_total": (1, limits.MAX_JOBS_MAX),
    "max_bytes_total": (1000, 1024**5),
    "max_topics": (1, 1_000_000),
    "max_retain": (0, limits.RETAIN_MAX_S),
    "max_ttl": (1, limits.TTL_MAX_S),
    "max_dead_retain": (0, limits.RETAIN_MAX_S),
    "max_parked_pops": (0, 1_000_000),
    "max_body_bytes": (0, 64 * 1024 * 1024),
    "max_batch": (1, limits.BATCH_MAX),
    "max_depth": (1, limits.JSON_DEPTH_MAX),
}
"""The least and the most that each bound of a key can be."""
_FIELDS = ("name", "hash", "scopes", "topics", "requests_per_second", "burst", *_BOUNDS)
_POSITION = re.compile(r"at (?:line \d+, column \d+|end of document)")


class Scope(StrEnum):
    """What a key lets its holder do."""

    PUT = "put"
    """Put jobs and change them."""
    POP = "pop"
    """Pop jobs and say what became of them."""
    CANCEL = "cancel"
    """Cancel jobs."""
    READ = "read"
    """Look at jobs, topics, metrics and the contract."""
    ADMIN = "admin"
    """Everything, and setting up, pausing, redriving and purging topics, which no other scope allows."""


class KeysRefused(Exception):
    """Keys cannot be used as they are written; the text says where, and shows nothing secret."""


class TopicPatterns:
    """Which topics a key is for; `*` in a pattern stands for any characters, or none."""

    __slots__ = ("_pieces", "everything")

    def __init__(self, patterns: Iterable[str]) -> None:
        self._pieces = [pattern.split("*") for pattern in patterns]
        self.everything = any(len(pieces) > 1 and not any(pieces) for pieces in self._pieces)

    @property
    def prefixes(self) -> list[str]:
        """What the topics of each pattern begin with, up to its first `*`."""
        return [pieces[0] for pieces in self._pieces]

    def match(self, topic: str) -> bool:
        """Whether one of the patterns is for `topic`. It takes no longer than reading the topic once a pattern."""
        return self.everything or any(_fits(pieces, topic) for pieces in self._pieces)


def _fits(pieces: Sequence[str], topic: str) -> bool:
    if len(pieces) == 1:
        return topic == pieces[0]
    first, *between, last = pieces
    at, end = len(first), len(topic) - len(last)
    if at > end or not topic.startswith(first) or not topic.endswith(last):
        return False
    for piece in between:  # the leftmost place is the best: it leaves most room for the pieces behind it
        found = topic.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


@dataclass(frozen=True, slots=True)
class Limit:
    """So many requests a second in the long run, and up to `burst` at once."""

    requests_per_second: float
    burst: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that a key may ask for at once; None: as much as anybody."""

    max_jobs: int | None = None
    max_jobs_total: int | None = None
    max_bytes_total: int | None = None
    max_topics: int | None = None
    max_retain: int | None = None
    max_ttl: int | None = None
    max_dead_retain: int | None = None
    max_parked_pops: int | None = None
    max_body_bytes: int | None = None
    max_batch: int | None = None
    max_depth: int | None = None


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Key:
    """A key: its name (which is no secret), its token's SHA-256, and what it allows."""

    name: str
    digest: bytes = field(repr=False)
    scopes: frozenset[Scope]
    topics: TopicPatterns
    limit: Limit | None = None
    bounds: Bounds = NO_BOUNDS


class KeyRing:
    """The keys of a service, found by their tokens."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.keys = tuple(keys)
        self._by_digest = {key.digest: key for key in keys}
        # Only tokens that were verified get in, so there are never more than keys; a reload makes a new ring.
        self._verified: dict[bytes, Key] = {}

    def find(self, token: bytes) -> Key | None:
        """The key whose token this is, or None.

        The first time a token comes its digest is held against that of every key, whichever fits, each comparison
        taking the same time: how long it takes tells nothing of the keys.
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

    def now(self, key: Key) -> Key | None:
        """What has become of a key of an earlier ring: the one that the same token belongs to here, or None."""
        return self._by_digest.get(key.digest)


def hash_of(token: str) -> str:
    """What is kept of a token."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def parse_keys(text: str) -> list[Key]:
    """The keys that `text` declares; at least one, at most KEYS_MAX, no two with the same name or token.

    Raises:
        KeysRefused: something in it is wrong.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as exc:  # also numbers and nesting beyond the limits of Python
        at = _POSITION.search(str(exc))
        raise KeysRefused("no valid TOML" + (f" ({at[0]})" if at else "")) from None  # it may quote what stands there
    tables = document.get("key", [])
    if document.keys() - {"key"} or not isinstance(tables, list) or not all(isinstance(it, dict) for it in tables):
        raise KeysRefused("not made of [[key]] tables alone")
    if not 1 <= len(tables) <= KEYS_MAX:
        raise KeysRefused(f"made of {len(tables)} keys, and must be of 1 to {KEYS_MAX}")
    keys: list[Key] = []
    for number, table in enumerate(tables, 1):
        key = _key(table, number)
        for other in keys:
            if other.name == key.name:
                raise KeysRefused(f"calling two keys {key.name!r}: a log tells keys by their names")
            if other.digest == key.digest:
                raise KeysRefused(f"giving the keys {other.name!r} and {key.name!r} the same hash")
        keys.append(key)
    return keys


def _key(table: dict[str, Any], number: int) -> Key:
    name = table.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise KeysRefused(
            f"wrong in key {number}: `name` must be 1 to 64 of A-Z a-z 0-9 . _ : @ -, the first a letter or digit"
        )
    try:
        return Key(name, _digest(table), _scopes(table), _topics(table), _limit(table), _bounds(table))
    except KeysRefused as exc:
        raise KeysRefused(f"wrong in key {number} ({name}): {exc}") from None


def _digest(table: dict[str, Any]) -> bytes:
    if table.keys() - set(_FIELDS):
        raise KeysRefused(f"it has a field that is none of {', '.join(_FIELDS)}")
    value = table.get("hash")
    found = _HASH.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise KeysRefused("`hash` must be sha256: and 64 hexadecimal digits, as `deferd key new` prints it")
    return bytes.fromhex(found[1])


def _scopes(table: dict[str, Any]) -> frozenset[Scope]:
    given = table.get("scopes")
    if not isinstance(given, list) or not given or not all(isinstance(one, str) and one in set(Scope) for one in given):
        raise KeysRefused(f"`scopes` must be a list of one or more of {', '.join(Scope)}")
    return frozenset(Scope) if Scope.ADMIN in given else frozenset(map(Scope, given))


def _topics(table: dict[str, Any]) -> TopicPatterns:
    given = table.get("topics", ["*"])
    if (
        not isinstance(given, list)
        or not given
        or not all(isinstance(one, str) and _PATTERN.fullmatch(one) for one in given)
    ):
        raise KeysRefused(
            f"`topics` must be a list of patterns, each 1 to {limits.TOPIC_LENGTH} of A-Z a-z 0-9 . _ : - and *"
        )
    return TopicPatterns(given)


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
    for name, (low, high) in _BOUNDS.items():
        given = table.get(name)
        if given is not None and (type(given) is not int or not low <= given <= high):
            raise KeysRefused(f"`{name}` must be a whole number from {low} to {high}")
    return Bounds(**{name: table[name] for name in _BOUNDS if name in table})
