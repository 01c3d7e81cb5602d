"""Sends rows of an outbox to the service, in the order that matters, until each has its outcome.

The order matters for the rows of one job: they go one after the other, in waves in which each job occurs once. A cancel
by tag is a barrier: it goes when all rows before it are done, and those behind it follow. What precedes a cancel of the
same job, or a put a cancel by its tag, is not sent at all: else a crash could bring the job to life for a moment.

===========================================  ==================================================================
response                                     outcome
===========================================  ==================================================================
success                                      done
cancel or reschedule: not found, or held     done, without an effect
put with `keep`: the id is taken             done, without an effect
`topic_full`                                 the row stays, and other topics go on; refused after `full_for_s`
none, 401, 408, 429, 5xx, not of a deferd    sent again after a pause, for ever
another problem of one row                   refused
another problem of a whole call              its halves are sent by themselves, until the row is alone
===========================================  ==================================================================
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from deferd.client.async_transport import AsyncTransport
from deferd.client.errors import NoAnswer, UnexpectedAnswer, Unreachable
from deferd.client.job_requests import new_id
from deferd.client.requests import ApiRequest, parsed, request_for
from deferd.client.sender import RetryPolicy
from deferd.client.transport import HttpSettings, Transport
from deferd.contract.clocks import monotonic_s
from deferd.contract.errors import (
    DeferdError,
    JobExists,
    JobNotFound,
    JobReserved,
    NotYetAvailable,
    StoreUnavailable,
    TopicFull,
    Unauthorized,
)
from deferd.contract.operations.bulk import CANCEL_SELECTED_JOBS
from deferd.contract.operations.jobs import CANCEL_JOBS, CHANGE_JOB, PUT_JOBS
from deferd.outbox.database import OutboxRow, Refusal
from deferd.worker.log import FailureLog

LOG = logging.getLogger("deferd.relay")
Result = TypeVar("Result")

CALL_S = 3.0
"""The longest time from the begin of a call to its end, also in the service, which it tells the instant.

Nothing follows on a call whose response was lost before that, not even the same rows: it might take effect behind them.
"""
_JobKey = tuple[str | None, str | None]
"""Topic and id."""
_CONNECTIONS = 32
_AT_ONCE = 16
"""Calls at the same time: a reschedule is a call of its own."""
_MOST_ROWS, _LEAST_ROWS = 1000, 50
"""Rows of one call: fewer after a call that took too long, so that a slow service gets on."""
_MOST_CHARACTERS = 512 * 1024
"""The JSON of one call; a row that is larger is sent alone."""
_TAGGED_JOBS = 5000
"""How many jobs one call of a cancel by tag cancels: it takes a fraction of CALL_S."""
_RETRY = RetryPolicy(first_pause_s=0.1, max_pause_s=2.0, heeds_proxies=False)
_FULL = RetryPolicy(first_pause_s=0.5, max_pause_s=10.0)
_FORGOTTEN_S = 60.0
"""After so long a time without an attempt, the time for which a topic has been full begins again."""
_TRANSIENT_STATUSES = (401, 408, 429)
_TOO_LARGE = 413
_STATUSES_OF_ROWS = (403, 409, _TOO_LARGE, 422)
"""Those of problems that a row may have. Others, such as that there is no such path, say that the URL is wrong."""
_WITHOUT_EFFECT = {
    "put": (JobExists.code,),
    "cancel": (JobNotFound.code, JobReserved.code),
    "reschedule": (JobNotFound.code, JobReserved.code),
    "cancel_tag": (),
}


class Stopped(Exception):
    """The relay was asked to stop while it waited for the service."""


class Reply(NamedTuple, Generic[Result]):
    """What came of one call: its result, or an error. `content` is the body of the response, if there was one."""

    result: Result | None
    error: DeferdError | None
    content: bytes = b""
    over_at_s: float = 0.0
    """When it has no effect any more, if it may have one after the error."""


class Service:
    """The service at one or more URLs. A call is one attempt at one of them, which takes CALL_S at most.

    `transport` makes the calls, and keeps to that bound.
    """

    def __init__(self, urls: Sequence[str], transport: Transport) -> None:
        self.urls = tuple(urls)
        self._transport = transport
        self._current = 0

    async def call(self, request: ApiRequest[Result]) -> Reply[Result]:
        """Send a request once. After an error that another replica may not have, the next call goes there."""
        replica = self._current
        url = self.urls[replica]
        content, began_s = b"", monotonic_s()
        try:
            response = await self._transport.exchange(url, request)
            content = response.content
            return Reply(request.read_response(*response, url=url), None)
        except DeferdError as error:
            if _RETRY.is_transient(error) and not _RETRY.is_refusal(error) and replica == self._current:
                self._current = (replica + 1) % len(self.urls)
            return Reply(None, error, content, began_s + CALL_S if _is_lost(error) else 0.0)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()


class HttpService(Service):
    """The service over HTTP. Raises ValueError as AsyncClient does."""

    def __init__(self, urls: str | Sequence[str] | None, *, key: str | None, ca_file: str | None) -> None:
        settings = HttpSettings(
            urls, timeout_s=CALL_S / 2, key=key, connections=_CONNECTIONS, tls=None, ca_file=ca_file, proxy=None
        )
        super().__init__(settings.urls, AsyncTransport(settings))


class _RowResult(Protocol):
    """What a call did for one of its rows: a result of a batch is one."""

    @property
    def status(self) -> int: ...
    @property
    def code(self) -> str | None: ...
    @property
    def fields(self) -> dict[str, Any]: ...


class _OwnResult(NamedTuple):
    """The same of a call for one row; `fields` is the problem document."""

    status: int
    code: str | None
    fields: dict[str, Any]


class _Outcome(Enum):
    DONE = "done"
    WITHOUT_EFFECT = "done without effect"
    FULL = "the topic is full"
    AGAIN = "not done yet"
    REFUSED = "refused"


class _FullTopic:
    """A topic that takes no puts, since `since_s`."""

    def __init__(self) -> None:
        self.since_s = monotonic_s()
        self.retry_at_s = 0.0
        self._tries = 0

    def note_attempt(self) -> None:
        """Another put was refused."""
        self.retry_at_s = monotonic_s() + _FULL.pause_s(self._tries)
        self._tries += 1


class RowSender:
    """Sends rows, and collects what became of them in `done` and `refused`, from where the caller takes it.

    `confirm` is awaited before each call, and raises if this relay must not send any more. `drop_tagged` is that of
    OutboxDatabase. `stopped` ends the pauses. The rows of a topic that has been full for `full_for_s` are refused.
    """

    def __init__(
        self,
        service: Service,
        *,
        confirm: Callable[[], Awaitable[None]],
        drop_tagged: Callable[[Sequence[str], str, str, int], Awaitable[None]],
        stopped: asyncio.Future[Any],
        full_for_s: float,
    ) -> None:
        self._service = service
        self._confirm = confirm
        self._drop_tagged = drop_tagged
        self._stopped = stopped
        self._full_for_s = full_for_s
        self._calls = asyncio.Semaphore(_AT_ONCE)
        self._most_rows = _MOST_ROWS
        self._failures = 0
        self._log = FailureLog("sending rows of the outbox", LOG)
        self._full: dict[str, _FullTopic] = {}
        self._left_topics: set[str] = set()
        """Those that were full in this `send`. Of their rows, only cancels that end all before them are sent."""
        self._covered: dict[int, list[int]] = {}
        self._settled = self._refusals = 0
        self.done: list[int] = []
        self.refused: list[Refusal] = []

    def full_topics(self) -> list[str]:
        """The topics whose rows are not tried again yet."""
        now_s = monotonic_s()
        return [topic for topic, full in self._full.items() if full.retry_at_s > now_s]

    def next_retry_s(self) -> float:
        """In how many seconds rows of a full topic are tried again; infinite without such a topic."""
        now_s = monotonic_s()
        return min((at_s - now_s for at_s in self._retries() if at_s > now_s), default=float("inf"))

    def _retries(self) -> list[float]:
        return [full.retry_at_s for full in self._full.values()]

    async def send(self, rows: Sequence[OutboxRow]) -> bool:
        """Send rows that were read together. Returns whether each has its outcome; otherwise some must stay.

        Raises:
            Stopped: the relay was asked to stop, and the service does not do what it should.
            Exception: that of `confirm` or `drop_tagged`.
        """
        self._settled = self._refusals = 0
        self._left_topics.clear()
        left, self._covered = _without_cancelled(rows)
        segment: list[OutboxRow] = []
        for row in left:
            if row.verb == "cancel_tag":
                await self._send_waves(segment)
                await self._cancel_tag(row)
                segment = []
            else:
                segment.append(row)
        await self._send_waves(segment)
        if self._refusals > 1:
            facts = {"rows": self._refusals}
            text = "the service refused %d rows of these %d, see `deferd outbox refused`"
            LOG.warning(text, self._refusals, len(rows), extra=facts)
        return self._settled == len(rows)

    async def _send_waves(self, rows: Sequence[OutboxRow]) -> None:
        for wave in _waves(rows):
            puts = [row for row in wave if row.verb == "put"]
            cancels: dict[str | None, list[OutboxRow]] = {}
            for row in wave:
                if row.verb == "cancel":
                    cancels.setdefault(row.topic, []).append(row)
            calls = [self._send_group(puts, _put_request)] if puts else []
            calls += [self._send_group(of_topic, _cancel_request) for of_topic in cancels.values()]
            calls += [self._send_group([row], _change_request) for row in wave if row.verb == "reschedule"]
            await _all(calls)

    async def _send_group(
        self, rows: list[OutboxRow], request_of: Callable[[list[OutboxRow]], ApiRequest[Sequence[_RowResult]]]
    ) -> None:
        """Send rows of different jobs until each has its outcome, or must stay because its topic is full."""
        groups = [rows]
        while groups:
            part = self._next_part(groups)
            if not part:
                continue
            reply = await self._call(request_of(part))
            if reply.result is not None:
                again = self._note_results(part, reply.result)
                if again:
                    groups.append(again)
                    await self._pause(StoreUnavailable(f"the service did not store {len(again)} of {len(part)} rows"))
            elif _is_transient(error := _error_of(reply)):
                groups.append(part)
                if _is_lost(error) and len(part) > _LEAST_ROWS:
                    self._most_rows = max(len(part) // 2, _LEAST_ROWS)
                await self._pause(error, reply.over_at_s)
            elif len(part) == 1:
                self._note_results(part, [_problem_of(error, reply.content)])
            else:
                groups += [part[len(part) // 2 :], part[: len(part) // 2]]

    def _next_part(self, groups: list[list[OutboxRow]]) -> list[OutboxRow]:
        """Take the rows of the next call from the last of the groups."""
        rows = groups.pop()
        if self._left_topics:
            rows = [row for row in rows if row.topic not in self._left_topics or _ends_all(row)]
        characters = 0
        for count, row in enumerate(rows):
            characters += len(row.fields)
            if count and (count >= self._most_rows or characters > _MOST_CHARACTERS):
                groups.append(rows[count:])
                return rows[:count]
        return rows

    async def _call(self, request: ApiRequest[Result]) -> Reply[Result]:
        async with self._calls:
            await self._confirm()
            reply = await self._service.call(request)
        if reply.error is None or not _is_transient(reply.error):
            self._failures = 0
            self._log.succeeded()
            self._most_rows = min(2 * self._most_rows, _MOST_ROWS)
        return reply

    async def _pause(self, error: DeferdError, over_at_s: float = 0.0) -> None:
        self._log.failed(error)
        pause_s = max(_RETRY.pause_s(self._failures, error), over_at_s - monotonic_s())
        self._failures += 1
        await asyncio.wait({self._stopped}, timeout=pause_s)
        if self._stopped.done():
            raise Stopped

    def _note_results(self, rows: Sequence[OutboxRow], results: Sequence[_RowResult]) -> list[OutboxRow]:
        """Record what became of rows; returns those that are to be sent again."""
        if not self._full and all([result.status < 300 for result in results]) and rows[0].verb == "put":  # noqa: C419 (takes half the time)
            self._settled += len(rows)  # as usual: this takes a tenth of the time
            self.done += [row.position for row in rows]
            return []
        outcomes = [_outcome_of(row, result) for row, result in zip(rows, results, strict=True)]
        for row, outcome in zip(rows, outcomes, strict=True):
            if outcome is _Outcome.DONE or outcome is _Outcome.WITHOUT_EFFECT:
                self._note_done(row)
                if outcome is _Outcome.WITHOUT_EFFECT:
                    LOG.debug("the %s had no effect", _named(row), extra=_facts(row))
        for row, result, outcome in zip(rows, results, outcomes, strict=True):
            if outcome is _Outcome.REFUSED or (outcome is _Outcome.FULL and not self._may_wait(row)):
                self._note_refused(row, result.fields)
        return [row for row, outcome in zip(rows, outcomes, strict=True) if outcome is _Outcome.AGAIN]

    def _note_done(self, row: OutboxRow) -> None:
        covered = self._covered.get(row.position, ())
        self._settled += 1 + len(covered)
        self.done += (row.position, *covered)
        if row.verb == "put" and row.topic in self._full:
            del self._full[row.topic]

    def _note_refused(self, row: OutboxRow, problem: dict[str, Any]) -> None:
        self._settled += 1
        self.refused.append(Refusal(row.position, problem))
        self._refusals += 1
        level = logging.WARNING if self._refusals == 1 else logging.DEBUG
        reason = problem.get("detail") or problem.get("code")
        LOG.log(level, "the service refused the %s: %s", _named(row), reason, extra=_facts(row, problem=problem))

    def _may_wait(self, row: OutboxRow) -> bool:
        """Leave the rows of a topic that is full, unless it has been for too long."""
        topic, now_s = row.topic or "", monotonic_s()
        full = self._full.get(topic)
        if full is None or full.retry_at_s < now_s - _FORGOTTEN_S:
            full = self._full[topic] = _FullTopic()
            text = "topic %s is full: its rows wait for up to %g s, others go on"
            LOG.warning(text, topic, self._full_for_s, extra={"topic": topic})
        if now_s - full.since_s > self._full_for_s:
            return False
        if topic not in self._left_topics:
            self._left_topics.add(topic)
            full.note_attempt()
        return True

    async def _cancel_tag(self, row: OutboxRow) -> None:
        fields = json.loads(row.fields)
        tag, if_reserved = fields["tag"], fields["if_reserved"]
        if full := {*self._full, *self._left_topics}:  # puts with this tag may have been left behind
            await self._drop_tagged([*full], tag, if_reserved, row.position)
        # With the id of an earlier call it would spare the puts before it that are sent again, too.
        call = {"select": {"tag": tag}, "if_reserved": if_reserved, "limit": _TAGGED_JOBS, "request_id": new_id()}
        request = request_for(CANCEL_SELECTED_JOBS, body=json.dumps(call).encode(), repeatable=True)
        while True:
            reply = await self._call(request)
            if reply.result is not None:
                if reply.result.complete:
                    self._note_done(row)
                    return
            elif _is_transient(error := _error_of(reply)):
                await self._pause(error, reply.over_at_s)
            else:
                self._note_refused(row, _problem_of(error, reply.content).fields)
                return


def _without_cancelled(rows: Sequence[OutboxRow]) -> tuple[Sequence[OutboxRow], dict[int, list[int]]]:
    """The rows that are to be sent, and by the position of a cancel those of the rows that it makes needless."""
    if all([row.verb == "put" for row in rows]):  # noqa: C419 (takes half the time)
        return rows, {}
    behind = _Behind()
    cancels = {row.position: behind.cancel_of(row) for row in reversed(rows)} | behind.needless
    covered: dict[int, list[int]] = {}
    for row in reversed(rows):
        if (cancel := cancels[row.position]) is not None:
            covered.setdefault(cancel, []).append(row.position)
    return [row for row in rows if cancels[row.position] is None], covered


class _Behind:
    """What is known of the rows behind one, from the last one to the first."""

    def __init__(self) -> None:
        self._cancels: dict[_JobKey, int] = {}
        self._tags: dict[str, int] = {}
        self._retagged: set[_JobKey] = set()
        self._puts: dict[_JobKey, list[OutboxRow]] = {}
        """Those that are to be sent, before the next cancel of their job."""
        self.needless: dict[int, int] = {}
        """Puts that have no effect, as a job with their id is there, which is not sent either; and its cancel."""

    def cancel_of(self, row: OutboxRow) -> int | None:
        """The position of the cancel behind a row that makes it needless."""
        job = (row.topic, row.id)
        if row.verb == "cancel_tag":
            self._tags[json.loads(row.fields)["tag"]] = row.position
            return None
        if row.verb == "cancel":
            self._puts.pop(job, None)
            if _ends_all(row):
                self._cancels[job] = row.position
            return None
        cancel = self._cancels.get(job)
        if cancel is None and self._tags and '"tags"' in row.fields:
            cancel = self._cancel_by_tag(job, row)
        if cancel is None and row.verb == "put":
            self._puts.setdefault(job, []).append(row)
        return cancel

    def _cancel_by_tag(self, job: _JobKey, row: OutboxRow) -> int | None:
        if row.verb == "reschedule":
            self._retagged.add(job)
        if job in self._retagged:
            return None
        fields = json.loads(row.fields)
        cancel = min((self._tags[tag] for tag in fields.get("tags") or () if tag in self._tags), default=None)
        if cancel is None or fields["on_conflict"] == "replace":  # it also ends the job that it would replace
            return None
        later = {put.position: json.loads(put.fields)["on_conflict"] for put in self._puts.get(job, ())}
        before_cancel = {position: conflict for position, conflict in later.items() if position < cancel}
        if "reject" in before_cancel.values():  # the job of this put has it refused
            return None
        self.needless |= dict.fromkeys((at for at, conflict in before_cancel.items() if conflict == "keep"), cancel)
        return cancel


def _ends_all(row: OutboxRow) -> bool:
    """Whether a row is a cancel behind which nothing is left of what was before it."""
    return row.verb == "cancel" and json.loads(row.fields).get("follow_up") != "keep"


def _waves(rows: Sequence[OutboxRow]) -> list[list[OutboxRow]]:
    """The rows in their order, cut so that each job occurs once in a wave."""
    seen: dict[_JobKey, int] = {}
    waves: list[list[OutboxRow]] = []
    for row in rows:
        job = (row.topic, row.id)
        number = seen.get(job, 0)
        seen[job] = number + 1
        if number == len(waves):
            waves.append([])
        waves[number].append(row)
    return waves


def _named(row: OutboxRow) -> str:
    return f"{row.verb} of {json.loads(row.fields)['tag'] if row.id is None else f'{row.topic}/{row.id}'}"


def _facts(row: OutboxRow, **more: Any) -> dict[str, Any]:
    return {"verb": row.verb, "topic": row.topic, "id": row.id, **more}


def _outcome_of(row: OutboxRow, result: _RowResult) -> _Outcome:
    status, code = result.status, result.code
    if status < 300:
        return _Outcome.DONE
    if code == TopicFull.code:
        return _Outcome.FULL
    if status >= 500 or status in _TRANSIENT_STATUSES or code == NotYetAvailable.code:
        return _Outcome.AGAIN
    if code in _WITHOUT_EFFECT[row.verb] and (row.verb != "put" or json.loads(row.fields).get("on_conflict") == "keep"):
        return _Outcome.WITHOUT_EFFECT
    return _Outcome.REFUSED


def _error_of(reply: Reply[Any]) -> DeferdError:
    assert reply.error is not None  # noqa: S101 (for mypy: there is no result)
    return reply.error


def _is_transient(error: DeferdError) -> bool:
    """Whether a whole call is to be sent again: the error says nothing about its rows."""
    if isinstance(error, UnexpectedAnswer):  # a proxy may find a call too large, too
        return error.status not in _STATUSES_OF_ROWS or not (error.is_problem or error.status == _TOO_LARGE)
    return _RETRY.is_transient(error) or isinstance(error, Unauthorized | NotYetAvailable)


def _is_lost(error: DeferdError) -> bool:
    """Whether the service may still execute a call after its error: the connection broke, or a proxy gave up."""
    if isinstance(error, UnexpectedAnswer):
        return not error.is_problem
    return isinstance(error, NoAnswer) and not isinstance(error, Unreachable)


def _problem_of(error: DeferdError, content: bytes) -> _OwnResult:
    """The result of a row that was sent alone, from the problem document in the response."""
    problem: dict[str, Any]
    if isinstance(error, UnexpectedAnswer) and not error.is_problem:
        problem = {"status": error.status, "code": error.code, "detail": str(error)}
    else:
        problem = parsed(content)
    return _OwnResult(problem["status"], problem["code"], problem)


def _put_request(rows: list[OutboxRow]) -> ApiRequest[Sequence[_RowResult]]:
    body = f'{{"jobs": [{",".join([row.fields for row in rows])}]}}'
    return _for_rows(request_for(PUT_JOBS, body=body.encode()), rows)


def _cancel_request(rows: list[OutboxRow]) -> ApiRequest[Sequence[_RowResult]]:
    body = json.dumps({"jobs": [{"id": row.id, **json.loads(row.fields)} for row in rows]})
    return _for_rows(request_for(CANCEL_JOBS, rows[0].topic or "", body=body.encode()), rows)


def _for_rows(request: ApiRequest[Any], rows: list[OutboxRow]) -> ApiRequest[Sequence[_RowResult]]:
    def results(response: Any) -> Sequence[_RowResult]:
        if len(response.results) != len(rows):
            raise ValueError(f"it has {len(response.results)} results for {len(rows)} rows")
        found: Sequence[_RowResult] = response.results
        return found

    return request.giving(results)


def _change_request(rows: list[OutboxRow]) -> ApiRequest[Sequence[_RowResult]]:
    [row] = rows
    request = request_for(CHANGE_JOB, row.topic or "", row.id or "", body=row.fields.encode())
    return request.giving(lambda _: [_OwnResult(200, None, {})])


async def _all(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run these to their ends, also when one fails: then no call is under way any more. Raises the first error."""
    if len(calls) == 1:
        await calls[0]
        return
    errors = await asyncio.gather(*calls, return_exceptions=True)
    for error in errors:
        if error is not None:
            raise error
