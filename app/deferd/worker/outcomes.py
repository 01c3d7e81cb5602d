"""The outcome of a handler: its job is finished, released or buried."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from deferd.client.durations import Seconds, seconds
from deferd.contract.limits import DELAY_MAX_S, ERROR_TEXT_MAX


class Retry(Exception):
    """Raised by a handler to have the job delivered again.

    `delay` is 0 to 10 years, in seconds or as a timedelta; the default is the job's backoff. `error` is kept as the
    job's `last_error`; the default is the text of the exception that this one was raised from, if any. The attempt
    counts, so a job with `max_attempts` may become dead instead.

    Raises:
        ValueError: `delay` is out of its range.
    """

    def __init__(self, delay: Seconds | None = None, error: str | None = None) -> None:
        self.delay_s = None if delay is None else _delay_s(delay)
        self.error = error
        super().__init__(error or "the handler asked for a retry")


class Reject(Exception):
    """Raised by a handler when a retry cannot succeed: the job becomes dead, with the reason as `last_error`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Finish(NamedTuple):
    """The job is finished, with a JSON value as its result."""

    result: Any


class Release(NamedTuple):
    """The job returns to the queue and is delivered again after `delay_s`. None: after its backoff."""

    delay_s: float | None
    error: str | None


class Bury(NamedTuple):
    """The job becomes dead."""

    error: str


Outcome = Finish | Release | Bury

DONE = Finish(None)


def of_value(value: Any) -> Outcome:
    """The outcome for a return value of a handler: a finish, unless the value cannot be written as JSON."""
    if value is None:
        return DONE
    try:
        # Writing fails for values that JSON has no type for, parsing for NaN and infinities.
        result = from_json(to_json(value, inf_nan_mode="constants"), allow_inf_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return Release(None, bounded(f"the handler returned a value that is not JSON: {error_text(error)}"))
    return Finish(result)


def of_error(error: BaseException) -> Release | Bury:
    """The outcome for an exception of a handler: a release with the job's backoff, except for Retry and Reject."""
    if isinstance(error, Reject):
        return Bury(bounded(error.reason))
    if isinstance(error, Retry):
        text = error.error
        if text is None and error.__cause__ is not None:
            text = error_text(error.__cause__)
        return Release(error.delay_s, None if text is None else bounded(text))
    return Release(None, error_text(error))


def error_text(error: BaseException) -> str:
    """``ValueError: no such order``, within the bounds of a `last_error`."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (its __str__ may fail; its name is always there)
        text = ""
    name = type(error).__name__
    return bounded(f"{name}: {text}" if text else name)


def bounded(text: str) -> str:
    """The text as the service accepts it: cut to the longest allowed, without lone surrogates."""
    return str(text)[:ERROR_TEXT_MAX].encode(errors="replace").decode()


def _delay_s(delay: float | timedelta) -> float:
    delay_s = seconds(delay)
    if not 0 <= delay_s <= DELAY_MAX_S:
        raise ValueError(f"the delay of a Retry must be 0 to {DELAY_MAX_S} seconds (10 years), not {delay_s:g}")
    return delay_s
