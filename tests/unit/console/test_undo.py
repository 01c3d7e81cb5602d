"""A cancel of a selection: the API decides about the cutoff, and only what was cancelled can be undone."""

from __future__ import annotations

from typing import Any, cast

import orjson
import pytest

from deferd.console.api_calls import ApiRefused
from deferd.console.undo import cancel
from deferd.console.visit import Visit
from deferd.contract.errors import StoreUnavailable

TOPIC = "orders"
CUTOFF = "2030-01-01T00:00:00.000Z"
BEFORE, AFTER = "2029-12-31T23:59:59.000Z", "2030-01-01T00:00:01.000Z"


class Api:
    """The API of one topic, as far as a cancel needs it.

    `since` happens between what is read and the cancel, `later` right after the cancel.
    """

    now_ms = 1_900_000_000_000
    has_memory = True

    def __init__(self, jobs: dict[str, str], since: dict[str, tuple[str, str] | None]) -> None:
        self.jobs: dict[str, tuple[str, str]] = {job_id: (state, BEFORE) for job_id, state in jobs.items()}
        self.since = since
        self.later: dict[str, tuple[str, str]] = {}
        self.kept: list[str] = []
        self.calls = 0

    key = None

    @property
    def console_undo(self) -> Api:
        return self

    async def read_unmasked(self, path: str) -> bytes:
        job_id = path.rpartition("/")[2]
        if job_id not in self.jobs:
            raise ApiRefused(404, {})
        state, at = self.jobs[job_id]
        job = {"topic": TOPIC, "id": job_id, "state": state, "created_at": at, "due_at": at, "body": None}
        return orjson.dumps(job)

    async def write(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        for job_id, change in self.since.items():
            if change is None:
                self.jobs.pop(job_id, None)
            else:
                self.jobs[job_id] = change
        self.since = {}
        if (method, path) == ("POST", f"/topics/{TOPIC}/cancel"):
            states = {job["id"]: self.jobs.pop(job["id"])[0] for job in body["jobs"] if job["id"] in self.jobs}
            return {"results": [{"id": job_id, "status": 200, "was": state} for job_id, state in states.items()]}
        assert (method, path) == ("POST", "/jobs/cancel")
        select = body["select"]
        was: dict[str, int] = {}
        matched = done = 0
        for job in select["ids"]:
            assert job["topic"] == TOPIC
            state, at = self.jobs.get(job["id"], ("", ""))
            if state and at <= select["cutoff"]:
                matched += 1
                was[state] = was.get(state, 0) + 1
                if state != "reserved" or body.get("if_reserved") != "refuse":
                    done += 1
                    del self.jobs[job["id"]]
        self.jobs |= self.later
        return {"matched": matched, "done": done, "was": was, "complete": True}

    async def keep(self, content: bytes, _ms: int) -> str:
        if not self.has_memory:
            raise StoreUnavailable("the store is out of memory")
        self.kept = [orjson.loads(job)["id"] for job in content.split(b"\n")[1:]]
        return "token"

    async def cancel(self, *ids: str, spare_held: bool = False) -> tuple[int, int, int, str | None]:
        return await cancel(cast("Visit", self), TOPIC, list(ids), spare_held=spare_held, cutoff=CUTOFF)


async def test_what_was_put_after_the_cutoff_stays() -> None:
    """A new job, and one that was put again since it was read: which of the two that were read was cancelled?"""
    api = Api({"a": "delayed"}, {"new": ("delayed", AFTER)})
    assert await api.cancel("a", "new") == (1, 0, 0, "token")
    assert (set(api.jobs), api.kept) == ({"new"}, ["a"])
    api = Api({"a": "delayed", "b": "ready"}, {"new": ("delayed", AFTER), "b": ("ready", AFTER)})
    assert await api.cancel("a", "b", "new") == (1, 0, 0, None)
    assert (set(api.jobs), api.kept) == ({"b", "new"}, [])


async def test_what_was_finished_is_not_put_again_when_another_was_put_right_after_its_cancel() -> None:
    """As many are gone as were cancelled, but not the same."""
    api = Api({"finished": "ready", "cancelled": "ready"}, {"finished": None})
    api.later = {"cancelled": ("ready", AFTER)}
    assert await api.cancel("finished", "cancelled") == (1, 0, 0, None)
    assert api.kept == []


async def test_what_was_put_right_after_its_cancel_ends_no_undo_of_others() -> None:
    api = Api({"a": "ready", "b": "ready", "held": "ready"}, {"held": ("reserved", BEFORE)})
    api.later = {"b": ("ready", AFTER)}
    assert await api.cancel("a", "b", "held", spare_held=True) == (2, 1, 0, "token")
    assert api.kept == ["a", "b"]


async def test_all_that_waits_is_cancelled_by_one_call() -> None:
    api = Api({"a": "delayed", "b": "ready"}, {})
    assert await api.cancel("a", "b") == (2, 0, 0, "token")
    assert (api.kept, api.calls) == (["a", "b"], 1)


async def test_held_and_dead_jobs_are_counted_and_not_put_again() -> None:
    jobs = {"a": "delayed", "held": "reserved", "dead": "dead"}
    assert await (api := Api(jobs, {})).cancel("a", "held", "dead", "gone") == (3, 0, 1, "token")
    assert api.kept == ["a"]
    assert await (api := Api(jobs, {})).cancel("a", "held", "dead", spare_held=True) == (2, 1, 0, "token")
    assert set(api.jobs) == {"held"}


async def test_what_a_consumer_has_taken_meanwhile_and_still_holds_is_not_put_again() -> None:
    api = Api({"a": "ready", "b": "ready"}, {"b": ("reserved", BEFORE)})
    assert await api.cancel("a", "b", spare_held=True) == (1, 1, 0, "token")
    assert api.kept == ["a"]


async def test_without_a_cutoff_what_a_consumer_has_taken_meanwhile_is_not_put_again() -> None:
    api = Api({"a": "ready", "b": "ready"}, {"b": ("reserved", BEFORE)})
    assert await cancel(cast("Visit", api), TOPIC, ["a", "b"], spare_held=False) == (2, 0, 1, "token")
    assert api.kept == ["a"]


@pytest.mark.parametrize("change", [None, ("reserved", BEFORE)], ids=["finished", "held"])
async def test_without_knowing_which_jobs_were_cancelled_nothing_is_put_again(change: tuple[str, str] | None) -> None:
    """One was finished, or was held when it was cancelled: put again, it would run twice."""
    api = Api({"a": "ready", "b": "ready"}, {"b": change})
    done = await api.cancel("a", "b")
    assert (done[3], api.kept) == (None, [])


async def test_without_memory_for_an_undo_jobs_are_cancelled_all_the_same() -> None:
    api = Api({"a": "ready"}, {})
    api.has_memory = False
    assert await api.cancel("a") == (1, 0, 0, None)


async def test_a_rate_limit_that_ends_the_reads_does_not_end_the_cancel() -> None:
    """Another program may use the same key between the look at its limit and the reads."""

    class Limited(Api):
        reads = 0

        async def read_unmasked(self, path: str) -> bytes:
            self.reads += 1
            if self.reads > 1:
                raise ApiRefused(429, {"code": "rate_limited"})
            return await super().read_unmasked(path)

    api = Limited({"a": "delayed", "b": "ready", "c": "ready"}, {})
    assert await api.cancel("a", "b", "c") == (3, 0, 0, None)
    assert (api.jobs, api.reads) == ({}, 2)
