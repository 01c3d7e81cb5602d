"""One conformance suite over the doors of deferd: engine, HTTP, the two clients, Redis protocol, CLI, EagerJobs.

What holds at every door is written here once and runs over all that have the verb. A door's own tests elsewhere are
about what only it has: encoding, errors of its input, flags, output, reconnects.

A behaviour is a plain function in a `test_*.py` of this folder that takes `door`. It calls the verbs of `Door`, which
take and return the fields of the HTTP API as plain values (`Job`), and raise `Refused` with the code of the problem::

    def test_a_finished_job_is_gone(door: Door) -> None:
        door.put("a")
        held = door.pop_one()
        door.finish("a", held["receipt"])
        with refused("job_not_found"):
            door.get("a")

Each test has a topic of its own, `door.topic`, in a store that all tests share, so it must not look at other topics.
Time is moved by `door.pass_time(seconds)`, never slept through. The marker `doors` leaves doors out or adds some:
`@one_partition` where the order of all jobs counts, `@on_batches` for calls on many jobs, `@on_topics` for those on
topics, schedules and calendars and on selected jobs, `@on_tasks` for tasks, `@also_eager` for what EagerJobs can do. A
schedule or calendar of a test is named as its topic.

A door is a class with the verbs of `Door`, and an entry in conftest.py. Where it lacks a verb it inherits that from
HttpDoor: so tests can arrange what its users would arrange by other means.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pytest

ENGINE, ENGINE_4, GROWN, SHELVED, CLUSTER = "engine", "engine-4", "grown", "shelved", "cluster"
HTTP, HTTP_4 = "http", "http-4"
CLIENT, ASYNC, RESP, CLI, EAGER = "client", "async", "resp", "cli", "eager"
DOORS = (ENGINE, ENGINE_4, GROWN, SHELVED, CLUSTER, HTTP, HTTP_4, CLIENT, ASYNC, RESP, CLI)
SLOW = (CLUSTER, HTTP_4)
PARTITIONED = {ENGINE_4: 4, HTTP_4: 4, CLUSTER: 4}

one_partition = pytest.mark.doors(without=(*PARTITIONED, GROWN))
on_batches = pytest.mark.doors(without=(RESP, CLI))
on_topics = pytest.mark.doors(without=(RESP,))
on_tasks = pytest.mark.doors(without=(ENGINE, ENGINE_4, GROWN, SHELVED, CLUSTER, RESP))
also_eager = pytest.mark.doors(also=(EAGER,))

_INSTANTS = (
    *("created_at", "due_at", "reserved_since", "reserved_until", "progress_at", "finished_at", "deadline_at"),
    *("due_by", "asked_for"),
    *("next_run_at", "last_run_at", "updated_at", "started_at", "ended_at", "completed_at"),
)


class Refused(Exception):
    """A call was refused; `code` is that of the problem, such as `job_not_found`."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code


@contextlib.contextmanager
def refused(code: str, text: str = "") -> Iterator[None]:
    """The block must be refused with this code and a text that contains `text`."""
    with pytest.raises(Refused) as error:
        yield
    assert error.value.code == code
    assert text in str(error.value)


class Job(dict[str, Any]):
    """The fields of a job, a schedule or a task, or of a response about one, as HTTP has them; instants are seconds
    since 1970.

    A field without a value is absent, and reads as None. `durability` is not among them: it is that of the store.
    """

    def __missing__(self, _name: str) -> None:
        return None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Job:
        job = cls((name, value) for name, value in fields.items() if value is not None and name != "durability")
        for name in _INSTANTS:
            if isinstance(job.get(name), str):
                job[name] = datetime.fromisoformat(job[name]).timestamp()
        return job


class Result(NamedTuple):
    """The result for one job of a batch."""

    status: int
    code: str | None = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Result:
        return cls(fields["status"], fields.get("code"))


class Door(ABC):
    """One way to call deferd. Verbs are those of the HTTP API, on jobs of `topic` unless another one is given."""

    topic = ""
    partitions: int | None = None
    """How many the topic has, from its first job on; None: one."""
    no_group: str | None = None
    """What a change has as `group` to remove that of the job."""

    @abstractmethod
    def put(self, job_id: str | None = "a", body: Any = None, *, topic: str | None = None, **fields: Any) -> Job:
        """Put a job; `fields` as in `POST /jobs`, instants as text."""

    @abstractmethod
    def put_batch(self, jobs: Sequence[Mapping[str, Any]]) -> list[Result]:
        """Put jobs; each is of `topic` unless it names another."""

    @abstractmethod
    def pop(self, count: int = 1, *, topics: Sequence[str] = (), wait: float = 0, **query: Any) -> list[Job]:
        """Pop from `topic`, or from `topics`."""

    @abstractmethod
    def get(self, job_id: str = "a") -> Job: ...

    @abstractmethod
    def wait(self, job_id: str = "a", *, seconds: float = 60, until: str = "end", after: float | None = None) -> Job:
        """The job when it has ended, has a progress from later than `after`, or after so many seconds."""

    @abstractmethod
    def waits(self) -> int:
        """How many calls wait for jobs."""

    @abstractmethod
    def change(self, job_id: str, **fields: Any) -> Job: ...

    @abstractmethod
    def cancel(self, job_id: str, *, if_reserved: str = "cancel", follow_up: str = "cancel") -> str:
        """Returns the state that the job had."""

    @abstractmethod
    def cancel_batch(self, items: Sequence[Mapping[str, Any]]) -> list[Result]: ...

    @abstractmethod
    def finish(
        self,
        job_id: str,
        receipt: str | None = None,
        *,
        result: Any = None,
        put: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """`receipt` None: whichever delivery is live, here and below."""

    @abstractmethod
    def release(self, job_id: str, receipt: str | None = None, **fields: Any) -> Job:
        """Returns the new `state`, `attempts` and `due_at`."""

    @abstractmethod
    def touch(
        self, job_id: str, receipt: str | None = None, *, ttr: float | None = None, progress: Any = None
    ) -> float:
        """Returns the end of the lease. A `progress` of None is none."""

    @abstractmethod
    def bury(self, job_id: str, receipt: str | None = None, *, error: str | None = None) -> None: ...

    @abstractmethod
    def on_deliveries(
        self, verb: str, items: Sequence[Mapping[str, Any]], *, consumer: str | None = None
    ) -> list[Result]:
        """Finish, check or return many deliveries; return only those of `consumer`."""

    @abstractmethod
    def set_topic(self, **settings: Any) -> None: ...

    @abstractmethod
    def view(self) -> Mapping[str, Any]:
        """The topic: `counts`, `paused`, `settings`."""

    @abstractmethod
    def pause(self) -> None: ...

    @abstractmethod
    def resume(self) -> None: ...

    @abstractmethod
    def groups(self, order: str | None = None) -> list[Mapping[str, Any]]:
        """The groups of the topic: `group`, `ready`, `reserved`, `delayed`, `oldest_ready_age`, `paused`."""

    @abstractmethod
    def pause_group(self, group: str, *, resume: bool = False) -> Mapping[str, Any]:
        """Pause or resume it; returns it as `groups` does."""

    @abstractmethod
    def jobs(self, state: str | None = None) -> list[Job]:
        """All jobs of the topic, in a state."""

    @abstractmethod
    def redrive(self, ids: Sequence[str] | None = None, *, limit: int = 1000, **conditions: str) -> int: ...

    @abstractmethod
    def purge(self, state: str | None = None, **conditions: str) -> int: ...

    @abstractmethod
    def preview(self, verb: str, **conditions: str) -> Job:
        """What a redrive or purge would do: `matched`, `complete`, `cutoff`, and `samples`, the ids of some jobs."""

    @abstractmethod
    def on_selected(self, verb: str, **call: Any) -> Job:
        """Cancel or reschedule jobs, with the fields of the request."""

    @abstractmethod
    def begin_task(self, verb: str, **call: Any) -> Job:
        """Begin to cancel, reschedule, redrive or purge; the latter two jobs of `topic`."""

    @abstractmethod
    def task(self, task_id: str, verb: str = "") -> Job:
        """The task; `stop` stops it."""

    @abstractmethod
    def put_schedule(self, *, only_new: bool = False, **fields: Any) -> Job:
        """Put a schedule named `topic`, for `topic` unless another one is given."""

    @abstractmethod
    def schedule(self, verb: str = "") -> Job:
        """The schedule named `topic`; or pause, resume, run or delete it."""

    @abstractmethod
    def preview_runs(self, count: int, **definition: Any) -> list[str]:
        """Runs to come in their zone, of a definition or of the schedule named `topic`."""

    @abstractmethod
    def put_calendar(self, *windows: Mapping[str, Any]) -> None:
        """Put a calendar named `topic`."""

    @abstractmethod
    def calendar(self) -> list[Mapping[str, Any]]:
        """Its windows."""

    @abstractmethod
    def delete_calendar(self) -> None: ...

    @abstractmethod
    def set_batch(self, name: str, **fields: Any) -> Job:
        """Create, change or seal a batch, with the fields of the request."""

    @abstractmethod
    def batch(self, name: str) -> Job: ...

    @abstractmethod
    def batches(self) -> list[str]:
        """The names of all batches of the store."""

    @abstractmethod
    def delete_batch(self, name: str, *, if_reserved: str = "cancel") -> int:
        """Returns how many jobs were cancelled."""

    @abstractmethod
    def pass_time(self, seconds: float) -> None:
        """Move the clock of the store, and do what is due by then."""

    # In terms of the others

    def pop_one(self, **query: Any) -> Job:
        """Pop the job that is there."""
        (job,) = self.pop(**query)
        return job

    def pop_all(self, **query: Any) -> list[Job]:
        """Pop until there is nothing; a call may return fewer than there are."""
        found: list[Job] = []
        while jobs := self.pop(1000, **query):
            found += jobs
        return found

    def reserve(self, job_id: str = "a", body: Any = None, **fields: Any) -> Job:
        """Put a job that is due, and pop it; there must be no other."""
        self.put(job_id, body, **fields)
        job = self.pop_one()
        assert job["id"] == job_id
        return job

    def kill(self, job_id: str = "a", error: str = "no use", **fields: Any) -> None:
        """Put a job, pop it and bury it."""
        self.bury(job_id, self.reserve(job_id, **fields)["receipt"], error=error)

    def clean_up(self) -> None:
        """Delete the schedule and the calendar of the test, if there are."""
        for delete in (lambda: self.schedule("delete"), self.delete_calendar):
            with contextlib.suppress(Refused):
                delete()

    def in_each_state(self, **fields: Any) -> tuple[str, ...]:
        """Put a job into each state, with the state as its id, which nobody holds but for `reserved`."""
        self.kill("dead", **fields)
        self.finish("finished", self.reserve("finished", **{**fields, "retain": 3600})["receipt"])
        self.reserve("reserved", **fields)
        self.put("delayed", delay=600, **fields)
        self.put("ready", **fields)
        return ("dead", "finished", "reserved", "delayed", "ready")

    def state(self, job_id: str = "a") -> str:
        state: str = self.get(job_id)["state"]
        return state

    def has(self, job_id: str = "a") -> bool:
        try:
            self.get(job_id)
        except Refused as error:
            assert error.code == "job_not_found"  # noqa: PT017 (any other code must fail the test)
            return False
        return True

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state, without empty states."""
        try:
            counts = self.view()["counts"]
        except Refused as error:
            assert error.code == "topic_not_found"  # noqa: PT017 (as above)
            return {}
        return {state: count for state, count in counts.items() if count}

    def end(self, verb: str, job_id: str, receipt: str | None = None) -> None:
        """Finish, release, touch or bury."""
        getattr(self, verb)(job_id, receipt)


ENDS = ("finish", "release", "touch", "bury")
STALE_RECEIPT = "000000000001.1"
"""A receipt that no delivery has."""
