"""Runs `deferd bench`, from its options to its exit code."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from deferd.bench.figures import Figures, show
from deferd.bench.loads import BenchTopics, Deployment, Loads, ProgressBars
from deferd.bench.options import Options, OptionsError, read_options
from deferd.bench.processes import LoadProcesses
from deferd.bench.steps import BenchFailed, ClockOffset
from deferd.stop_signals import stop_signals

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


class _Terminated(BaseException):
    """SIGTERM or SIGHUP was received."""

    def __init__(self, number: int) -> None:
        self.number = number


def run(flags: Mapping[str, Any], *, as_json: bool, histogram: bool) -> int:
    """Measure according to the flags (field name to text), print the figures and return the exit code.

    0: measured. 1: the service was unreachable, failed or responded wrongly; the loads before that are shown. 2: the
    value of a flag is invalid. 129, 130, 143: ended by SIGHUP, Ctrl-C or SIGTERM. Its topics are removed in any case.
    """
    try:
        options = read_options(flags)
    except OptionsError as error:
        for problem in error.problems:
            _say(problem)
        return USAGE
    try:
        with _stop_signals_raise():
            figures = _measure(options)
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED
    except _Terminated as stop:
        _say("terminated")
        return 128 + stop.number
    if as_json:
        print(json.dumps(figures.as_json()))  # noqa: T201 (the command's output)
    else:
        show(figures, histogram=histogram)
    if figures.error is not None:
        _say(figures.error)
        return FAILED
    return DONE


def _measure(options: Options) -> Figures:
    """Run the loads one after the other. When one fails, the figures hold the error and the loads before it."""
    figures = Figures(options.url, options.processes)
    deployment, topics = Deployment(options.url), BenchTopics(options.processes)
    with ProgressBars() as board:
        try:
            with _topics_removed(deployment, topics, board), contextlib.ExitStack() as running:
                with board.part("connecting"):
                    clock = _check_deployment(deployment, topics)
                figures.clock_offset_ms = round(clock.offset_ms, 3)
                figures.clock_error_ms = round(clock.error_ms, 3)
                with board.part("starting the load generator"):
                    processes = running.enter_context(LoadProcesses(options.processes, options.url, clock))
                loads = Loads(options, deployment, processes, clock=clock, topics=topics, board=board)
                if "single" in options.loads:
                    figures.single = loads.single()
                if "batch" in options.loads:
                    figures.batch = loads.batch()
                if "lateness" in options.loads:
                    figures.lateness = loads.lateness()
        except BenchFailed as failure:
            figures.error = str(failure)
    return figures


def _check_deployment(deployment: Deployment, topics: BenchTopics) -> ClockOffset:
    """Check that the service responds, and compare the clocks."""
    probe = topics.name("probe")
    deployment.check(probe)
    topics.in_use.add(probe)
    clock = deployment.read_clock(probe)
    deployment.remove(probe)
    topics.in_use.remove(probe)
    return clock


@contextlib.contextmanager
def _topics_removed(deployment: Deployment, topics: BenchTopics, board: ProgressBars) -> Iterator[None]:
    """Remove the topics in use at the end of the block, also after an error."""
    try:
        yield
    finally:
        if topics.in_use:
            left = sorted(topics.in_use)
            try:
                with board.part("removing the topics"):
                    deployment.remove_all(left)
            except BaseException as failure:  # including a second Ctrl-C
                _say(f"these topics may be left behind, DELETE /topics/... removes them: {', '.join(left)}")
                if not isinstance(failure, BenchFailed):
                    raise


@contextlib.contextmanager
def _stop_signals_raise() -> Iterator[None]:
    """Turn the other stop signals into an exception, as Python does with SIGINT."""
    before = {number: signal.signal(number, _terminate) for number in stop_signals() if number != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, _frame: object) -> NoReturn:
    raise _Terminated(number)


def _say(sentence: str) -> None:
    print(f"deferd: {sentence}", file=sys.stderr)  # noqa: T201 (the command's own words)
