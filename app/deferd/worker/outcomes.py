"""The outcome of a handler: its job is finished, released or buried."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from deferd.client.job_requests import with_id
from deferd.client.put_options import check_body, check_put
from deferd.client.request_body import JobToPut, Seconds, as_json, job_fields, seconds, set_fields
from deferd.contract.backoff import ExponentialBackoff, FixedBackoff
from deferd.contract.limits import CHAINED_PUTS_MAX, DELAY_MAX_S, ERROR_TEXT_MAX, SNOOZE_MIN_S
from deferd.contract.model import TouchJob
from deferd.contract.operations.jobs import Delivery
from deferd.worker.log import LOG

IsFailure = Callable[[BaseException], bool]
"""Whether an exception of a handler counts as an attempt."""


class Retry(Exception):
    """Raised by a handler to have the job delivered again.

    `delay` is 0 to 10 years, in seconds or as a timedelta; the default is the job's backoff. `error` is kept as the
    job's `last_error`; the default is the text of the exception that this one was raised from, if any. The attempt
    counts, so a job with `max_attempts` may become dead instead.

    Raises:
        ValueError: `delay` is out of its range.
    """

    def __init__(self, delay: Seconds | None = None, error: str | None = None) -> None:
        self.delay_s = None if delay is None else _delay_s(delay, 0, "a Retry")
        self.error = error
        super().__init__(error or "the handler asked for a retry")


class Snooze(Exception):
    """Raised by a handler to have the job delivered again after `delay` without counting the attempt.

    For a job that cannot run yet: `max_attempts` and the backoff do not apply, and `job.snoozes` counts the snoozes.
    `delay` is 0.1 s to 10 years, in seconds or as a timedelta. `error` is kept as the job's `last_error`.

    Raises:
        ValueError: `delay` is out of its range.
    """

    def __init__(self, delay: Seconds, error: str | None = None) -> None:
        self.delay_s = _delay_s(delay, SNOOZE_MIN_S, "a Snooze")
        self.error = error
        super().__init__(error or "the handler snoozed the job")


class Reject(Exception):
    """Raised by a handler when a retry cannot succeed: the job becomes dead, with the reason as `last_error`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Then:
    """Returned by a handler: its job is finished and others are put in one step, so that neither is lost.

    ::

        return Then(mail.fields(receipt), {"topic": "stock", "body": 1}, result="closed")

    The jobs are those of `AsyncClient.put_many`, with those of `context.put` at most 10; `result` is the result of the
    handler's own job. If the service refuses them, the job is released with the reason.

    Raises:
        ValueError: there are more than 10 jobs.
        InvalidInput: one of them is invalid.
    """

    def __init__(self, *put: JobToPut, result: Any = None) -> None:
        check_count(len(put))
        self.put = [checked_job(job) for job in put]
        self.result = result


def checked_job(job: JobToPut) -> dict[str, Any]:
    """A job to put with an id, as the JSON object of the contract. Raises InvalidInput."""
    fields: dict[str, Any] = as_json(job_fields(with_id(set_fields(job))))
    check_put(fields)
    return fields


def checked_progress(value: Any) -> Any:
    """A progress as JSON. Raises InvalidInput if it cannot be that, or is too long."""
    return check_body(TouchJob, as_json({"progress": value})).progress


def check_count(count: int) -> None:
    """Raise ValueError for more jobs than one finish can put."""
    if count > CHAINED_PUTS_MAX:
        raise ValueError(f"a finish puts at most {CHAINED_PUTS_MAX} jobs, not {count}")


class Finish(NamedTuple):
    """The job is finished, with a JSON value as its result, and others are put in the same step."""

    result: Any
    put: Sequence[dict[str, Any]] = ()


class Release(NamedTuple):
    """The job is released, and delivered again after `delay_s`. None: after its backoff.

    Unless it `counts` as an attempt it is a snooze, which needs a delay.
    """

    delay_s: float | None
    error: str | None
    counts: bool = True


class Bury(NamedTuple):
    """The job becomes dead."""

    error: str


class Return(NamedTuple):
    """Nobody worked on the job: it is ready again at the head of the queue, and no attempt is counted."""

    why: str


Outcome = Finish | Release | Bury
"""The outcome of a handler."""

DONE = Finish(None)


def of_value(value: Any, put: Sequence[dict[str, Any]] = ()) -> Outcome:
    """The outcome for a return value of a handler: a finish, unless the value cannot be written as JSON.

    `put` are the jobs of its `context.put`.
    """
    if isinstance(value, Then):
        put, value = [*put, *value.put], value.result
        if len(put) > CHAINED_PUTS_MAX:
            return Release(None, f"the handler put {len(put)} jobs, more than {CHAINED_PUTS_MAX}")
    if value is None:
        return Finish(None, put) if put else DONE
    try:
        # Writing fails for values that JSON has no type for, parsing for NaN and infinities.
        result = from_json(to_json(value, inf_nan_mode="constants"), allow_inf_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return Release(None, bounded(f"the handler returned a value that is not JSON: {error_text(error)}"))
    return Finish(result, put)


def of_error(error: BaseException) -> Release | Bury:
    """The outcome for an exception of a handler: a release with the job's backoff, except for Retry, Snooze, Reject."""
    if isinstance(error, Reject):
        return Bury(bounded(error.reason))
    if isinstance(error, Retry | Snooze):
        text = error.error
        if text is None and error.__cause__ is not None:
            text = error_text(error.__cause__)
        return Release(error.delay_s, None if text is None else bounded(text), isinstance(error, Retry))
    return Release(None, error_text(error))


def of_failure(error: BaseException, job: Delivery, is_failure: IsFailure | None) -> Release | Bury:
    """As `of_error`, but an exception that is no failure snoozes the job, for the wait of its backoff or the Retry."""
    outcome = of_error(error)
    if isinstance(outcome, Bury) or not outcome.counts or is_failure is None or _counts(error, is_failure):
        return outcome
    delay_s = _backoff_s(job) if outcome.delay_s is None else outcome.delay_s
    return Release(max(delay_s, SNOOZE_MIN_S), outcome.error, counts=False)


def _counts(error: BaseException, is_failure: IsFailure) -> bool:
    """What `is_failure` says; if it raises, the exception counts as a failure."""
    try:
        return bool(is_failure(error))
    except BaseException:  # noqa: BLE001 (the job must get an outcome)
        LOG.exception("is_failure raised an exception for %s, which counts as an attempt", error_text(error))
        return True


def _backoff_s(job: Delivery) -> float:
    """How long the job waits, as if its snoozes had been attempts; a schedule that has ended repeats its last wait."""
    number, backoff = job.attempt + job.snoozes, job.backoff
    if isinstance(backoff, ExponentialBackoff):
        try:
            wait_s = min(backoff.cap, backoff.base**number)
        except OverflowError:
            wait_s = backoff.cap
    elif isinstance(backoff, FixedBackoff):
        wait_s = backoff.seconds
    else:
        wait_s = backoff.seconds[min(number, len(backoff.seconds)) - 1]
    return wait_s * (1 + backoff.jitter * random.uniform(-1, 1))  # noqa: S311 (spreads retries; nothing to guess)


def error_text(error: BaseException) -> str:
    """``ValueError: no such order``, within the bounds of a `last_error`."""
    text, name = bounded(error), type(error).__name__
    return bounded(f"{name}: {text}" if text else name)


def bounded(value: object) -> str:
    """The text of a value as the service accepts it: cut to the longest allowed, without lone surrogates.

    Empty if the value, which is a handler's, raises an exception when it is asked for its text.
    """
    try:
        text = str(value)[:ERROR_TEXT_MAX]
    except BaseException:  # noqa: BLE001 (the job must get an outcome)
        return ""
    return text.encode(errors="replace").decode()


def _delay_s(delay: float | timedelta, least_s: float, what: str) -> float:
    delay_s = seconds(delay)
    if not least_s <= delay_s <= DELAY_MAX_S:
        raise ValueError(
            f"the delay of {what} must be {least_s:g} to {DELAY_MAX_S} seconds (10 years), not {delay_s:g}"
        )
    return delay_s
