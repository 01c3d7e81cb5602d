"""Commands on topics: SCARD, KEYS, SCAN and DEL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import orjson
from starlette.responses import Response

from deferd.api.context import RequestContext
from deferd.api.resp import replies
from deferd.api.resp.options import whole_number
from deferd.api.resp.replies import CommandError, invalid, wrong_arity
from deferd.api.resp.session import Session, command
from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput, StoreUnavailable
from deferd.contract.model import JobState
from deferd.contract.operations import topics as operations
from deferd.engine.time_slice import TimeSlice

KEYS_MAX = 100_000
"""Topics that KEYS lists; SCAN lists any number."""
_SCAN_COUNT = 10
_CURSOR_MAX = 2**53
"""The cursors of a store are below twice the number of topics; clients in JavaScript have numbers up to this."""
_LIVE = (JobState.DELAYED, JobState.READY, JobState.RESERVED)


@command("SCARD", arity=2)
async def scard(session: Session, command: list[bytes]) -> bytes:
    """``SCARD topic``: how many live jobs the topic has, that is delayed, ready and reserved ones."""
    try:
        response = await session.call(operations.GET_TOPIC, {"topic": _name(command[1])})
    except CommandError as error:
        if error.code == "TOPIC_NOT_FOUND":
            return replies.integer(0)
        raise
    counts = orjson.loads(response.body)["counts"]
    return replies.integer(sum(counts[state] for state in _LIVE))


@command("KEYS", arity=-1, has_topic=False)
async def keys(session: Session, command: list[bytes]) -> bytes:
    """``KEYS pattern``: the names of all topics that match; without a pattern, all."""
    if len(command) > 2:
        raise wrong_arity("keys")
    pattern = read_pattern(command[1] if len(command) == 2 else b"*")
    found: list[str] = []
    await session.call(operations.LIST_TOPICS, {}, run=partial(_collect, found, pattern))
    return replies.bulks([name.encode() for name in sorted(found)])


@command("SCAN", arity=-2, has_topic=False)
async def scan(session: Session, command: list[bytes]) -> bytes:
    """``SCAN cursor [MATCH pattern] [COUNT n] [TYPE set]``: the names of topics, page by page.

    The cursors are those of the store, so any process can continue. A topic that exists all the time is listed, perhaps
    twice, also while others come and go.
    """
    cursor = whole_number("cursor", command[1], 0, _CURSOR_MAX)
    if len(command) % 2:
        raise CommandError("ERR", "syntax error")
    pattern, count, is_set = read_pattern(b"*"), _SCAN_COUNT, True
    for option, value in zip(command[2::2], command[3::2], strict=True):
        match option.upper():
            case b"MATCH":
                pattern = read_pattern(value)
            case b"COUNT":
                count = whole_number("COUNT", value, 1, 1_000_000_000)
            case b"TYPE":
                is_set = value.lower() == b"set"
            case _:
                raise CommandError("ERR", "syntax error")
    page: list[tuple[int, list[str]]] = []
    read = partial(_collect_page, page, cursor, min(count, limits.PAGE_MAX), pattern)
    await session.call(operations.LIST_TOPICS, {}, run=read)
    [(next_cursor, names)] = page
    listed = [name.encode() for name in names] if is_set else []
    return replies.array([replies.bulk(b"%d" % next_cursor), replies.bulks(listed)])


@command("DEL", arity=-2)
async def delete(session: Session, command: list[bytes]) -> bytes:
    """``DEL topic [topic ...]``: remove all jobs of the topics. Replies from how many topics any were removed.

    The topics are purged one after the other; at the first error the rest is left as it is.
    """
    emptied = 0
    for topic in dict.fromkeys(command[1:]):
        try:
            response = await session.call(operations.PURGE_TOPIC, {"topic": _name(topic)})
        except CommandError as error:
            if error.code != "TOPIC_NOT_FOUND":
                raise
        else:
            emptied += orjson.loads(response.body)["removed"] > 0
    return replies.integer(emptied)


async def _collect(found: list[str], pattern: Pattern, arguments: dict[str, Any]) -> Response:
    async for names in visible_names(arguments["request"]):
        found += await _matching(names, pattern)
        if len(found) > KEYS_MAX:
            raise InvalidInput([FieldError(("pattern",), f"matches more than {KEYS_MAX} topics: use SCAN")])
    return Response()


async def _collect_page(
    page: list[tuple[int, list[str]]], cursor: int, count: int, pattern: Pattern, arguments: dict[str, Any]
) -> Response:
    request: RequestContext = arguments["request"]
    next_cursor, names = await request.engine.topic_list.scan(cursor, count)
    page.append((next_cursor, await _matching(_visible(request, names), pattern)))
    return Response()


async def _matching(names: list[str], pattern: Pattern) -> list[str]:
    """Those that match. A long pattern may take some ms for one name."""
    slice_, found = TimeSlice(), []
    for name in names:
        if matches(pattern, name.encode()):
            found.append(name)
        await slice_.end_if_over()
    return found


async def count_visible(request: RequestContext) -> int:
    """How many topics the key may see. Raises StoreUnavailable if some cannot be read."""
    if request.admission.visible_topics is None:
        return await request.engine.topic_list.count()
    return sum([len(names) async for names in visible_names(request)])


async def visible_names(request: RequestContext) -> AsyncIterator[list[str]]:
    """The names of the topics that the key may see, page by page. Raises StoreUnavailable if some cannot be read."""
    cursor = None
    while True:
        page = await request.engine.topic_list.names(cursor, limits.PAGE_MAX)
        if page.unreadable:
            raise page.error or StoreUnavailable("a part of the topics cannot be read")
        yield _visible(request, page.names)
        cursor = page.next_cursor
        if cursor is None:
            return


def _visible(request: RequestContext, names: list[str]) -> list[str]:
    visible = request.admission.visible_topics
    return names if visible is None else [name for name in names if visible.match(name)]


def _name(word: bytes) -> str:
    return word.decode("utf-8", "replace")


PATTERN_MAX_BYTES = 512
_STAR, _ANY = "*", "?"
_Step = str | frozenset[int]
"""`*`, `?`, or the characters that match at a place."""
Pattern = tuple[_Step, ...]


def read_pattern(pattern: bytes) -> Pattern:
    """The steps of a pattern. Raises CommandError for one of more than 512 bytes."""
    if len(pattern) > PATTERN_MAX_BYTES:
        raise invalid("pattern", f"must have at most {PATTERN_MAX_BYTES} bytes")
    return _steps(pattern)


def matches(steps: Pattern, name: bytes) -> bool:
    r"""Whether a name matches: `*` any characters, `?` one, `[a-c]` and `[^x]` one of a set; `\` quotes the next one.

    It takes at most the product of both lengths.
    """
    at = step = 0
    star, star_at = -1, 0
    while at < len(name):
        if step < len(steps) and steps[step] == _STAR:
            star, star_at = step, at
            step += 1
        elif step < len(steps) and (steps[step] == _ANY or name[at] in steps[step]):
            at += 1
            step += 1
        elif star >= 0:
            star_at += 1
            at, step = star_at, star + 1
        else:
            return False
    return all(left == _STAR for left in steps[step:])


def _steps(pattern: bytes) -> Pattern:
    steps: list[_Step] = []
    at = 0
    while at < len(pattern):
        byte = pattern[at : at + 1]
        if byte == b"[":
            characters, at = _set_at(pattern, at + 1)
            steps.append(characters)
            continue
        if byte == b"\\" and at + 1 < len(pattern):
            at += 1
            steps.append(frozenset(pattern[at : at + 1]))
        elif byte == b"*":
            steps.append(_STAR)
        else:
            steps.append(_ANY if byte == b"?" else frozenset(byte))
        at += 1
    return tuple(steps)


def _set_at(pattern: bytes, at: int) -> tuple[frozenset[int], int]:
    """The characters of a set that begins here, and what follows it; one without an end goes to the end."""
    is_negated = pattern[at : at + 1] == b"^"
    at += is_negated
    characters: set[int] = set()
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        if pattern[at : at + 1] == b"\\" and at + 1 < len(pattern):
            at += 1
            characters.add(pattern[at])
        elif pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            low, high = sorted((pattern[at], pattern[at + 2]))
            characters.update(range(low, high + 1))
            at += 2
        else:
            characters.add(pattern[at])
        at += 1
    every = frozenset(range(256))
    return every - characters if is_negated else frozenset(characters), at + 1
