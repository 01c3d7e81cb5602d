"""Pushed topics in the store: how their jobs are pushed, the state of their targets, and what may be sent now."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput, PushNotFound
from deferd.contract.operations.push import CircuitState, SetPush
from deferd.engine.queue import JobQueue, PopRequest
from deferd.engine.record import JobRecord, json_bytes
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

COUNTED_MS = 10_000
"""How long requests under way count when their process, perhaps killed, does not report them again."""
OPENS_AFTER = 5
"""Failures in a row after which the circuit of a target opens."""
FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1000, 60_000
"""How long it is open at first and at most; each failed probe doubles the pause."""
_NONE, _TOO_MANY, _IS_PARTITIONED = -1, -2, -3
_CONSUMER_ID_BYTES = 4


class PushListener(Protocol):
    """What a pushing process needs to know. Signals may be lost; `on_gap` reports it."""

    def on_ready(self, topic: str) -> None:
        """`topic` may have something ready."""

    def on_change(self, topic: str) -> None:
        """The push of `topic` was set or removed."""

    def on_removed(self, topic: str, job_id: str) -> None:
        """A job of a pushed topic was cancelled while it was held."""

    def on_gap(self) -> None:
        """Signals may have been lost."""


class Taken(NamedTuple):
    """What a process may send now.

    `more`: the topic may have further ready jobs. `wait_ms`: for how long the limits or the circuit allow no further
    request; 0 when they do, -1 while all are under way. `is_probe`: the jobs are to be one request that probes a target
    that failed. `failures`: failures in a row.
    """

    jobs: list[JobRecord]
    now_ms: int
    more: bool
    wait_ms: int
    is_probe: bool
    failures: int


class PushStore:
    """The pushes of topics in the store. `label` gives the metric label of a topic.

    `process` names this process in the store.
    """

    def __init__(self, scripts: Scripts, keys: Keys, queue: JobQueue, label: Callable[[str], str]) -> None:
        self._scripts = scripts
        self._keys = keys
        self._queue = queue
        self.label = label
        self.process = os.urandom(_CONSUMER_ID_BYTES).hex()
        self.consumer = f"push-{self.process}"

    async def set(self, topic: str, push: SetPush) -> bool:
        """Set how the jobs of a topic are pushed; True when they were not pushed before. Makes the topic known.

        Without secrets, those that are stored stay. The circuit is closed.

        Raises:
            InvalidInput: there are no secrets, or as many pushed topics in the topic's shard as there may be.
        """
        reply = await self._run(
            "push_set",
            topic,
            settings_flag(push),
            " ".join(push.secrets),
            stored_text(push),
            limits.PUSHED_TOPICS_MAX,
        )
        if reply == _NONE:
            message = "is required: the topic has no secrets that could be kept"
            raise InvalidInput([FieldError(("body", "secrets"), message)])
        if reply == _TOO_MANY:
            message = f"would be one pushed topic more than a shard may have, {limits.PUSHED_TOPICS_MAX}"
            raise InvalidInput([FieldError(("path", "topic"), message, topic)])
        if reply == _IS_PARTITIONED:
            message = "is a topic with several partitions, whose jobs cannot be pushed"
            raise InvalidInput([FieldError(("path", "topic"), message, topic)])
        return bool(reply)

    async def get(self, topic: str) -> PushDefinition:
        """Return how the jobs of a topic are pushed. Raises PushNotFound."""
        stored, _ = await self._run("push_get", topic)
        if not stored:
            raise PushNotFound(topic)
        return PushDefinition.read(topic, stored)

    async def remove(self, topic: str) -> None:
        """Stop pushing: consumers can pop the jobs again. Requests under way end as they would. Raises PushNotFound."""
        if await self._run("push_set", topic, "", "", "", limits.PUSHED_TOPICS_MAX) == _NONE:
            raise PushNotFound(topic)

    async def all(self) -> dict[str, bytes]:
        """What the store has of all pushed topics, by topic, for `PushDefinition.read`."""
        found: dict[str, bytes] = {}
        for shard in range(self._keys.shards):
            stored = await self._scripts.command("HGETALL", self._keys.of_shard(shard, "push"))
            pairs = zip(stored[::2], stored[1::2], strict=True)
            found |= {topic.decode(errors="replace"): value for topic, value in pairs}
        return found

    async def take(self, topic: str, *, under_way: int, most: int, timeout_ms: int) -> Taken | None:
        """Hand out ready jobs for at most `most` further requests, fewer if the limits of the push are reached.

        `under_way` are the requests of this process, which count for `COUNTED_MS`. A request ends within `timeout_ms`.
        Returns None when the topic is not pushed.
        """
        request = PopRequest(most, None, self.consumer)
        await self._queue.wait_turn(topic)
        reply = await self._run(
            "push_take",
            topic,
            self._queue.dead_retention_ms,
            self.process,
            under_way,
            COUNTED_MS,
            most,
            self.consumer,
            timeout_ms,
            LONGEST_PAUSE_MS,
        )
        if reply is None:
            return None
        popped, wait_ms, is_probe, failures = reply
        if not popped:
            return Taken([], 0, True, wait_ms, False, failures)
        read = self._queue.read_pop(topic, [request], popped)
        return Taken(read.jobs[0], popped[0], read.more, wait_ms, bool(is_probe), failures)

    async def note_success(self, topic: str) -> None:
        """The target responds: its circuit is closed."""
        await self._run("push_note", topic, 1, 0, "", 0, OPENS_AFTER, FIRST_PAUSE_MS, LONGEST_PAUSE_MS)

    async def note_failure(self, topic: str, error: str, *, is_probe: bool, pause_ms: int) -> int:
        """The target failed.

        Returns for how many ms its circuit is open now, 0 when it is closed or the topic is not pushed. `pause_ms` is
        the pause that the target asked for, 0 for none.
        """
        shortest_ms = min(pause_ms, LONGEST_PAUSE_MS)
        args = (0, int(is_probe), error, shortest_ms, OPENS_AFTER, FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
        reply = await self._run("push_note", topic, *args)
        return 0 if reply is None else int(reply[1])

    async def give_up_probe(self, topic: str) -> None:
        """The request that probed the target ended without a result: another one may probe."""
        await self._run("push_note", topic, 0, 2, "", 0, OPENS_AFTER, FIRST_PAUSE_MS, LONGEST_PAUSE_MS)

    async def _run(self, verb: str, topic: str, *args: str | bytes | float) -> Any:
        return await self._scripts.run(verb, self._keys.of_topic(topic), (topic, *args))


@dataclass(frozen=True, slots=True)
class PushDefinition:
    """The push of one topic. `stored` tells one version from another."""

    topic: str
    push: SetPush
    secrets: tuple[str, ...] = field(repr=False)
    stored: bytes = field(repr=False)

    @classmethod
    def read(cls, topic: str, stored: bytes) -> PushDefinition:
        """Read what `lua/push_set.lua` has stored. Raises ValueError, which never quotes a secret."""
        secrets, _, rest = stored.partition(b"\n")
        return cls(topic, SetPush.model_validate_json(rest), tuple(secrets.decode().split()), stored)


def stored_text(push: SetPush) -> bytes:
    """The JSON of all but the secrets."""
    return json_bytes(push.model_dump(exclude={"secrets"}, exclude_defaults=True))


def settings_flag(push: SetPush) -> bytes:
    """The value of `pu` in the settings of the topic: what the scripts need."""
    flag: dict[str, Any] = {"n": push.max_in_flight, "j": push.jobs_per_request}
    if push.rate is not None:
        flag["r"] = push.rate
    return json_bytes(flag)


@dataclass(frozen=True, slots=True)
class TargetState:
    """The state of the target of a pushed topic.

    `open_until_ms`: the circuit is open until then; while it is half open, None. `in_flight`: requests under way in all
    processes.
    """

    circuit: CircuitState = "closed"
    failures: int = 0
    in_flight: int = 0
    open_until_ms: int | None = None
    last_error: str | None = None
    last_error_at_ms: int | None = None

    @classmethod
    def read_reply(cls, reply: Sequence[bytes], now_ms: int) -> TargetState:
        """Read the fields and values of `push/state`, one after the other, as the store returns them."""
        texts = [part.decode(errors="replace") for part in reply]
        return cls.read(dict(zip(texts[::2], texts[1::2], strict=True)), now_ms)

    @classmethod
    def read(cls, fields: Mapping[str, str], now_ms: int) -> TargetState:
        """Read the fields of `push/state`, which `lua/push_take.lua` describes."""
        in_flight = 0
        for name, value in fields.items():
            if name.startswith("in/"):
                requests, _, until_ms = value.partition(" ")
                in_flight += int(requests) if int(until_ms) > now_ms else 0
        open_until_ms = int(fields["until"]) if "until" in fields else None
        circuit: CircuitState = "closed"
        if open_until_ms is not None:
            circuit = "open" if now_ms < open_until_ms and "probe" not in fields else "half_open"
        return cls(
            circuit,
            int(fields.get("failures", 0)),
            in_flight,
            open_until_ms if circuit == "open" else None,
            fields.get("error"),
            int(fields["at"]) if "at" in fields else None,
        )
