"""Runs the tasks that begin in this process, and tasks whose process has ended.

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
from math import inf
from typing import Any

from deferd.contract.errors import StoreUnavailable, TopicNotFound
from deferd.engine.activity_list import ActivityList, Change
from deferd.engine.request_end import request_ending_at
from deferd.engine.tasks.task_actions import TaskAction, TaskActions
from deferd.engine.tasks.task_store import LEASE_MS, Task, TaskState, TaskStore
from deferd.store.task_cancellation import cancel_and_wait

_LOG = logging.getLogger(__name__)
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
