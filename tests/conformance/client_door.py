"""The blocking client; the one for asyncio and that of EagerJobs have the same methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from deferd import AsyncClient, DeferdError, JobRef
from deferd.testing import EagerJobs, ServiceClock
from tests.conformance.door import Door, Job, Refused, Result
from tests.conformance.event_loop import EventLoop
from tests.conformance.http_door import previewed, waits_in


class ClientDoor(Door):
    """Methods of a client. `client` is a Client, or has its methods."""

    no_group = ""

    def __init__(self, client: Any, clock: ServiceClock | None = None) -> None:
        self._client = client
        self._clock = clock

    def _call(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **{name: value for name, value in options.items() if value is not None})
        except DeferdError as error:
            raise Refused(error.code, str(error)) from error

    def put(self, job_id: str | None = "a", body: Any = None, *, topic: str | None = None, **fields: Any) -> Job:
        given = _with_instant(fields) | ({} if job_id is None else {"id": job_id})
        try:
            return _job(self._client.put(topic or self.topic, body, **given))
        except DeferdError as error:
            raise Refused(error.code, str(error)) from error

    def put_batch(self, jobs: Sequence[Mapping[str, Any]]) -> list[Result]:
        return _results(self._call(self._client.put_batch, [self._to_put(job) for job in jobs]))

    def _to_put(self, job: Mapping[str, Any]) -> dict[str, Any]:
        return {"topic": self.topic, **_with_instant(job)}

    def pop(self, count: int = 1, *, topics: Sequence[str] = (), wait: float = 0, **query: Any) -> list[Job]:
        jobs = self._call(self._client.pop, list(topics) or self.topic, count=count, wait=wait, **query)
        return [*map(_job, jobs)]

    def get(self, job_id: str = "a") -> Job:
        return _job(self._call(self._client.get, self.topic, job_id))

    def wait(self, job_id: str = "a", *, seconds: float = 60, until: str = "end", after: float | None = None) -> Job:
        since = None if after is None else datetime.fromtimestamp(after, UTC)
        options = {"timeout": seconds, "until": until, "after": since}
        return _job(self._call(self._client.wait, self.topic, job_id, **options))

    def waits(self) -> int:
        return waits_in(self._client.metrics())

    def change(self, job_id: str, **fields: Any) -> Job:
        try:
            return _job(self._client.change(self.topic, job_id, **_with_instant(fields)))
        except DeferdError as error:
            raise Refused(error.code, str(error)) from error

    def cancel(self, job_id: str, *, if_reserved: str = "cancel", follow_up: str = "cancel") -> str:
        options = {"if_reserved": if_reserved, "follow_up": follow_up}
        was: str = self._call(self._client.cancel, self.topic, job_id, **options).was
        return was

    def cancel_batch(self, items: Sequence[Mapping[str, Any]]) -> list[Result]:
        (if_reserved,) = {item.get("if_reserved", "cancel") for item in items}
        ids = [item["id"] for item in items]
        return _results(self._call(self._client.cancel_many, self.topic, ids, if_reserved=if_reserved))

    def _ref(self, job_id: str, receipt: str | None) -> JobRef:
        return JobRef(self.topic, job_id, receipt)

    def finish(
        self, job_id: str, receipt: str | None = None, *, result: Any = None, put: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        puts = [self._to_put(job) for job in put]
        self._call(self._client.finish, self._ref(job_id, receipt), result, put=puts or None)

    def release(self, job_id: str, receipt: str | None = None, **fields: Any) -> Job:
        return _job(self._call(self._client.release, self._ref(job_id, receipt), **fields))

    def touch(
        self, job_id: str, receipt: str | None = None, *, ttr: float | None = None, progress: Any = None
    ) -> float:
        until: datetime = self._call(self._client.touch, self._ref(job_id, receipt), ttr=ttr, progress=progress)
        return until.timestamp()

    def bury(self, job_id: str, receipt: str | None = None, *, error: str | None = None) -> None:
        self._call(self._client.bury, self._ref(job_id, receipt), error=error)

    def on_deliveries(
        self, verb: str, items: Sequence[Mapping[str, Any]], *, consumer: str | None = None
    ) -> list[Result]:
        jobs = items if verb == "finish" else [self._ref(item["id"], item.get("receipt")) for item in items]
        return _results(self._call(getattr(self._client, f"{verb}_many"), self.topic, jobs, consumer=consumer))

    def set_topic(self, **settings: Any) -> None:
        self._call(self._client.set_topic, self.topic, settings)

    def view(self) -> Mapping[str, Any]:
        view: Mapping[str, Any] = self._call(self._client.topic, self.topic).fields
        return view

    def pause(self) -> None:
        assert self._call(self._client.pause, self.topic).paused

    def resume(self) -> None:
        assert not self._call(self._client.resume, self.topic).paused

    def groups(self, order: str | None = None) -> list[Mapping[str, Any]]:
        groups = self._client.groups
        found: list[Mapping[str, Any]] = self._call(lambda: [one.fields for one in groups(self.topic, order=order)])
        return found

    def pause_group(self, group: str, *, resume: bool = False) -> Mapping[str, Any]:
        call = self._client.resume_group if resume else self._client.pause_group
        fields: Mapping[str, Any] = self._call(call, self.topic, group).fields
        return fields

    def jobs(self, state: str | None = None) -> list[Job]:
        jobs: list[Job] = self._call(lambda: [*map(_job, self._client.jobs(self.topic, state=state))])
        return jobs

    def redrive(self, ids: Sequence[str] | None = None, *, limit: int = 1000, **conditions: str) -> int:
        options = {"ids": ids, "limit": limit, **_with_instant(conditions)}
        redriven: int = self._call(self._client.redrive, self.topic, **options)
        return redriven

    def purge(self, state: str | None = None, **conditions: str) -> int:
        removed: int = self._call(self._client.purge, self.topic, state=state, **_with_instant(conditions))
        return removed

    def preview(self, verb: str, **conditions: str) -> Job:
        call = getattr(self._client, f"preview_{verb}")
        return previewed(self._call(call, self.topic, **_with_instant(conditions)).fields)

    def on_selected(self, verb: str, **call: Any) -> Job:
        return Job(self._call(getattr(self._client, f"{verb}_all"), **_selection(call)).fields)

    def begin_task(self, verb: str, **call: Any) -> Job:
        if verb in {"cancel", "reschedule"}:
            return _job(self._call(getattr(self._client, f"start_{verb}_all"), **_selection(call)))
        return _job(self._call(getattr(self._client, f"start_{verb}"), self.topic, **_with_instant(call)))

    def task(self, task_id: str, verb: str = "") -> Job:
        return _job(self._call(self._client.stop_task if verb else self._client.task, task_id))

    def put_schedule(self, *, only_new: bool = False, **fields: Any) -> Job:
        options = {"topic": self.topic, "create_only": only_new, **_with_instant(fields)}
        return _job(self._call(self._client.put_schedule, self.topic, **options))

    def schedule(self, verb: str = "") -> Job:
        found = self._call(getattr(self._client, f"{verb}_schedule" if verb else "schedule"), self.topic)
        return Job() if found is None else _job(found)

    def preview_runs(self, count: int, **definition: Any) -> list[str]:
        of = {"topic": self.topic, **_with_instant(definition)} if definition else self.topic
        return [run.at.isoformat() for run in self._call(self._client.preview_schedule, of, count=count)]

    def put_calendar(self, *windows: Mapping[str, Any]) -> None:
        self._call(self._client.put_calendar, self.topic, windows)

    def calendar(self) -> list[Mapping[str, Any]]:
        windows: list[Mapping[str, Any]] = self._call(self._client.calendar, self.topic).fields["windows"]
        return windows

    def delete_calendar(self) -> None:
        self._call(self._client.delete_calendar, self.topic)

    def set_batch(self, name: str, **fields: Any) -> Job:
        return _job(self._call(self._client.set_batch, name, **fields))

    def batch(self, name: str) -> Job:
        return _job(self._call(self._client.batch, name))

    def batches(self) -> list[str]:
        names: list[str] = self._call(lambda: [batch.name for batch in self._client.batches()])
        return names

    def delete_batch(self, name: str, *, if_reserved: str = "cancel") -> int:
        cancelled: int = self._call(self._client.delete_batch, name, if_reserved=if_reserved)
        return cancelled

    def pass_time(self, seconds: float) -> None:
        assert self._clock is not None
        self._clock.advance(timedelta(seconds=seconds))


class AwaitedClient:
    """The methods of an AsyncClient, awaited in a loop of another thread."""

    def __init__(self, client: AsyncClient, loop: EventLoop) -> None:
        self._client = client
        self._loop = loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            found = method(*arguments, **options)
            return [item async for item in found] if hasattr(found, "__aiter__") else await found

        return lambda *arguments, **options: self._loop.run(call(*arguments, **options))


class EagerDoor(ClientDoor):
    """The client of EagerJobs, whose jobs only wait."""

    def __init__(self) -> None:
        self._jobs = EagerJobs()
        super().__init__(self._jobs.client)

    def get(self, job_id: str = "a") -> Job:
        for job in reversed(self._jobs.of(self.topic)):
            if job.id == job_id and job.state != "cancelled":
                return Job.of({"id": job.id, "state": job.state, "body": job.body})
        raise Refused("job_not_found")

    def pop_all(self, topics: Sequence[str] = (), **_options: Any) -> list[Job]:
        """The ready jobs of topics without a handler, which the next call does not return again."""
        ready = [job for topic in topics or (self.topic,) for job in self._jobs.of(topic) if job.state == "ready"]
        for job in ready:
            job.state = "reserved"
        return [Job.of({"id": job.id, "state": job.state, "body": job.body, "on_end": None}) for job in ready]


def _with_instant(fields: Mapping[str, Any]) -> dict[str, Any]:
    instants = fields.keys() & {"run_at", "cutoff", "due_after", "due_before", "start_at", "end_at"}
    return {**fields, **{name: datetime.fromisoformat(fields[name]) for name in instants}}


def _selection(call: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a call on selected jobs as arguments."""
    select = dict(call["select"])
    if "ids" in select:
        select["ids"] = [(job["topic"], job["id"]) for job in select["ids"]]
    return _with_instant({**select, **{name: value for name, value in call.items() if name != "select"}})


def _job(response: Any) -> Job:
    return Job.of(response.fields)


def _results(results: Iterable[Any]) -> list[Result]:
    return [Result.of(result.fields) for result in results]
