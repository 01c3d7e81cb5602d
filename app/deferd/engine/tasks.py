"""Tasks: actions on many jobs that run in the background. Any process runs them, also those that another one left.

A process keeps a task by a lease of 5 s, which it extends each second. When it does not, another one goes on within
some seconds. That acts on no job twice, and on no other: each step is one script, which acts only on jobs that were
there at the task's cutoff, and it finds those that are left. A reschedule notes each job that it moved, in the step
that moves it. What the steps have done is counted by the scripts too. So even two processes that both believe that they
run a task, because one was suspended, do no harm.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Literal, Protocol

import orjson

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.errors import RateLimited, StoreUnavailable, TaskNotFound, TopicNotFound
from deferd.contract.model import JobState
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.activity_list import ActivityList, Change
from deferd.engine.bulk_actions import BulkActions, SelectedTask, forget_key
from deferd.engine.job_batches import BulkThrottle
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts, request_ending_at
from deferd.engine.topic_sweeps import STEPS, Pace, Sweep, TopicSweeps, Turns
from deferd.engine.undos import name_of
from deferd.store.task_cancellation import cancel_and_wait

_LOG = logging.getLogger("deferd.engine.tasks.task_runner")  # logs are filtered by the name
LEASE_MS = 5000
RUNNING_MAX = 10
RUNNING_MAX_OF_KEY = 3
"""Keeps one key from using up the limit of all keys."""
KEPT = 1000
KEPT_MS = 7 * 86_400_000
_NOTED_MS = 2 * KEPT_MS
"""For how long quotas look for a task: it is kept for KEPT_MS after its end."""
REPEATED_MS = 3_600_000
"""For how long after its end a task is what a repetition of its call gets."""
TaskState = Literal["running", "done", "stopped", "failed"]
_LOOK_EVERY_S = 2.0
_NOTE_EVERY_S = 1.0
_RETRY_S = 1.0
_LEASE_S = LEASE_MS / 1000
_FORGOTTEN_AFTER_S = 600.0
"""When what the scripts have noted of a task that has ended is deleted: a process that was suspended may still make the
step that it was about to make.
"""
_EXPIRES_AFTER_MS = 660_000
"""When it expires if no process deletes it. That may block the store, as it has a field for each job."""
_FORGOTTEN_LATER = 1000
"""Most tasks of which a process remembers what to delete."""


class TaskRunner:
    """Begins tasks and runs them; `run` takes over tasks that other processes have left."""

    def __init__(self, tasks: TaskStore, actions: TaskActions, activity: ActivityList) -> None:
        self._tasks = tasks
        self._actions = actions
        self._activity = activity
        self._owner = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._running: dict[str, asyncio.Task[None]] = {}
        self._to_forget: deque[tuple[float, TaskAction]] = deque(maxlen=_FORGOTTEN_LATER)

    async def begin(self, task_id: str, spec: dict[str, Any], key_name: str | None = None) -> Task:
        """Begin a task with this id for a key, unless one runs or ended within an hour; returns it.

        Raises RateLimited, StoreUnavailable.
        """
        if await self._tasks.begin(task_id, spec, self._owner, key_name):
            task = await self._tasks.get(task_id)
            self._work_on(task)
            return task
        return await self._tasks.get(task_id)

    async def run(self) -> None:
        """Take over what other processes have left, until cancelled. Errors of the store are waited out."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                await self.look()
                await self.forget_ended()
            except StoreUnavailable as exc:
                _LOG.debug("tasks could not be looked for: %s", exc)
            except Exception:  # noqa: BLE001 (one that cannot be read must not keep the others from being run)
                _LOG.exception("tasks could not be looked for")

    async def look(self) -> None:
        """Take over the tasks that no process keeps."""
        for task in await self._tasks.claim(self._owner):
            self._work_on(task)

    async def close(self) -> None:
        """End the work in this process; other processes go on with it, or this one when it starts again."""
        await cancel_and_wait(list(self._running.values()))

    def _work_on(self, task: Task) -> None:
        if task.id not in self._running:
            with request_ending_at(inf):  # it outlives the request that begins it
                work = self._running[task.id] = asyncio.create_task(self._work(task), name=f"deferd-task-{task.id}")
            work.add_done_callback(lambda _: self._running.pop(task.id, None))

    async def _work(self, task: Task) -> None:
        progress = _Progress(self._tasks, task, self._owner)
        noting = asyncio.create_task(progress.keep_noting())
        state: TaskState = "failed"
        action: TaskAction | None = None
        try:
            action = self._actions.action_of(task.id, task.spec)
            await self._act(action, progress)
            state = "stopped" if progress.is_to_stop else "done"
        except asyncio.CancelledError:
            await cancel_and_wait([noting])
            await progress.give_up()
            raise
        except Exception:  # noqa: BLE001 (a task that fails each time must not run for ever)
            _LOG.exception("task %s has failed", task.id)
        await cancel_and_wait([noting])
        if not progress.is_lost and await progress.end(state):
            self._record(task, state)
            if action is not None:
                await self._forget(action)

    async def _act(self, action: TaskAction, progress: _Progress) -> None:
        """Do the work until it is done, to be stopped, or another process does it; wait while the store fails."""
        task = progress.task
        while progress.goes_on():
            try:
                task.done = await action.done()
                if task.total is None:
                    counted = await action.count(lambda _: progress.goes_on())
                    if not progress.goes_on():
                        return
                    task.total = counted + task.done
                await action.run(progress.add)
                task.done = await action.done()
            except StoreUnavailable as exc:
                _LOG.info("task %s waits for the store: %s", task.id, exc)
                await asyncio.sleep(_RETRY_S)
            except TopicNotFound:  # all its jobs are gone
                return
            else:
                return

    async def _forget(self, action: TaskAction) -> None:
        self._to_forget.append((time.monotonic() + _FORGOTTEN_AFTER_S, action))
        try:
            await action.forget(_EXPIRES_AFTER_MS)
        except StoreUnavailable as exc:
            _LOG.debug("what a task has noted expires: %s", exc)

    async def forget_ended(self) -> None:
        """Delete what was noted of tasks that ended in this process long enough ago. Raises StoreUnavailable."""
        while self._to_forget and self._to_forget[0][0] <= time.monotonic():
            _, action = self._to_forget.popleft()
            await action.forget(0)

    def _record(self, task: Task, state: TaskState) -> None:
        change = task.spec["change"]
        outcome = "unknown" if state == "failed" else "done"
        self._activity.record(Change(**change, outcome=outcome, subject=task.id, count=task.done))


class _Progress:
    """How far a task is, which is noted in the store each second."""

    def __init__(self, tasks: TaskStore, task: Task, owner: str) -> None:
        self._tasks = tasks
        self._owner = owner
        self.task = task
        self.is_to_stop = False
        self.is_lost = False
        self._kept_until_s = time.monotonic() + _LEASE_S

    def goes_on(self) -> bool:
        """Whether the work goes on.

        It ends on request, and when the lease may have ended while this process was suspended or the store was away.
        """
        if time.monotonic() > self._kept_until_s:
            self.is_lost = True
        return not self.is_to_stop and not self.is_lost

    def add(self, jobs: int) -> bool:
        """Count jobs. Returns whether the work goes on."""
        self.task.done += jobs
        return self.goes_on()

    async def keep_noting(self) -> None:
        while self.goes_on():
            asked_at_s = time.monotonic()
            try:
                reply = await self._tasks.extend(self.task, self._owner)
            except StoreUnavailable as exc:
                _LOG.debug("the progress of task %s could not be noted: %s", self.task.id, exc)
            else:
                self.is_to_stop = reply == 2
                self.is_lost = reply == 0
                self._kept_until_s = asked_at_s + _LEASE_S
            await asyncio.sleep(_NOTE_EVERY_S)

    async def give_up(self) -> None:
        try:
            await self._tasks.extend(self.task, self._owner, gives_up=True)
        except StoreUnavailable as exc:
            _LOG.debug("task %s is taken over when its lease ends: %s", self.task.id, exc)

    async def end(self, state: TaskState) -> bool:
        while True:
            try:
                return await self._tasks.end(self.task, self._owner, state)
            except StoreUnavailable as exc:
                _LOG.debug("the end of task %s could not be noted: %s", self.task.id, exc)
                await asyncio.sleep(_RETRY_S)


OnStep = Callable[[int], bool]
"""Called with the jobs of each step; when it returns False the work ends."""


class TaskAction(Protocol):
    """The work of one task. Each method raises StoreUnavailable and may be called again; `run` then does the rest."""

    async def done(self) -> int:
        """How many jobs were changed, by all processes that ran the task."""

    async def count(self, on_step: OnStep) -> int:
        """How many jobs are left to change."""

    async def run(self, on_step: OnStep) -> None:
        """Change them."""

    async def forget(self, after_ms: int) -> None:
        """Delete what the scripts have noted after so long, 0: now."""


class TaskActions:
    """Makes the actions of tasks: cancel or reschedule selected jobs, redrive or purge jobs of a topic.

    Of a task's spec, `kind` is one of `cancel`, `reschedule`, `redrive` and `purge`, and `cutoff` and `begun` are
    instants in ms. The first two have `call`, the JSON object of the request, and `visible`, the topics that the caller
    may see, or null; a cancel that keeps what it cancels has `undo`, its `request_id`. The others have `sweep`, the
    fields of a Sweep. `limit` is the most jobs, or null. `key` is the name of the API key that began it, or null.
    """

    def __init__(
        self, scripts: Scripts, keys: Keys, bulk: BulkActions, sweeps: TopicSweeps, throttle: BulkThrottle
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._bulk = bulk
        self._sweeps = sweeps
        self._throttle = throttle

    def action_of(self, task_id: str, spec: dict[str, Any]) -> TaskAction:
        """The action of a task. Raises ValueError, KeyError or TypeError for one that this release does not know."""
        kind, cutoff_ms, limit = spec["kind"], spec["cutoff"], spec["limit"]
        request = request_of(task_id, spec)
        if kind in {"cancel", "reschedule"}:
            model = CancelSelected if kind == "cancel" else RescheduleSelected
            visible = None if spec["visible"] is None else TopicPatterns(spec["visible"])
            call = model.model_validate(spec["call"])
            times = (KEPT_MS, cutoff_ms, spec["begun"])
            undo = None if spec.get("undo") is None else name_of(spec.get("key"), spec["undo"])
            return SelectedTask(self._bulk, call, visible, request, *times, limit, spec.get("key"), undo)
        fields = dict(spec["sweep"])
        ids, state = fields.pop("ids", None), fields.pop("state", None)
        sweep = Sweep(
            verb=kind,
            ids=None if ids is None else tuple(ids),
            state=None if state is None else JobState(state),
            cutoff_ms=cutoff_ms,
            limit=limit,
            **fields,
        )
        return _Swept(self, sweep, request)

    async def now_ms(self, shards: list[int]) -> int:
        """The earliest time among the clocks of these shards. Raises StoreUnavailable."""
        times = [await self._scripts.run("now", (self._keys.of_shard(shard, "due"),), ()) for shard in shards]
        return int(min(times))


def request_of(task_id: str, spec: dict[str, Any]) -> str:
    """The name under which the scripts note what a task does: an hour after its end another task may have its id."""
    return f"{spec['kind']}/task/{task_id}/{spec['begun']}"


class _Swept:
    """Redrives or purges jobs of a topic."""

    def __init__(self, actions: TaskActions, sweep: Sweep, request: str) -> None:
        self._actions = actions
        self._sweep = sweep
        self._request = request
        self._turns = None if sweep.rate is None else Turns(sweep.rate)

    def _pace(self, on_step: OnStep, *, is_named: bool) -> Pace:
        slot, jobs = self._actions._throttle.slot, STEPS[self._sweep.verb]
        if not is_named:
            return Pace(jobs, slot, on_step=on_step)
        return Pace(jobs, slot, self._request, KEPT_MS, on_step, self._turns)

    async def _left(self) -> Sweep:
        if self._sweep.limit is None:
            return self._sweep
        return self._sweep.with_limit(max(self._sweep.limit - await self.done(), 0))

    async def done(self) -> int:
        return await self._actions._sweeps.count_of(self._sweep.topic, self._request)

    async def count(self, on_step: OnStep) -> int:
        pace = self._pace(on_step, is_named=False)
        return (await self._actions._sweeps.preview(await self._left(), 0, pace)).matched

    async def run(self, on_step: OnStep) -> None:
        await self._actions._sweeps.run(await self._left(), self._pace(on_step, is_named=True))

    async def forget(self, after_ms: int) -> None:
        for key in await self._actions._sweeps.request_keys(self._sweep.topic, self._request):
            await forget_key(self._actions._scripts, key, after_ms)


@dataclass(slots=True)
class Task:
    """A task. `spec` is what it does and for whom, as its creator stored it.

    `done` of `total` jobs were changed so far; `total` is None until they are counted.
    """

    id: str
    spec: dict[str, Any]
    state: TaskState
    started_ms: int
    done: int = 0
    total: int | None = None
    ended_ms: int | None = None


class TaskStore:
    """Stores tasks, and which process runs each. All of them are in shard 0.

    The fields of `task/<id>`: `state`, `started` and `ended` in ms, `key`, the name of the key that began it, `owner`,
    the process that runs it, `stop`, 1 when it is to end, `done` and `total`, numbers of jobs, and `spec`, a JSON
    object with the rest.
    """

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._tasks = keys.of_shard(0, "tasks")
        self._running = keys.of_shard(0, "tasks/running")
        self._keys = keys

    def _key(self, task_id: str) -> str:
        return self._keys.of_shard(0, f"task/{task_id}")

    async def begin(self, task_id: str, spec: dict[str, Any], owner: str, key_name: str | None = None) -> bool:
        """Store a task that `owner` runs. Returns False when there is one with this id, which stays.

        One that ended more than REPEATED_MS ago gives way to the new one. `key_name` is the key that begins it.

        Raises:
            RateLimited: RUNNING_MAX tasks run, or RUNNING_MAX_OF_KEY of the key.
        """
        bounds = (task_id, LEASE_MS, RUNNING_MAX, KEPT, REPEATED_MS, key_name or "", RUNNING_MAX_OF_KEY, _NOTED_MS)
        args = (*bounds, "owner", owner, "spec", orjson.dumps(spec))
        keys = (self._tasks, self._running, self._key(task_id), *self._keys.of_caller(0, key_name))
        begun = await self._scripts.run("task_begin", keys, args)
        if begun == -2:
            text = f"key {key_name!r} runs {RUNNING_MAX_OF_KEY} tasks already, the most of one key"
            raise RateLimited(f"{text}: wait for one to end, or stop one", LEASE_MS // 1000)
        if begun < 0:
            raise RateLimited(f"{RUNNING_MAX} tasks run already: wait for one to end, or stop one", LEASE_MS // 1000)
        return bool(begun)

    async def get(self, task_id: str) -> Task:
        """Return a task. Raises TaskNotFound."""
        found = await self._read(1, task_id)
        if not found:
            raise TaskNotFound(task_id)
        return found[0]

    async def newest(self, most: int) -> list[Task]:
        """The tasks that began last, the newest first."""
        return await self._read(most)

    async def _read(self, most: int, *ids: str) -> list[Task]:
        rows = await self._scripts.run("tasks", (self._tasks,), (most, *ids))
        return [_task(task_id.decode(), raw) for task_id, raw in zip(rows[::2], rows[1::2], strict=True)]

    async def forget_ended(self) -> None:
        """Delete the tasks that have ended, for tests. Raises StoreUnavailable."""
        for task in await self.newest(KEPT):
            if task.state != "running":
                await self._scripts.write("UNLINK", self._key(task.id))
                await self._scripts.write("ZREM", self._tasks, task.id)

    async def stop(self, task_id: str) -> None:
        """Ask for the end of a task. One that has ended stays as it is. Raises TaskNotFound."""
        if await self._scripts.run("task_stop", (self._key(task_id),), ()) == b"":
            raise TaskNotFound(task_id)

    async def claim(self, owner: str) -> list[Task]:
        """Take over the tasks whose process has not extended its lease."""
        claimed = await self._scripts.run("task_claim", (self._running,), (owner, LEASE_MS))
        return await self._read(len(claimed), *(task_id.decode() for task_id in claimed)) if claimed else []

    async def extend(self, task: Task, owner: str, *, gives_up: bool = False) -> int:
        """Record the progress of a task, and extend its lease to LEASE_MS or give the task up.

        Returns 1, or 2 when it should stop, or 0 when `owner` does not run it any more.
        """
        return await self._note(task, owner, 0 if gives_up else LEASE_MS, "running")

    async def end(self, task: Task, owner: str, state: TaskState) -> bool:
        """End the task. Returns False when `owner` does not run it any more."""
        return await self._note(task, owner, LEASE_MS, state) > 0

    async def _note(self, task: Task, owner: str, lease_ms: int, state: str) -> int:
        counted = () if task.total is None else ("total", task.total)
        args = (task.id, owner, lease_ms, state, KEPT_MS, "done", task.done, *counted)
        reply: int = await self._scripts.run("task_progress", (self._running, self._key(task.id)), args)
        return reply


def _task(task_id: str, raw: Any) -> Task:
    fields = {name.decode(): value for name, value in zip(raw[::2], raw[1::2], strict=True)}
    total, ended = fields.get("total"), fields.get("ended")
    return Task(
        task_id,
        orjson.loads(fields["spec"]),
        fields["state"].decode(),
        int(fields["started"]),
        int(fields.get("done", 0)),
        None if total is None else int(total),
        None if ended is None else int(ended),
    )
