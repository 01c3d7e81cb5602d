"""`put -`: any number of jobs from standard input, in batches of which a few are in flight at a time."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from deferd.cli.framework import exit_codes, output
from deferd.cli.framework.command import sentence
from deferd.cli.framework.options import Connection
from deferd.cli.framework.values import read_json
from deferd.client import PutResult, requests
from deferd.client.put_options import message_of
from deferd.client.request_body import job_fields
from deferd.contract.errors import DeferdError, InvalidInput
from deferd.contract.limits import BATCH_MAX
from deferd.contract.model import PutJob
from deferd.worker.handler_threads import DaemonThreads

if TYPE_CHECKING:
    from rich.progress import Progress

BATCHES_AT_A_TIME: Final = 4
"""Two keep a service of one process busy; the others hide the network latency."""
RETRY_FOR_S: Final = 60.0
"""Longer than for one job: the put of millions should survive a restart of the service."""
_START_RETRY_FOR_S: Final = 5.0
_REFUSALS_SHOWN: Final = 10
_MEANING_OF_200: Final = {"keep": "kept", "replace": "replaced", "append": "appended"}
BATCH_BYTES: Final = 512 * 1024
"""Bytes of lines in a full batch: with the other fields of each job it stays below the limit of the service."""
LINE_MAX_BYTES: Final = 64 * 1024 * 1024
_CHUNK_BYTES: Final = 256 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_SHOWN_BYTES: Final = 60
_TOO_LONG: Final = b"\0\n"
"""Stands for a line that is too long: a real line has no line break."""


class BadLine(Exception):
    """A line that is not a job. `number` counts from 1."""

    def __init__(self, number: int, problem: str) -> None:
        self.number = number
        super().__init__(f"line {number}: {problem}")


@dataclass(slots=True)
class Batch:
    """Jobs and the line number of each; `end_byte` is the offset of the input after them."""

    jobs: list[dict[str, Any]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    end_byte: int = 0


class _Sent(NamedTuple):
    batch: Batch
    results: asyncio.Task[list[PutResult]]


def put_lines(common: Mapping[str, Any], *, connection: Connection, whole_jobs: bool, as_json: bool) -> int:
    """Put a job for each line of standard input; `common` are the fields that all of them have."""
    connection = connection.with_defaults(retry_for=RETRY_FOR_S)
    descriptor = sys.stdin.fileno()
    bar = _Progress(descriptor)
    if sys.stdin.isatty():
        output.hint("one JSON value a line; Ctrl-D ends")
    outcome = _Outcome(as_json=as_json, on_conflict=common.get("on_conflict"))
    try:
        with bar as progress:
            lines = JobLines(descriptor, job_fields(common), whole_jobs=whole_jobs)
            asyncio.run(_put_all(connection, lines, outcome, progress))
    except DeferdError:  # before the first line was sent
        raise
    except BaseException:  # Ctrl-C, or the reader of the results stopped
        outcome.report(interrupted=True)
        raise
    outcome.report(interrupted=False)
    return outcome.exit_code


class _Outcome:
    """The results of the lines so far."""

    def __init__(self, *, as_json: bool, on_conflict: str | None) -> None:
        self._as_json = as_json
        self._meaning_of_200 = _MEANING_OF_200.get(on_conflict or "", "kept or replaced")
        self._counts: Counter[str] = Counter()
        self._codes: Counter[str] = Counter()
        self._gaps: list[tuple[int, int, str]] = []
        self._error: str | None = None
        self._error_exit = exit_codes.DONE
        self._began_s = time.monotonic()
        self.last_sent_line = 0

    @property
    def completed(self) -> int:
        """Number of jobs with a known result."""
        return self._counts.total() + self._codes.total()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began_s

    @property
    def failed(self) -> bool:
        """Whether to stop sending."""
        return self._error is not None

    @property
    def exit_code(self) -> int:
        """The exit code of the command."""
        if self._error is not None:
            return self._error_exit
        return max((exit_codes.of_code(code) for code in self._codes), default=exit_codes.DONE)

    def add(self, batch: Batch, results: Sequence[PutResult]) -> None:
        """Add the results of a batch."""
        for line, result in zip(batch.lines, results, strict=True):
            if result.code is None:
                self._counts["put" if result.status == 201 else self._meaning_of_200] += 1
            else:
                self._codes[result.code] += 1
                if not self._as_json and self._codes.total() <= _REFUSALS_SHOWN:
                    why = result.code if result.detail is None else f"{result.code} ({result.detail})"
                    output.complain(f"line {line}: {why}: {result.topic}/{result.id}")
            if self._as_json:
                shown = {"line": line, "topic": result.topic, "id": result.id, "status": result.status}
                more = {"code": result.code, "durability": result.durability, "state": result.state}
                output.json_line({**shown, **{name: value for name, value in more.items() if value is not None}})
        if self._as_json:
            sys.stdout.flush()

    def add_bad_line(self, bad: BadLine) -> None:
        """Add a line that is not a job: neither this line nor any line after it was sent."""
        self._fail(str(bad), exit_codes.USAGE)

    def add_failure(self, batch: Batch, error: DeferdError) -> None:
        """Add a batch that failed, or whose result is unknown."""
        if isinstance(error, InvalidInput):
            for field_error in error.field_errors:
                at, *field = field_error.path
                where = f"line {batch.lines[at]}" if isinstance(at, int) else _span(batch)
                self._fail(f"{where}: {'.'.join(map(str, field))} {field_error.message}", exit_codes.USAGE)
            self._add_gap(batch, "not put")
        else:
            self._fail(f"{_span(batch)}: {sentence(error)}", exit_codes.of_error(error))
            self.add_unknown(batch)

    def add_unknown(self, batch: Batch) -> None:
        """Add a batch that may or may not have been put."""
        self._add_gap(batch, "put or not (unknown)")

    def _add_gap(self, batch: Batch, what: str) -> None:
        """Add lines that are not known to be put; consecutive batches of the same kind are one gap."""
        first, last = batch.lines[0], batch.lines[-1]
        if self._gaps and self._gaps[-1][2] == what:
            first = self._gaps.pop()[0]
        self._gaps.append((first, last, what))

    def _fail(self, sentence: str, code: int) -> None:
        if self._error is None:
            self._error, self._error_exit = sentence, code

    def report(self, *, interrupted: bool) -> None:
        """Print the summary on standard output, or on standard error if the results are there."""
        counts = {"put": 0, **self._counts}
        parts = [f"{count:,} {name}" for name, count in counts.items()]
        if self._codes:
            codes = ", ".join(f"{count:,} {code}" for code, count in self._codes.most_common())
            parts.append(f"{self._codes.total():,} refused ({codes})")
        rate = f" in {output.span(self.seconds)}, {self.completed / max(self.seconds, 1e-3):,.0f}/s"
        print(", ".join(parts) + rate, file=sys.stderr if self._as_json or interrupted else sys.stdout)
        if self._error is not None:
            output.complain(self._error)
        if self._error is not None or interrupted:
            output.complain(self._how_far())

    def _how_far(self) -> str:
        """Which lines are put: where to resume."""
        last = self.last_sent_line
        if last == 0:
            return "no line is put"
        first_gap = self._gaps[0][0] if self._gaps else last + 1
        done = f"lines up to {first_gap - 1} are put" if first_gap > 1 else "no line is known to be put"
        parts = [
            f"{_lines(first, until)} {'is' if first == until else 'are'} {what}" for first, until, what in self._gaps
        ]
        if self._gaps and self._gaps[-1][1] < last:
            parts.append(f"of those up to {last} all others are put")
        return "; ".join([done, *parts, f"none after line {last} was sent"])


class _Progress:
    """A progress bar on standard error, on a terminal and with the package rich only. A context manager.

    It fills as the input is put, or only moves if the size of the input is unknown.
    """

    def __init__(self, descriptor: int) -> None:
        about = os.fstat(descriptor)
        total = about.st_size if stat.S_ISREG(about.st_mode) else None
        self._progress: Progress | None = None
        if not sys.stderr.isatty():
            return
        try:
            from rich import progress
            from rich.console import Console
        except ModuleNotFoundError:  # an extra
            return
        self._progress = progress.Progress(
            progress.TextColumn("putting"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[jobs]:,} jobs"),
            progress.TextColumn("{task.fields[rate]:,.0f}/s"),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            redirect_stdout=False,  # results go there
            transient=True,
        )
        self._task = self._progress.add_task("", total=total, jobs=0, rate=0.0)

    def show(self, *, jobs: int, end_byte: int, seconds: float) -> None:
        """Update: `jobs` jobs, the input up to `end_byte`, were put in `seconds`."""
        if self._progress is not None:
            rate = jobs / seconds if seconds else 0.0
            self._progress.update(self._task, completed=end_byte, jobs=jobs, rate=rate)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()


async def _put_all(connection: Connection, lines: JobLines, outcome: _Outcome, progress: _Progress) -> None:
    """Read and send until the input ends or something fails, then wait for the batches in flight."""
    sent: deque[_Sent] = deque()
    reading: asyncio.Task[Batch | None] | None = None
    at_end = False
    # Daemon threads: reading may block on input forever, and must not keep the process alive.
    threads = DaemonThreads(asyncio.get_running_loop())
    async with connection.open_async() as client:
        # Retry a service that is not up at the start for a shorter time than one that goes away meanwhile.
        await client.send(requests.ready(), retry_for=min(connection.retry_for, _START_RETRY_FOR_S))
        try:
            while True:
                at_end = at_end or outcome.failed
                if reading is None and not at_end and len(sent) < BATCHES_AT_A_TIME:
                    reading = asyncio.create_task(threads.run(lines.batch))
                waiting: set[asyncio.Future[Any]] = {one.results for one in sent}
                if reading is not None and not at_end:
                    waiting.add(reading)
                if not waiting:
                    return
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if reading is not None and reading.done():
                    batch = _read(reading, outcome)
                    reading = None
                    if batch is None:
                        at_end = True
                    elif not outcome.failed:
                        outcome.last_sent_line = batch.lines[-1]
                        sent.append(_Sent(batch, asyncio.create_task(client.put_batch(batch.jobs))))
                while sent and sent[0].results.done():
                    _take(sent.popleft(), outcome, progress)
        finally:
            if reading is not None:
                reading.cancel()
            await _give_up(sent, outcome)


def _read(reading: asyncio.Task[Batch | None], outcome: _Outcome) -> Batch | None:
    try:
        return reading.result()
    except BadLine as bad:
        outcome.add_bad_line(bad)
        return None


def _take(one: _Sent, outcome: _Outcome, progress: _Progress) -> None:
    try:
        results = one.results.result()
    except DeferdError as error:
        outcome.add_failure(one.batch, error)
    else:
        outcome.add(one.batch, results)
        progress.show(jobs=outcome.completed, end_byte=one.batch.end_byte, seconds=outcome.seconds)


async def _give_up(sent: deque[_Sent], outcome: _Outcome) -> None:
    for one in sent:
        one.results.cancel()
    await asyncio.gather(*(one.results for one in sent), return_exceptions=True)
    for one in sent:
        outcome.add_unknown(one.batch)


def _span(batch: Batch) -> str:
    return _lines(batch.lines[0], batch.lines[-1])


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"


class JobLines:
    """The jobs in the lines of a file descriptor: read as they arrive, validated one by one, collected into batches.

    `job` has the fields that all jobs share, as in the API. A line is the body of a job or, with `whole_jobs`, an
    object whose members override those of `job`. Empty lines are skipped, but counted.
    """

    def __init__(self, descriptor: int, job: Mapping[str, Any], *, whole_jobs: bool) -> None:
        self._descriptor = descriptor
        self._job = dict(job)
        # A line that has its own due time overrides the options for it.
        self._job_without_time = {name: value for name, value in job.items() if name not in {"delay", "run_at"}}
        self._whole_jobs = whole_jobs
        self._waiting: deque[bytes] = deque()
        self._part: list[bytes] = []
        self._part_bytes = 0
        self._at_end = False
        self._bad: BadLine | None = None
        self._taken_bytes = 0
        self.number = 0
        """The number of the last line taken."""

    def batch(self) -> Batch | None:
        """The next jobs, up to 1000; None at the end. Waits for the first line, but not for more.

        Raises:
            BadLine: the next line is not a job. The lines before it were in earlier batches.
        """
        if self._bad is not None:
            raise self._bad
        batch = Batch()
        size = 0
        while len(batch.jobs) < BATCH_MAX and size < BATCH_BYTES:
            while len(self._waiting) < BATCH_MAX - len(batch.jobs) and self._may_read(wait=not batch.jobs):
                self._read()
            if not self._waiting:
                if self._at_end or batch.jobs:
                    break
                continue
            line = self._waiting.popleft()
            self.number += 1
            self._taken_bytes += len(line) + 1
            size += len(line)
            if not line.strip():
                continue
            try:
                job = self._read_line(line)
            except ValueError as error:
                self._bad = BadLine(self.number, f"{error}: {_shown(line)}")
                if batch.jobs:
                    break
                raise self._bad from None
            batch.jobs.append(job)
            batch.lines.append(self.number)
        batch.end_byte = self._taken_bytes
        return batch if batch.jobs else None

    def _may_read(self, *, wait: bool) -> bool:
        """Whether to read: there is input, or `wait` is set and no line is left."""
        if self._at_end:
            return False
        return (wait and not self._waiting) or bool(select.select([self._descriptor], [], [], 0)[0])

    def _read(self) -> None:
        data = os.read(self._descriptor, _CHUNK_BYTES)
        if not data:
            self._at_end = True
            if self._part:
                self._waiting.append(b"".join(self._part))
                self._part = []
            return
        first, *more = data.split(b"\n")
        self._part.append(first)
        self._part_bytes += len(first)
        if more:
            *whole, rest = more
            self._waiting.append(b"".join(self._part))
            self._waiting.extend(whole)
            self._part, self._part_bytes = [rest] if rest else [], len(rest)
        if self._part_bytes > LINE_MAX_BYTES:
            self._at_end = True
            self._part = []
            self._waiting.append(_TOO_LONG)  # it is refused after the lines before it

    def _read_line(self, line: bytes) -> dict[str, Any]:
        if line == _TOO_LONG:
            raise ValueError(f"longer than {LINE_MAX_BYTES} bytes")
        if self.number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        try:
            value = read_json(line)
        except ValueError as error:
            raise ValueError(f"not JSON ({error})") from None
        if not self._whole_jobs:
            return {**self._job, "body": value}
        if not isinstance(value, dict):
            raise ValueError('not a JSON object such as {"id": ..., "body": ...}')  # noqa: TRY004 (it is the line's value)
        has_due_time = value.get("delay") is not None or value.get("run_at") is not None
        job = {**(self._job_without_time if has_due_time else self._job), **value}
        try:
            PutJob.model_validate(job)
        except ValidationError as error:
            raise ValueError("; ".join(_describe(one) for one in error.errors(include_url=False))) from None
        return job


def _describe(error: ErrorDetails) -> str:
    where, message = ".".join(str(step) for step in error["loc"]), message_of(error)
    return f"{where}: {message}" if where else message


def _shown(line: bytes) -> str:
    return line[:_SHOWN_BYTES].decode(errors="replace") + ("..." if len(line) > _SHOWN_BYTES else "")
