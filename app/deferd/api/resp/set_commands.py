"""SADD and SPOP: puts of strings, and pops that finish what they hand out. Both come in pipelines, and must be fast.

A run of such commands in a pipeline shares calls: the puts of SADDs are batches, as of `POST /jobs/batch`, and
SPOPs of one job from a topic are one pop. Each command has its own reply, and is a request for the limits of its key.
Commands that these limits refuse, invalid topics, and traced requests go the general way, one request each.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from starlette.responses import Response

from deferd.api import metrics
from deferd.api.auth.admission import WITHOUT_KEY, Admission
from deferd.api.auth.usage_limits import KeyUsage
from deferd.api.body_decoding import encode_strings
from deferd.api.context import RequestContext
from deferd.api.dispatch import error_response
from deferd.api.problem_details import BY_CODE
from deferd.api.resp import replies
from deferd.api.resp.options import milliseconds, text, whole_number
from deferd.api.resp.replies import CommandError, Disconnected, invalid, of_problem, wrong_arity
from deferd.api.resp.session import JSON_CHARACTER_BYTES, TOPIC, Session, command_in_runs, each
from deferd.contract import limits
from deferd.contract.errors import DeferdError, FieldError, InvalidInput
from deferd.contract.operations.jobs import POP_JOBS, PUT_JOBS, PutResult
from deferd.contract.operations.operation import Operation
from deferd.engine.queue import PopRequest
from deferd.engine.record import JobRecord
from deferd.engine.script_arguments import EncodedPut

_REPLY_BYTES = 1024 * 1024
"""The most that a pop returns, unless one job is larger; see lua/pop.lua."""
_SINGLES_AT_ONCE = 100
_GENERAL_AT_ONCE = 100
_OK = 200
_DEPTH = 3
_JSON_OF_JOB_BYTES = 100
"""As a request of HTTP: how deeply its JSON is nested, and how much a job has of it at most beside topic and body."""


class _Puts(NamedTuple):
    """One SADD: the bodies with their delays in ms."""

    topic: str
    jobs: list[tuple[str, int]]


@command_in_runs("SADD", arity=-4)
async def sadd(session: Session, commands: Sequence[list[bytes]]) -> AsyncGenerator[bytes, None]:
    """``SADD topic body delay [body delay ...]``, each of them: put strings, due after as many milliseconds.

    Each replies how many were put: all of them, else it is an error. Two jobs with the same body are two jobs.
    """
    done: list[bytes] = [b""] * len(commands)
    general: list[tuple[int, _Puts]] = []
    batch: list[tuple[int, _Puts]] = []
    admissions: dict[str, Admission | None] = {}  # all are of the same key
    for index, command in enumerate(commands):
        try:
            puts = _read_sadd(session, command)
        except CommandError as error:
            done[index] = error.reply()
            continue
        topic = puts.topic
        if topic not in admissions:
            admissions[topic] = session.short_way(PUT_JOBS, topic)
        admission = admissions[topic]
        if admission is None or (admission.usage is not None and not _is_allowed(admission.usage, puts)):
            general.append((index, puts))
        else:
            batch.append((index, puts))
    for some in _batches(batch):
        await _put_batch(session, admissions[some[0][1].topic] or WITHOUT_KEY, some, done)
    for start in range(0, len(general), _GENERAL_AT_ONCE):
        part = general[start : start + _GENERAL_AT_ONCE]
        results = await each([_put_generally(session, puts) for _, puts in part])
        for (index, _), result in zip(part, results, strict=True):
            done[index] = result.reply() if isinstance(result, CommandError) else result
    yield b"".join(done)


def _read_sadd(session: Session, command: list[bytes]) -> _Puts:
    if len(command) < 4 or len(command) % 2:
        raise wrong_arity("sadd")
    if len(command) > 2 + 2 * limits.BATCH_MAX:
        raise invalid("body", f"a command puts at most {limits.BATCH_MAX} jobs")
    texts, delays = command[2::2], command[3::2]
    jobs = [
        (text("body", body), milliseconds("delay", delay, limits.DELAY_MAX_S))
        for body, delay in zip(texts, delays, strict=True)
    ]
    if sum(map(len, texts)) > session.api.fits_as_json_bytes:
        session.check_size_as_json([body for body, _ in jobs])
    return _Puts(_name(command[1]), jobs)


def _is_allowed(usage: KeyUsage, puts: _Puts) -> bool:
    """Whether the limits of a key but its quota certainly allow a command; if so it counts."""
    bounds, jobs = usage.bounds, puts.jobs
    most_bytes = sum(_JSON_OF_JOB_BYTES + len(puts.topic) + JSON_CHARACTER_BYTES * len(body) for body, _ in jobs)
    return (
        (bounds.max_batch is None or len(jobs) <= bounds.max_batch)
        and (bounds.max_depth is None or bounds.max_depth >= _DEPTH)
        and (bounds.max_body_bytes is None or most_bytes <= bounds.max_body_bytes)
        and usage.take() == 0
    )


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


async def _put_batch(session: Session, admission: Admission, part: list[tuple[int, _Puts]], done: list[bytes]) -> None:
    """Put the jobs of several commands, and write their replies into `done`."""
    began_s = time.perf_counter()
    bounds = admission.put_bounds(session.api.context.settings.max_body_bytes)
    jobs: list[EncodedPut] = []
    sent: list[tuple[int, _Puts]] = []
    with contextlib.ExitStack() as rooms:
        for index, puts in part:
            encoded = encode_strings(puts.topic, puts.jobs, bounds)
            try:
                if admission.usage is not None:
                    rooms.enter_context(admission.usage.room_for(encoded))
            except DeferdError as exc:
                done[index], status = _refused(exc)
                _observe(session, PUT_JOBS, status, began_s)
            else:
                jobs += encoded
                sent.append((index, puts))
        status, refusal = _OK, b""
        results: Iterator[PutResult] = iter(())
        try:
            results = iter(await session.api.context.engine.puts.put_many(jobs, bounds) if jobs else ())
        except Exception as exc:  # noqa: BLE001 (every error gets a response)
            refusal, status = _refused(exc)
    for index, puts in sent:
        done[index] = refusal or _reply([next(results) for _ in puts.jobs])
        _observe(session, PUT_JOBS, status, began_s)


def _refused(error: Exception) -> tuple[bytes, int]:
    """The reply to a command that fails, and the status of the response that it stands for."""
    response = error_response(error)
    return of_problem(bytes(response.body)).reply(), response.status_code


def _observe(session: Session, operation: Operation[Any], status: int, began_s: float) -> None:
    path = session.api.route_of(operation).path
    metrics.observe_request(path, metrics.RESP_METHOD, status, time.perf_counter() - began_s)


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
    response = await session.call(PUT_JOBS, {}, body={"jobs": jobs}, run=partial(_run_puts, session))
    return bytes(response.body)


async def _run_puts(session: Session, arguments: dict[str, Any]) -> Response:
    request: RequestContext = arguments["request"]
    jobs = arguments["batch"].jobs
    with request.room_for(jobs):
        return Response(_reply(await session.api.context.engine.puts.put_many(jobs, request.put_bounds())))


@command_in_runs("SPOP", arity=-2)
async def spop(session: Session, commands: Sequence[list[bytes]]) -> AsyncGenerator[bytes, None]:
    """``SPOP topic [count]``, each of them: take due jobs, which are finished in the same step; replies their bodies.

    Without a count the reply is one body, or null when no job is due; with one, 1 to 1000, a list. Delivery is at most
    once: what the client does not receive is lost. So each pop is made when the client has room for its reply.
    """
    at = 0
    while at < len(commands):
        command = commands[at]
        end = at + 1
        if len(command) != 2:
            yield await _spop(session, command)
        else:
            while end < len(commands) and commands[end] == command and end - at < _SINGLES_AT_ONCE:
                end += 1
            async with contextlib.aclosing(_spop_singles(session, command[1], end - at)) as written:
                async for reply in written:
                    yield reply
        at = end


async def _spop(session: Session, command: list[bytes]) -> bytes:
    """The reply to one with a count."""
    try:
        if len(command) != 3:
            raise wrong_arity("spop")
        count = whole_number("count", command[2], 1, limits.POP_COUNT_MAX)
        topic = _name(command[1])
        _check_connected(session)
        is_short = _counted(session.short_way(POP_JOBS, topic), 1) > 0
        return replies.bulks(
            [replies.text_of(job.body) for job in await _pop(session, topic, count, is_short=is_short)]
        )
    except CommandError as error:
        return error.reply()


async def _spop_singles(session: Session, name: bytes, times: int) -> AsyncGenerator[bytes, None]:
    """The replies to a number of SPOPs of one job.

    A pop for several may return fewer jobs than are due, up to 1 MiB.
    """
    topic = _name(name)
    while times:
        _check_connected(session)
        admission = session.short_way(POP_JOBS, topic)
        short = _counted(admission, times)
        together = done = short or 1
        try:
            jobs = await _pop(session, topic, together, is_short=short > 0, are_singles=True)
        except CommandError as error:
            yield error.reply() * together
        else:
            done = len(jobs) or together
            if admission is not None and admission.usage is not None:
                admission.usage.give_back(together - done)
            yield b"".join([replies.bulk(replies.text_of(job.body)) for job in jobs]) or session.replies.null * together
        times -= done


def _check_connected(session: Session) -> None:
    """Raise Disconnected when the client leaves: before a pop counts, and before its jobs would be lost."""
    if session.client.is_leaving:
        raise Disconnected


def _counted(admission: Admission | None, times: int) -> int:
    """How many of `times` pops the short way takes; each is a request for the limits of the key, and counts."""
    if admission is None:
        return 0
    usage = admission.usage
    return times if usage is None else next((taken for taken in range(times) if usage.take() > 0), times)


async def _pop(
    session: Session, topic: str, count: int, *, is_short: bool, are_singles: bool = False
) -> list[JobRecord]:
    """Up to `count` jobs for one command; with `are_singles` for as many commands of one job."""
    context = session.api.context
    if not is_short:
        taken: list[JobRecord] = []
        await session.call(POP_JOBS, {"topic": topic}, {"count": count}, run=partial(_run_pop, session, taken))
        return taken
    began_s = time.perf_counter()
    status = _OK
    jobs: list[JobRecord] = []
    try:
        context.unsent.claim(_REPLY_BYTES, session.key_name)
        _note_consumer(session, topic)
        jobs = await context.engine.queue.pops_and_finishes.pop(topic, count)
    except Exception as exc:
        response = error_response(exc)
        status = response.status_code
        raise of_problem(bytes(response.body)) from exc
    finally:
        for _ in range((len(jobs) or count) if are_singles else 1):
            _observe(session, POP_JOBS, status, began_s)
    return jobs


def _name(word: bytes) -> str:
    return word.decode("utf-8", "replace")


async def _run_pop(session: Session, taken: list[JobRecord], arguments: dict[str, Any]) -> Response:
    topic: str = arguments["topic"]
    if TOPIC.fullmatch(topic) is None:
        raise InvalidInput([FieldError(("path", "topic"), "must be one topic, without a pattern", topic)])
    context = session.api.context
    context.unsent.claim(_REPLY_BYTES, session.key_name)
    _note_consumer(session, topic)
    taken += await context.engine.queue.pops_and_finishes.pop(topic, arguments["query"].count)
    return Response()


class _Ended:
    """A pop that does not wait, as the list of consumers sees it."""

    response_complete = True


_ENDED, _NAMELESS = _Ended(), PopRequest(1)


def _note_consumer(session: Session, topic: str) -> None:
    session.api.context.consumers.note(session.client.address or session.id, (session, topic, _NAMELESS, _ENDED))
