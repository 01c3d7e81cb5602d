"""EagerJobs: puts that collapse, follow-ups, and calls on many jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deferd import InvalidInput, JobReserved, JobState, Reject, Retry, Snooze, WindowDict, Worker
from deferd.client import AsyncClient
from deferd.contract.limits import DELAY_MAX_S
from deferd.testing import EagerJob, EagerJobs, EagerUnsupported

HOUR = timedelta(hours=1)


class Sync:
    """A handler that puts its own id again while it runs, with the options and the ending of the test."""

    def __init__(self, **options: Any) -> None:
        self.worker = Worker()
        self.jobs = EagerJobs(self.worker)
        self.options = {"on_conflict": "replace", "if_reserved": "after"} | options
        self.bodies: list[Any] = []
        self.puts: list[Any] = ["next"]
        self.raises: Exception | None = None

        @self.worker.handler("sync")
        async def sync(body: Any) -> None:
            self.bodies.append(body)
            while self.puts:
                await self.put(self.puts.pop(0))
            if self.raises is not None:
                error, self.raises = self.raises, None
                raise error

    @property
    def client(self) -> AsyncClient:
        return self.jobs.async_client

    async def put(self, body: Any) -> None:
        job = await self.client.put("sync", body, id="a", **self.options)
        assert job.is_follow_up
        assert job.state == "delayed"

    async def run(self) -> list[EagerJob]:
        await self.client.put("sync", "first", id="a")
        return self.jobs.jobs


def states(jobs: EagerJobs) -> list[str]:
    return [job.state for job in jobs.jobs]


async def test_a_put_during_its_handler_runs_after_it() -> None:
    sync = Sync()
    first, following = await sync.run()
    assert (first.state, following.state) == ("finished", "finished")
    assert sync.bodies == ["first", "next"]


async def test_a_follow_up_with_a_delay_waits() -> None:
    sync = Sync(delay=3600)
    _, following = await sync.run()
    assert (following.state, following.delay) == ("delayed", HOUR)
    assert sync.bodies == ["first"]


async def test_a_follow_up_waits_until_its_job_has_ended() -> None:
    sync = Sync()
    sync.raises = Retry(delay=1)
    first, following = await sync.run()
    assert (first.state, following.state, first.follow_up) == ("delayed", "follow-up", following)
    with pytest.raises(ValueError, match="is follow-up: only delayed and ready jobs run"):
        await sync.jobs.run_async(following)
    assert await sync.jobs.run_delayed_async() == [first]
    assert sync.bodies == ["first", "first", "next"]


async def test_a_dead_job_gives_its_place_and_its_error() -> None:
    sync = Sync(delay=3600)
    sync.raises = Reject("no")
    first, following = await sync.run()
    assert (first.state, following.state, following.error) == ("dead", "delayed", "no")


@pytest.mark.parametrize(("on_conflict", "bodies"), [("replace", [3]), ("keep", [1]), ("append", [[1, 2, 3]])])
async def test_further_puts_replace_keep_or_append_to_the_follow_up(on_conflict: str, bodies: list[Any]) -> None:
    sync = Sync(on_conflict=on_conflict)
    sync.puts = [1, 2, 3]
    await sync.run()
    assert sync.bodies == ["first", *bodies]
    assert set(states(sync.jobs)) <= {"finished", "cancelled"}


async def test_without_if_reserved_a_held_job_refuses() -> None:
    sync = Sync(if_reserved="refuse")
    with pytest.raises(JobReserved):
        await sync.run()


@pytest.mark.parametrize("keep", [False, True])
async def test_a_cancel_takes_the_follow_up_along_unless_it_is_kept(keep: bool) -> None:
    sync = Sync()
    sync.raises = Retry(delay=1)
    first, following = await sync.run()
    await sync.client.cancel("sync", "a", follow_up="keep" if keep else "cancel")
    assert (first.state, following.state) == ("cancelled", "finished" if keep else "cancelled")
    assert sync.bodies == (["first", "next"] if keep else ["first"])


async def test_a_follow_up_that_a_cancel_keeps_waits_for_the_end_of_the_lease() -> None:
    jobs = EagerJobs(worker := Worker())

    @worker.handler("t")
    async def cancel_itself(body: Any) -> None:
        await jobs.async_client.put("t", 2, id="a", on_conflict="replace", if_reserved="after")
        await jobs.async_client.cancel("t", "a", follow_up="keep")

    await jobs.async_client.put("t", 1, id="a", ttr=30)
    first, following = jobs.jobs
    assert (first.state, following.state, following.delay) == ("cancelled", "delayed", timedelta(seconds=30))


async def test_a_replaced_job_takes_its_follow_up_along() -> None:
    sync = Sync()
    sync.raises = Retry(delay=1)
    await sync.run()
    await sync.client.put("sync", "other", id="a", on_conflict="replace")
    assert states(sync.jobs) == ["cancelled", "cancelled", "finished"]
    assert sync.bodies == ["first", "other"]


def test_appends_collect_bodies_until_the_job_runs() -> None:
    worker = Worker()
    bodies: list[Any] = []
    worker.handler("digest")(bodies.append)
    jobs = EagerJobs(worker)
    for number in range(3):
        put = jobs.client.put("digest", number, id="a", on_conflict="append", delay=60 + number, max_wait=3600)
        assert (put.body, put.items, put.state) == ([number], number + 1, "delayed")
    [digest] = jobs.jobs
    assert (digest.body, digest.items, digest.delay) == ([0, 1, 2], 3, timedelta(seconds=62))
    jobs.run_delayed()
    assert (bodies, digest.state) == ([[0, 1, 2]], "finished")
    jobs.client.put("digest", 9, id="a", on_conflict="append")
    assert bodies == [[0, 1, 2], [9]]


def test_enough_items_make_the_job_due() -> None:
    worker = Worker()
    bodies: list[Any] = []
    worker.handler("digest")(bodies.append)
    jobs = EagerJobs(worker)
    for number in range(5):
        jobs.client.put("digest", number, id="a", on_conflict="append", delay=60, max_items=2)
    assert bodies == [[0, 1], [2, 3]]
    jobs.client.put("digest", "x", id="b", on_conflict="append", delay=60, max_items=1)
    assert bodies[2:] == [["x"]]


def test_a_job_that_was_put_otherwise_is_the_first_item() -> None:
    jobs = EagerJobs()
    jobs.client.put("digest", "plain", id="a", delay=60)
    jobs.client.put("digest", "item", id="a", on_conflict="append", delay=60)
    assert jobs.jobs[0].body == ["plain", "item"]


@pytest.mark.parametrize("ending", [Retry(delay=1), Snooze(1)])
def test_an_append_to_a_job_that_came_back_follows_it(ending: Exception) -> None:
    jobs = EagerJobs(worker := Worker())
    bodies: list[Any] = []

    @worker.handler("digest")
    def handle(body: Any) -> None:
        bodies.append(body)
        if len(bodies) == 1:
            raise ending

    for number in range(2):
        jobs.client.put("digest", number, id="a", on_conflict="append", delay=60)
    jobs.run_delayed()
    put = jobs.client.put("digest", 2, id="a", on_conflict="append")
    assert (put.is_follow_up, put.body, put.items) == (True, [2], 1)
    jobs.run_delayed()
    assert bodies == [[0, 1], [0, 1], [2]]


def tagged(jobs: EagerJobs) -> None:
    for topic, delay in (("mail.a", 60), ("mail.b", 3600), ("text", 60)):
        jobs.client.put(topic, id="x", delay=delay, tags=["user:7"])
    jobs.client.put("mail.a", id="y", delay=60)


def test_jobs_with_a_tag_are_cancelled_together() -> None:
    tagged(jobs := EagerJobs())
    counted = jobs.client.cancel_all(tag="user:7", dry_run=True)
    assert (counted.matched, counted.done, counted.was[JobState.DELAYED]) == (3, 0, 3)
    assert jobs.client.cancel_all(tag="user:7", topics="mail.*").done == 2
    assert states(jobs) == ["cancelled", "cancelled", "delayed", "delayed"]
    again = jobs.client.cancel_all(tag="user:7")
    assert (again.matched, again.done, again.complete) == (1, 1, True)


async def test_the_asyncio_client_cancels_many_too() -> None:
    jobs = EagerJobs()
    await jobs.async_client.put("t", id="x", delay=60)
    assert (await jobs.async_client.cancel_all(ids=[("t", "x"), ("t", "unknown")])).done == 1


def test_jobs_are_rescheduled_by_their_state_and_run_when_they_are_due() -> None:
    worker = Worker()
    bodies: list[Any] = []
    worker.handler("t")(bodies.append)
    jobs = EagerJobs(worker)
    for number in range(3):
        jobs.client.put("t", number, id=f"j{number}", delay=3600 + number)
    moved = jobs.client.reschedule_all(state="delayed", topics=["t"], by=3600)
    assert (moved.matched, moved.done) == (3, 3)
    assert [job.delay for job in jobs.jobs] == [timedelta(seconds=7200 + number) for number in range(3)]
    assert (jobs.client.reschedule_all(ids=[("t", "j0")], by=DELAY_MAX_S).done, jobs.jobs[0].delay) == (0, 2 * HOUR)
    assert jobs.client.reschedule_all(ids=[("t", "j0")], run_at=datetime.now(UTC) + HOUR).done == 1
    assert jobs.jobs[0].delay is not None
    assert timedelta(minutes=59) < jobs.jobs[0].delay <= HOUR
    jobs.client.reschedule_all(ids=[("t", "j2"), ("t", "j1")], delay=0)
    assert bodies == [1, 2]
    jobs.client.reschedule_all(state="delayed", topics=["t"], by=-86_400)
    assert bodies == [1, 2, 0]


def test_a_repeated_reschedule_moves_no_job_twice() -> None:
    tagged(jobs := EagerJobs())
    first, second, third = (
        jobs.client.reschedule_all(tag="user:7", by=HOUR, limit=2, request_id="r") for _ in range(3)
    )
    assert (first.done, first.complete) == (2, False)
    assert (second.done, second.complete) == (3, True)
    assert third == second
    assert [job.delay for job in jobs.jobs[:3]] == [HOUR + timedelta(seconds=s) for s in (60, 3600, 60)]


async def test_held_jobs_are_cancelled_unless_that_is_refused_and_never_rescheduled() -> None:
    jobs = EagerJobs(worker := Worker())
    seen: list[Any] = []

    @worker.handler("t")
    async def handle(body: Any) -> None:
        refused = await jobs.async_client.cancel_all(ids=[("t", "x")], if_reserved="refuse")
        moved = await jobs.async_client.reschedule_all(ids=[("t", "x")], delay=60)
        done = await jobs.async_client.cancel_all(ids=[("t", "x")])
        seen.extend([(one.matched, one.done, one.was[JobState.RESERVED]) for one in (refused, moved, done)])

    await jobs.async_client.put("t", id="x")
    assert seen == [(1, 0, 1), (1, 0, 1), (1, 1, 1)]
    assert states(jobs) == ["cancelled"]


def test_bad_selections_are_refused_as_by_a_service() -> None:
    client = EagerJobs().client
    with pytest.raises(InvalidInput, match="exactly one of `ids`, `tag` and `state`"):
        client.cancel_all()
    with pytest.raises(InvalidInput, match=r"at least 0\.001 seconds away from 0"):
        client.reschedule_all(tag="x", by=0)
    with pytest.raises(EagerUnsupported, match="`due_after` and `due_before` need a clock"):
        client.cancel_all(state="delayed", topics="t", due_after=datetime.now(UTC))


def test_a_window_and_a_spread_are_kept_and_move_nothing() -> None:
    jobs = EagerJobs()
    closed: WindowDict = {"from": "00:00", "to": "00:01", "except": ["2026-12-24"]}
    put = jobs.client.put("calls", id="a", window=[closed], spread=60)
    [job] = jobs.of("calls")
    assert (put.state, put.window, put.spread, put.asked_for) == ("ready", [closed], 60, None)
    assert (job.fields["window"], job.fields["spread"]) == ([closed], 60)
    with pytest.raises(InvalidInput):
        jobs.client.put("calls", window={"from": "9"})
