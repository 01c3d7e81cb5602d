"""The engine itself, in this process."""

from __future__ import annotations

import json
from collections.abc import Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec.json
from prometheus_client import generate_latest

from deferd.api.job_responses import delivery, job
from deferd.api.routes.batches import shown_batch
from deferd.api.routes.topics import group_view
from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.errors import DeferdError
from deferd.contract.model import (
    CancelItem,
    ChangeJob,
    FinishItem,
    HeldJob,
    JobState,
    JobToReturn,
    PutJob,
    TopicSettings,
)
from deferd.contract.operations.batches import PutBatchOfJobs
from deferd.contract.operations.schedules_and_calendars import PutCalendar, PutSchedule
from deferd.engine import metrics
from deferd.engine.engine import Engine
from deferd.engine.groups import TopicGroup
from deferd.engine.job_waits import Until
from deferd.engine.partitions import Layout
from deferd.engine.record import JobRecord, Receipt
from deferd.engine.schedule_store import StoredSchedule
from deferd.engine.scheduler import datetime_of
from deferd.engine.script_arguments import NO_BOUNDS
from deferd.engine.topic_sweeps import Sweep
from deferd.shelf.moving import Mover
from tests.conformance.door import Door, Job, Refused, Result
from tests.conformance.event_loop import EventLoop
from tests.conformance.http_door import waits_in
from tests.shelving import let_go


class EngineDoor(Door):
    """Calls of an engine that runs in a loop of another thread."""

    def __init__(self, engine: Engine, loop: EventLoop) -> None:
        self._engine = engine
        self._loop = loop

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self._loop.run(call)
        except DeferdError as error:
            raise Refused(error.code, str(error)) from error

    def put(self, job_id: str | None = "a", body: Any = None, *, topic: str | None = None, **fields: Any) -> Job:
        named = {} if job_id is None else {"id": job_id}
        spec = PutJob.model_validate({"topic": topic or self.topic, **named, "body": body, **fields})
        return _job(self._run(self._engine.puts.put(spec)).record)

    def _specs(self, jobs: Sequence[Mapping[str, Any]]) -> list[PutJob]:
        return [PutJob.model_validate({"topic": self.topic, **job}) for job in jobs]

    def put_batch(self, jobs: Sequence[Mapping[str, Any]]) -> list[Result]:
        return _results(self._run(self._engine.puts.put_many(self._specs(jobs))))

    def pop(self, count: int = 1, *, topics: Sequence[str] = (), wait: float = 0, **query: Any) -> list[Job]:
        if "ttr" in query:
            query["ttr_ms"] = round(query.pop("ttr") * 1000)
        call = self._engine.dispatcher.pop(topics or [self.topic], count=count, wait_ms=round(wait * 1000), **query)
        return [_read(delivery(record)) for record in self._run(call)]

    def get(self, job_id: str = "a") -> Job:
        return _job(self._run(self._engine.queue.get(self.topic, job_id)))

    def wait(self, job_id: str = "a", *, seconds: float = 60, until: str = "end", after: float | None = None) -> Job:
        kind: Until = "progress" if until == "progress" else "end"
        after_ms = None if after is None else round(after * 1000)
        wait = self._engine.waits.wait(self.topic, job_id, round(seconds * 1000), until=kind, after_ms=after_ms)
        waited = self._run(wait)
        return Job({**_job(waited.job), "outcome": waited.outcome})

    def waits(self) -> int:
        return waits_in(generate_latest(metrics.JOB_WAITS).decode())

    def change(self, job_id: str, **fields: Any) -> Job:
        return _job(self._run(self._engine.queue.change(self.topic, job_id, ChangeJob.model_validate(fields))))

    def cancel(self, job_id: str, *, if_reserved: str = "cancel", follow_up: str = "cancel") -> str:
        options = {"refuse_reserved": if_reserved == "refuse", "keep_follow_up": follow_up == "keep"}
        was: JobState = self._run(self._engine.cancels.cancel(self.topic, job_id, **options))
        return was.value

    def cancel_batch(self, items: Sequence[Mapping[str, Any]]) -> list[Result]:
        return _results(self._run(self._engine.cancels.cancel_many(self.topic, _models(CancelItem, items))))

    def finish(
        self, job_id: str, receipt: str | None = None, *, result: Any = None, put: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        queue, held = self._engine.queue, Receipt.of(receipt)
        if put:
            self._run(queue.finish_and_put(self.topic, job_id, held, self._specs(put), result=result))
        else:
            self._run(queue.finish(self.topic, job_id, held, result))

    def release(self, job_id: str, receipt: str | None = None, **fields: Any) -> Job:
        delay, error, counts = fields.get("delay"), fields.get("error"), fields.get("count", True)
        delay_ms = None if delay is None else round(delay * 1000)
        call = self._engine.deliveries.release(
            self.topic, job_id, Receipt.of(receipt), delay_ms=delay_ms, error=error, counts=counts
        )
        released = self._run(call)
        found = {"state": released.state.value, "attempts": released.attempts}
        return Job(found if released.due_at_ms is None else {**found, "due_at": released.due_at_ms / 1000})

    def touch(
        self, job_id: str, receipt: str | None = None, *, ttr: float | None = None, progress: Any = None
    ) -> float:
        ttr_ms = None if ttr is None else round(ttr * 1000)
        touch = self._engine.deliveries.touch(self.topic, job_id, Receipt.of(receipt), ttr_ms=ttr_ms, progress=progress)
        until_ms: int = self._run(touch)
        return until_ms / 1000

    def bury(self, job_id: str, receipt: str | None = None, *, error: str | None = None) -> None:
        self._run(self._engine.deliveries.bury(self.topic, job_id, Receipt.of(receipt), error=error))

    def on_deliveries(
        self, verb: str, items: Sequence[Mapping[str, Any]], *, consumer: str | None = None
    ) -> list[Result]:
        if verb == "finish":
            return _results(self._run(self._engine.queue.finish_many(self.topic, _models(FinishItem, items))))
        held = self._engine.held_jobs
        if verb == "check":
            return _results(self._run(held.check_many(self.topic, _models(HeldJob, items))))
        return _results(self._run(held.return_many(self.topic, _models(JobToReturn, items), consumer)))

    def set_topic(self, **settings: Any) -> None:
        self._run(
            self._engine.topics.set(
                self.topic, TopicSettings.model_validate({"partitions": self.partitions, **settings})
            )
        )

    def view(self) -> Mapping[str, Any]:
        view = self._run(self._engine.topics.get(self.topic))
        counts = {state.value: count for state, count in view.counts.items()}
        return {"counts": counts, "paused": view.paused, "settings": view.settings.model_dump()}

    def pause(self) -> None:
        assert self._run(self._engine.topics.pause(self.topic)).paused

    def resume(self) -> None:
        assert not self._run(self._engine.topics.resume(self.topic)).paused

    def groups(self, order: str | None = None) -> list[Mapping[str, Any]]:
        by: Any = order or "ready"
        found, _ = self._run(self._engine.groups.page(self.topic, by))
        return [*map(_group, found)]

    def pause_group(self, group: str, *, resume: bool = False) -> Mapping[str, Any]:
        verb = self._engine.groups.resume if resume else self._engine.groups.pause
        return _group(self._run(verb(self.topic, group))[0])

    def jobs(self, state: str | None = None) -> list[Job]:
        jobs: list[JobRecord] = []
        cursor = None
        while True:
            of_state = None if state is None else JobState(state)
            page, cursor = self._run(self._engine.topics.jobs(self.topic, of_state, cursor))
            jobs += page
            if cursor is None:
                return [*map(_job, jobs)]

    def redrive(self, ids: Sequence[str] | None = None, *, limit: int = 1000, **conditions: str) -> int:
        sweep = self._sweep("redrive", ids=None if ids is None else tuple(ids), limit=limit, **conditions)
        redriven: int = self._run(self._engine.sweeps.run(sweep))
        return redriven

    def purge(self, state: str | None = None, **conditions: str) -> int:
        of_state = None if state is None else JobState(state)
        removed: int = self._run(self._engine.sweeps.run(self._sweep("purge", state=of_state, **conditions)))
        return removed

    def _sweep(self, verb: Any, *, cutoff: str | None = None, **conditions: Any) -> Sweep:
        cutoff_ms = None if cutoff is None else round(datetime.fromisoformat(cutoff).timestamp() * 1000)
        return Sweep(verb=verb, topic=self.topic, cutoff_ms=cutoff_ms, **conditions)

    def preview(self, verb: str, **conditions: str) -> Job:
        found = self._run(self._engine.sweeps.preview(self._sweep(verb, **conditions), 10))
        cutoff = datetime.fromtimestamp(found.cutoff_ms / 1000, UTC).isoformat()
        samples = {job_id for job_id, _ in found.samples}
        return Job(matched=found.matched, complete=found.is_complete, cutoff=cutoff, samples=samples)

    def on_selected(self, verb: str, **call: Any) -> Job:
        if verb == "cancel":
            done = self._run(self._engine.bulk.cancel(CancelSelected.model_validate(call)))
        else:
            done = self._run(self._engine.bulk.reschedule(RescheduleSelected.model_validate(call)))
        was = {state.value: count for state, count in done.was.items()}
        return Job(matched=done.matched, done=done.done, was=was, complete=done.complete)

    def begin_task(self, verb: str, **call: Any) -> Job:
        raise NotImplementedError  # what a task is to do is put together by the service

    def task(self, task_id: str, verb: str = "") -> Job:
        raise NotImplementedError

    def put_schedule(self, *, only_new: bool = False, **fields: Any) -> Job:
        definition = PutSchedule.model_validate({"topic": self.topic, **fields})
        put = self._engine.schedules.put(self.topic, definition, NO_BOUNDS, _anyone, only_new=only_new)
        return _schedule(self._run(put).schedule)

    def schedule(self, verb: str = "") -> Job:
        schedules = self._engine.schedules
        if verb in {"", "run"}:
            stored = self._run(schedules.get(self.topic))
            if verb:
                return _job(self._run(schedules.run(stored, NO_BOUNDS)).record)
            return _schedule(self._run(schedules.with_next_run(stored)))
        return _schedule(self._run(getattr(schedules, verb)(self.topic, _anyone)))

    def preview_runs(self, count: int, **definition: Any) -> list[str]:
        if definition:
            of = PutSchedule.model_validate({"topic": self.topic, **definition})
            runs = self._run(self._engine.schedules.preview_of(self.topic, of, count))
        else:
            stored, runs = self._run(self._engine.schedules.preview(self.topic, _anyone, count))
            of = stored.definition
        return [datetime_of(run.due_ms, of.zone).isoformat() for run in runs]

    def put_calendar(self, *windows: Mapping[str, Any]) -> None:
        self._run(self._engine.calendars.put(self.topic, PutCalendar.model_validate({"windows": windows})))

    def calendar(self) -> list[Mapping[str, Any]]:
        windows = self._run(self._engine.calendars.get(self.topic)).windows
        return [window.model_dump(mode="json", by_alias=True, exclude_unset=True) for window in windows]

    def delete_calendar(self) -> None:
        self._run(self._engine.calendars.delete(self.topic))

    def set_batch(self, name: str, **fields: Any) -> Job:
        before = self._run(self._engine.batches.find(name))
        call = self._engine.batches.put(name, PutBatchOfJobs.model_validate(fields), before)
        return Job.of(shown_batch(self._run(call)[0]).fields)

    def batch(self, name: str) -> Job:
        return Job.of(shown_batch(self._run(self._engine.batches.get(name))).fields)

    def batches(self) -> list[str]:
        names, cursor = [], None
        while True:
            page, cursor = self._run(self._engine.batches.page(cursor, 2, None))
            names += [batch.name for batch in page]
            if cursor is None:
                return names

    def delete_batch(self, name: str, *, if_reserved: Any = "cancel") -> int:
        async def delete() -> tuple[int, bool]:
            batches = self._engine.batches
            return await batches.delete(await batches.get(name), None, if_reserved)

        cancelled, is_deleted = self._run(delete())
        assert is_deleted
        done: int = cancelled
        return done

    def pass_time(self, seconds: float) -> None:
        assert self._engine.clock is not None
        self._run(self._engine.clock.advance(round(seconds * 1000)))


class GrownDoor(EngineDoor):
    """An engine whose topics get partitions when they have jobs already, and which forgets that before each call.

    They get so many that a job `a` would be put elsewhere now. So it finds jobs that are not where they would be put,
    and learns from the store what it does not know. But for pops, which learn of partitions only from messages.
    """

    _forgets = True
    _grown = ""
    _settings: tuple[str, Mapping[str, Any]] = ("", {})
    """The last ones, and of which topic."""

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        if self._forgets:
            self._engine.partitions.known.layouts.clear()
        return super()._run(call)

    def pop(self, count: int = 1, *, topics: Sequence[str] = (), wait: float = 0, **query: Any) -> list[Job]:
        self._forgets = False
        super()._run(self._engine.partitions.refresh(self.topic))
        try:
            return super().pop(count, topics=topics, wait=wait, **query)
        finally:
            self._forgets = True

    def put(self, job_id: str | None = "a", body: Any = None, *, topic: str | None = None, **fields: Any) -> Job:
        put = super().put(job_id, body, topic=topic, **fields)
        self._grow()
        return put

    def put_batch(self, jobs: Sequence[Mapping[str, Any]]) -> list[Result]:
        half = len(jobs) // 2
        results = super().put_batch(jobs[:half])
        self._grow()
        return results + super().put_batch(jobs[half:])

    def set_topic(self, **settings: Any) -> None:
        self._settings = self.topic, settings
        super().set_topic(**settings)

    def _grow(self) -> None:
        if self._grown != self.topic:
            self._grown = self.topic
            self.partitions = next(
                count for count in range(4, 64) if Layout((count,)).home(self.topic, "a") != self.topic
            )
            topic, settings = self._settings
            self.set_topic(**(settings if topic == self.topic else {}))


class ShelvedDoor(EngineDoor):
    """An engine all of whose delayed jobs are on the shelf before each call."""

    def __init__(self, engine: Engine, loop: EventLoop, mover: Mover) -> None:
        super().__init__(engine, loop)
        self._mover = mover

    def _run(self, call: Coroutine[Any, Any, Any]) -> Any:
        self._loop.run(self._shelve())
        return super()._run(call)

    async def _shelve(self) -> None:
        let_go(self._mover)
        for topic in self._engine.partitions.known.of(self.topic):
            stayed, looked_at = 0, BATCH
            while looked_at == BATCH:
                looked_at, left = await self._mover.move_out(topic, 0, pass_over=stayed, most=BATCH)
                stayed += looked_at - left


BATCH = 3


class ClusterDoor(EngineDoor):
    """An engine on a cluster, where one call cannot move the clocks of all shards."""

    def pass_time(self, seconds: float) -> None:
        self._run(self._move_clocks(round(seconds * 1000)))

    async def _move_clocks(self, by_ms: int) -> None:
        for shard, timer in enumerate(self._engine.timers):
            await self._engine._scripts.command("INCRBY", f"deferd:{{{shard}}}:clock", by_ms)
            while await timer.run_once() <= 0:
                pass


def _anyone(_: object) -> None:
    """Authorize everybody."""


def _schedule(stored: StoredSchedule) -> Job:
    state, due_ms, last_ms = stored.state, stored.next_due_ms, stored.last_due_ms
    return Job(
        name=stored.name,
        topic=stored.topic,
        overlap=stored.definition.overlap,
        paused=state.is_paused,
        ended=state.is_ended,
        next_run_at=None if due_ms is None else due_ms / 1000,
        next_job=stored.next_id or None,
        last_run_at=None if last_ms is None else last_ms / 1000,
        last_job=stored.last_id or None,
        runs=stored.runs,
        skips=stored.skips,
        missed=stored.missed,
        created_at=state.created_ms / 1000,
        updated_at=state.updated_ms / 1000,
    )


def _group(group: TopicGroup) -> Mapping[str, Any]:
    return _read(group_view(group))


def _job(record: JobRecord) -> Job:
    return _read(job(record))


def _read(response: Any) -> Job:
    return Job.of(json.loads(msgspec.json.encode(response)))


def _results(results: Sequence[Any]) -> list[Result]:
    return [Result(result.status, result.code) for result in results]


def _models(model: Any, items: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [model.model_validate(item) for item in items]
