"""SADD and SPOP: puts of strings, and pops that finish what they hand out. Both come in pipelines, and must be fast.

A run of such commands in a pipeline shares calls: the puts of SADDs are batches, as those of `POST /jobs/batch`, and
SPOPs of one job from a topic are one pop. Each command has its own reply. Commands of a key with limits, invalid
topics, and traced requests go the general way, one request each.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import Response

from deferd.api import metrics
from deferd.api.dispatch import error_response
from deferd.api.problem_details import BY_CODE
from deferd.api.put_decoding import encode_strings
from deferd.api.request_context import RequestContext
from deferd.api.resp import replies
from deferd.api.resp.command_error import CommandError, Disconnected, invalid, of_problem, wrong_arity
from deferd.api.resp.numbers import milliseconds, whole_number
from deferd.api.resp.session import Session, each
from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput
from deferd.engine.puts import PutResult
from deferd.engine.queue import PopRequest
from deferd.engine.record import JobRecord
from deferd.engine.script_arguments import EncodedPut

SADD, SPOP = b"SADD", b"SPOP"
PUT, POP = "put_jobs", "pop_jobs"
_TOPIC = re.compile(limits.TOPIC_PATTERN)
_REPLY_BYTES = 1024 * 1024
"""The most that a pop returns, unless one job is larger; see lua/pop.lua."""
_SINGLES_AT_ONCE = 100
_GENERAL_AT_ONCE = 100
_OK = 200


class _Puts(NamedTuple):
    """One SADD: the bodies with their delays in ms."""

    topic: str
    jobs: list[tuple[str, int]]


async def sadd(session: Session, commands: Sequence[list[bytes]]) -> bytes:
    """``SADD topic body delay [body delay ...]``, each of them: put strings, due after as many milliseconds.

    Replies how many were put: all of them, else it is an error. Two jobs with the same body are two jobs.
    """
    done: list[bytes] = [b""] * len(commands)
    general: list[tuple[int, _Puts]] = []
    batch: list[tuple[int, _Puts]] = []
    is_short: dict[str, bool] = {}
    for index, command in enumerate(commands):
        try:
            puts = _read_sadd(command)
        except CommandError as error:
            done[index] = error.reply()
            continue
        if puts.topic not in is_short:
            is_short[puts.topic] = (
                _TOPIC.fullmatch(puts.topic) is not None and session.admit_without_limits(PUT, puts.topic) is not None
            )
        (batch if is_short[puts.topic] else general).append((index, puts))
    for some in _batches(batch):
        await _put_batch(session, some, done)
    for start in range(0, len(general), _GENERAL_AT_ONCE):
        part = general[start : start + _GENERAL_AT_ONCE]
        results = await each([_put_generally(session, puts) for _, puts in part])
        for (index, _), result in zip(part, results, strict=True):
            done[index] = result.reply() if isinstance(result, CommandError) else result
    return b"".join(done)


def _read_sadd(command: list[bytes]) -> _Puts:
    if len(command) < 4 or len(command) % 2:
        raise wrong_arity("sadd")
    if len(command) > 2 + 2 * limits.BATCH_MAX:
        raise invalid("body", f"a command puts at most {limits.BATCH_MAX} jobs")
    texts, delays = command[2::2], command[3::2]
    jobs = [
        (_text("body", body), milliseconds("delay", delay, limits.DELAY_MAX_S))
        for body, delay in zip(texts, delays, strict=True)
    ]
    return _Puts(command[1].decode("utf-8", "replace"), jobs)


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise invalid(name, f"must be UTF-8, and byte {error.start} is not") from None


def _batches(puts: list[tuple[int, _Puts]]) -> list[list[tuple[int, _Puts]]]:
    """Parts of at most 1000 jobs."""
    parts: list[list[tuple[int, _Puts]]] = []
    jobs = limits.BATCH_MAX
    for one in puts:
        jobs += len(one[1].jobs)
        if jobs > limits.BATCH_MAX:
            jobs = len(one[1].jobs)
            parts.append([])
        parts[-1].append(one)
    return parts


async def _put_batch(session: Session, part: list[tuple[int, _Puts]], done: list[bytes]) -> None:
    """Put the jobs of several commands, and write their replies into `done`."""
    began_s = time.perf_counter()
    jobs: list[EncodedPut] = []
    for _, puts in part:
        jobs += encode_strings(puts.topic, puts.jobs)
    status, refusal = _OK, b""
    results: Iterator[PutResult] = iter(())
    try:
        results = iter(await session.api.context.engine.queue.put_many(jobs))
    except Exception as exc:  # noqa: BLE001 (every error gets a response)
        response = error_response(exc)
        status, refusal = response.status_code, of_problem(bytes(response.body)).reply()
    took_s = time.perf_counter() - began_s
    path = session.api.operation(PUT).path
    for index, puts in part:
        done[index] = refusal or _reply([next(results) for _ in puts.jobs])
        metrics.observe_request(path, metrics.RESP_METHOD, status, took_s)


def _reply(results: list[PutResult]) -> bytes:
    refused = [result.code for result in results if result.code is not None]
    if not refused:
        return replies.integer(len(results))
    return _partly_refused(refused[0], len(refused), len(results)).reply()


def _partly_refused(code: str, refused: int, jobs: int) -> CommandError:
    put = "" if jobs == 1 else f"{jobs - refused} of {jobs} jobs were put: "
    return CommandError(code.upper(), put + BY_CODE[code].title)


async def _put_generally(session: Session, puts: _Puts) -> bytes:
    jobs = [{"topic": puts.topic, "body": text, "delay": delay_ms / 1000} for text, delay_ms in puts.jobs]
    response = await session.call(PUT, {}, body={"jobs": jobs}, run=partial(_run_puts, session))
    return bytes(response.body)


async def _run_puts(session: Session, arguments: dict[str, Any]) -> Response:
    request: RequestContext = arguments["request"]
    jobs = arguments["batch"].jobs
    with request.room_for(jobs):
        return Response(_reply(await session.api.context.engine.queue.put_many(jobs, request.put_bounds())))


async def spop(session: Session, commands: Sequence[list[bytes]]) -> bytes:
    """``SPOP topic [count]``, each of them: take due jobs, which are finished in the same step; replies their bodies.

    Without a count the reply is one body, or null when no job is due; with one, 1 to 1000, a list. Delivery is at most
    once: what the client does not receive is lost.
    """
    written: list[bytes] = []
    at = 0
    while at < len(commands):
        command = commands[at]
        end = at + 1
        if len(command) == 2:
            while end < len(commands) and commands[end] == command and end - at < _SINGLES_AT_ONCE:
                end += 1
        written.append(await _spop(session, command, end - at))
        at = end
    return b"".join(written)


async def _spop(session: Session, command: list[bytes], times: int) -> bytes:
    """The replies to the same command, `times` after each other."""
    if session.client.is_leaving:
        raise Disconnected  # its jobs would be lost
    try:
        if not 2 <= len(command) <= 3:
            raise wrong_arity("spop")
        is_single = len(command) == 2
        count = times if is_single else whole_number("count", command[2], 1, limits.POP_COUNT_MAX)
        bodies = [replies.text_of(job.body) for job in await _pop(session, command[1], count)]
    except CommandError as error:
        return error.reply() * times
    if not is_single:
        return replies.bulks(bodies)
    return b"".join([replies.bulk(body) for body in bodies]) + session.replies.null * (count - len(bodies))


async def _pop(session: Session, name: bytes, count: int) -> list[JobRecord]:
    topic = name.decode("utf-8", "replace")
    context = session.api.context
    if _TOPIC.fullmatch(topic) is None or session.admit_without_limits(POP, topic) is None:
        taken: list[JobRecord] = []
        await session.call(POP, {"topic": topic}, {"count": count}, run=partial(_run_pop, session, taken))
        return taken
    began_s = time.perf_counter()
    status = _OK
    try:
        context.unsent.claim(_REPLY_BYTES, session.key_name)
        _note_consumer(session, topic)
        return await context.engine.queue.pop_and_finish(topic, count)
    except Exception as exc:
        response = error_response(exc)
        status = response.status_code
        raise of_problem(bytes(response.body)) from exc
    finally:
        path = session.api.operation(POP).path
        metrics.observe_request(path, metrics.RESP_METHOD, status, time.perf_counter() - began_s)


async def _run_pop(session: Session, taken: list[JobRecord], arguments: dict[str, Any]) -> Response:
    topic: str = arguments["topic"]
    if _TOPIC.fullmatch(topic) is None:
        raise InvalidInput([FieldError(("path", "topic"), "must be one topic, without a pattern", topic)])
    context = session.api.context
    context.unsent.claim(_REPLY_BYTES, session.key_name)
    _note_consumer(session, topic)
    taken += await context.engine.queue.pop_and_finish(topic, arguments["query"].count)
    return Response()


class _Ended:
    """A pop that does not wait, as the list of consumers sees it."""

    response_complete = True


_ENDED, _NAMELESS = _Ended(), PopRequest(1)


def _note_consumer(session: Session, topic: str) -> None:
    session.api.context.consumers.note(session.client.address or session.id, (session, topic, _NAMELESS, _ENDED))
