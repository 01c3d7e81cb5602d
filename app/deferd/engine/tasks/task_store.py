"""Tasks in the store. All of them are in shard 0.

The fields of `task/<id>`: `state`, `started` and `ended` in ms, `key`, the name of the key that began it, `owner`, the
process that runs it, `stop`, 1 when it is to end, `done` and `total`, numbers of jobs, and `spec`, a JSON object with
the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import orjson

from deferd.contract.errors import RateLimited, TaskNotFound
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

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
_LEASE_S = LEASE_MS // 1000
TaskState = Literal["running", "done", "stopped", "failed"]


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
    """Stores tasks, and which process runs each."""

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
            raise RateLimited(f"{text}: wait for one to end, or stop one", _LEASE_S)
        if begun < 0:
            raise RateLimited(f"{RUNNING_MAX} tasks run already: wait for one to end, or stop one", _LEASE_S)
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
