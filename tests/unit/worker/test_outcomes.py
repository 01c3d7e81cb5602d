"""The outcomes for the return values and exceptions of handlers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from deferd import Delivery, InvalidInput, Reject, Retry, Snooze, Then
from deferd.contract.limits import DELAY_MAX_S, ERROR_TEXT_MAX
from deferd.worker.outcomes import Bury, Finish, Release, of_error, of_failure, of_value
from tests.deliveries import delivery_of


class Closed(BaseModel):
    at: datetime


def test_a_value_becomes_the_result_as_json() -> None:
    assert of_value(None) == Finish(None)
    assert of_value({"a": (1, 2)}) == Finish({"a": [1, 2]})
    assert of_value(Closed(at=datetime(2030, 1, 1, tzinfo=UTC))) == Finish({"at": "2030-01-01T00:00:00Z"})


@pytest.mark.parametrize("value", [object(), float("nan"), [float("inf")], "\ud800", lambda: None])
def test_a_value_that_is_not_json_releases_the_job_with_the_reason(value: Any) -> None:
    outcome = of_value(value)
    assert isinstance(outcome, Release)
    assert outcome.delay_s is None
    assert str(outcome.error).startswith("the handler returned a value that is not JSON: ")


def test_a_value_that_holds_itself_releases_the_job() -> None:
    value: list[Any] = []
    value.append(value)
    assert isinstance(of_value(value), Release)


def test_an_exception_releases_the_job_with_its_name_and_text() -> None:
    assert of_error(ValueError("no such order")) == Release(None, "ValueError: no such order")
    assert of_error(ValueError()) == Release(None, "ValueError")
    assert of_error(asyncio.CancelledError()) == Release(None, "CancelledError")
    assert of_error(SystemExit(3)) == Release(None, "SystemExit: 3")


def test_an_exception_that_cannot_be_shown_or_sent_is_reported_by_name() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit

    assert of_error(Mute()) == Release(None, "Mute")
    not_a_text: Any = Mute()
    assert of_error(Reject(not_a_text)) == Bury("")
    assert of_error(ValueError("x" * 20_000)) == Release(None, f"ValueError: {'x' * (ERROR_TEXT_MAX - 12)}")
    assert of_error(ValueError("a\ud800b")) == Release(None, "ValueError: a?b")


def test_retry_sets_delay_and_error() -> None:
    assert of_error(Retry()) == Release(None, None)
    assert of_error(Retry(timedelta(minutes=2), "busy")) == Release(120, "busy")
    assert of_error(Retry(0)) == Release(0, None)
    retry = Retry(5)
    retry.__cause__ = OSError("no route")
    assert of_error(retry) == Release(5, "OSError: no route")


@pytest.mark.parametrize("delay", [-1, DELAY_MAX_S + 1, float("nan")])
def test_a_retry_in_the_past_or_too_far_ahead_is_refused(delay: float) -> None:
    with pytest.raises(ValueError, match="must be 0 to 315576000 seconds"):
        Retry(delay)


def test_reject_buries_with_its_reason() -> None:
    assert of_error(Reject("no such customer")) == Bury("no such customer")
    assert of_error(Reject("x" * 20_000)) == Bury("x" * ERROR_TEXT_MAX)


def test_a_snooze_releases_the_job_without_an_attempt() -> None:
    assert of_error(Snooze(30)) == Release(30, None, counts=False)
    assert of_error(Snooze(timedelta(minutes=1), "not yet")) == Release(60, "not yet", counts=False)
    for delay in (0, 0.09, -1, DELAY_MAX_S + 1, float("nan")):
        with pytest.raises(ValueError, match=f"the delay of a Snooze must be 0.1 to {DELAY_MAX_S} seconds"):
            Snooze(delay)


def _delivery(backoff: dict[str, Any], *, attempt: int = 1, snoozes: int = 0) -> Delivery:
    return delivery_of(attempt=attempt, snoozes=snoozes, backoff=backoff)


def test_an_exception_that_is_no_failure_snoozes_the_job_for_its_backoff() -> None:
    def ended(error: Exception, backoff: dict[str, Any], **facts: int) -> Release | Bury:
        return of_failure(error, _delivery(backoff, **facts), lambda one: isinstance(one, ValueError))

    exponential, fixed = {"kind": "exponential", "jitter": 0}, {"kind": "fixed", "seconds": 0, "jitter": 0}
    schedule = {"kind": "schedule", "seconds": [5, 60], "jitter": 0}
    assert ended(OSError("away"), exponential) == Release(2, "OSError: away", counts=False)
    assert ended(OSError(), exponential, attempt=2, snoozes=3) == Release(32, "OSError", counts=False)
    assert ended(OSError(), exponential, attempt=9999) == Release(212, "OSError", counts=False)
    assert ended(OSError(), fixed) == Release(0.1, "OSError", counts=False)
    assert ended(OSError(), schedule) == Release(5, "OSError", counts=False)
    assert ended(OSError(), schedule, snoozes=7) == Release(60, "OSError", counts=False)
    assert ended(Retry(7), fixed) == Release(7, None, counts=False)
    assert ended(Snooze(7), fixed) == Release(7, None, counts=False)
    assert ended(ValueError("wrong"), fixed) == Release(None, "ValueError: wrong")
    assert ended(Reject("never"), fixed) == Bury("never")


def test_an_exception_counts_when_is_failure_fails() -> None:
    for failed in (KeyError(), SystemExit(), GeneratorExit()):

        def is_failure(_: BaseException, failed: BaseException = failed) -> bool:
            raise failed

        outcome = of_failure(OSError("away"), _delivery({"kind": "exponential", "jitter": 0}), is_failure)
        assert outcome == Release(None, "OSError: away")


def test_then_finishes_with_jobs_that_have_ids() -> None:
    outcome = of_value(Then({"topic": "a", "delay": timedelta(seconds=5)}, result=(1,)), [{"topic": "b", "id": "x"}])
    assert isinstance(outcome, Finish)
    assert outcome.result == [1]
    first, second = outcome.put
    assert first == {"topic": "b", "id": "x"}
    assert (second["topic"], second["delay"], len(second["id"])) == ("a", 5, 32)
    assert of_value(Then()) == Finish(None)


def test_then_checks_its_jobs_at_once() -> None:
    with pytest.raises(InvalidInput, match="delay"):
        Then({"topic": "a", "delay": -1})
    with pytest.raises(ValueError, match="at most 10 jobs, not 11"):
        Then(*[{"topic": "a"}] * 11)
    outcome = of_value(Then(*[{"topic": "a"}] * 6), [{"topic": "b"}] * 5)
    assert outcome == Release(None, "the handler put 11 jobs, more than 10")
