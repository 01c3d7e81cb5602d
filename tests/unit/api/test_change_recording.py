"""Which calls are recorded as changes, and with which outcome."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from deferd.api import change_recording
from deferd.api.auth.api_keys import Permission, Recorded
from deferd.api.routes.deliveries import return_jobs
from deferd.contract.errors import RateLimited, StoreUnavailable
from deferd.contract.model import JobsToReturn, Redrive
from deferd.engine.activity_list import Change


def fail_with(error: Exception | None) -> None:
    if error is not None:
        raise error


def request_of(recorded: list[Change], changed: int | None) -> Any:
    return SimpleNamespace(
        admission=SimpleNamespace(key_name="ops", is_of_admin=False),
        incoming=SimpleNamespace(headers=[(b"deferd-via", b"elsewhere")], is_of_console=False),
        engine=SimpleNamespace(activity=SimpleNamespace(record=recorded.append)),
        changed=changed,
        changed_topic=None,
        was={},
        now={},
    )


def outcome_of(
    error: Exception | None, *, changed: int | None = 3, arguments: dict[str, Any] | None = None
) -> list[Any]:
    recorded: list[Change] = []
    permission = Permission(None, recorded=Recorded(filter="redrive"))
    request = request_of(recorded, changed)
    operation: Any = SimpleNamespace(permission=permission, operation_id="redrive_jobs")
    given = arguments or {"topic": "t", "redrive": Redrive()}
    with (
        contextlib.suppress(StoreUnavailable, RateLimited, ValueError),
        change_recording.recording(operation, request, given),
    ):
        fail_with(error)
    return [(one.outcome, one.count, one.by, one.via, one.topic, one.filter) for one in recorded]


def test_a_call_that_was_refused_or_changed_nothing_is_not_recorded() -> None:
    assert outcome_of(None) == [("done", 3, "ops", "api", "t", None)]
    assert outcome_of(None, changed=0) == []
    assert outcome_of(RateLimited("later", 1)) == []
    assert outcome_of(None, arguments={"topic": "t", "redrive": Redrive(dry_run=True)}) == []


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ValueError("a bug")])
def test_after_a_failure_the_outcome_is_unknown(error: Exception) -> None:
    assert outcome_of(error, changed=None) == [("unknown", None, "ops", "api", "t", None)]


@pytest.mark.parametrize(
    ("job", "outcomes"), [({"id": "a", "receipt": "0f3a9c21b7d4.1"}, []), ({"id": "a"}, ["unknown"])]
)
async def test_what_consumers_return_of_their_own_is_not_recorded_after_a_failure_either(
    job: dict[str, str], outcomes: list[str]
) -> None:
    async def fail(*_: Any) -> None:
        raise StoreUnavailable("away")

    recorded: list[Change] = []
    request = request_of(recorded, None)
    request.engine.held_jobs = SimpleNamespace(return_many=fail)
    batch = JobsToReturn.model_validate({"jobs": [job]})
    operation: Any = SimpleNamespace(permission=Permission(None, recorded=Recorded()), operation_id="return_jobs")
    with (
        contextlib.suppress(StoreUnavailable),
        change_recording.recording(operation, request, {"topic": "t", "batch": batch}),
    ):
        await return_jobs(request, "t", batch)
    assert [one.outcome for one in recorded] == outcomes


def test_a_long_filter_is_cut() -> None:
    [(*_, text)] = outcome_of(None, arguments={"topic": "t", "redrive": Redrive(error="é" * 1000)})
    assert (len(text.encode()) < 510, text[-1]) == (True, "…")
