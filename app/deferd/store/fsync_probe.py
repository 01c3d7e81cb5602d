"""How durable a store makes every write by itself, before it answers: what a put reaches without asking for more."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from deferd.store.durability_levels import FSYNC, MEMORY
from deferd.store.pipeline import Pipeline

_TRUSTED_FOR_S = 1.0
_CONFIG = ("CONFIG", "GET", "*append*")
_STATE = ("INFO", "persistence")
_FSYNC_BEFORE_ANSWERS = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}


class GivenLevel:
    """FSYNC of a server that says of itself that it fsyncs before it answers, else MEMORY.

    That can change at any time (CONFIG SET, a failover), so it is asked about again on each new connection, and once a
    second while there are puts. It says MEMORY of a cluster, which has no one pipeline, and of a server that does not
    let its configuration be read.

    A server whose append-only file was switched on, by CONFIG SET or (Redis 7.0) after the full sync of a replica,
    fsyncs into a part that it does not load before its first rewrite has ended, and does not say that a rewrite is the
    first. So with a rewrite under way it counts as MEMORY, unless it was FSYNC on the same connection before.
    """

    def __init__(self, pipeline: Pipeline | None) -> None:
        self._pipeline = pipeline
        self._level = MEMORY
        self._why_not = "a cluster is not asked whether it fsyncs before it answers"
        self._learned_on = 0
        self._ask_at_s = 0.0
        self._asking: asyncio.Future[Any] | None = None
        self._always_had_its_file = False
        self._had_its_file_on = 0
        self._is_rewriting = False

    @property
    def level(self) -> int:
        """As the server said last on the present connection.

        Right after the answer of a call that `look_again` went ahead of, it is true of that call.
        """
        pipeline = self._pipeline
        return self._level if pipeline is not None and self._learned_on == pipeline.opened else MEMORY

    @property
    def why_not(self) -> str:
        """Why the level is not FSYNC."""
        return self._why_not

    @property
    def may_rise(self) -> bool:
        """Whether it is MEMORY only until the server has rewritten its append-only file."""
        return self._is_rewriting and self.level < FSYNC

    def trust_rewrites(self) -> None:
        """The server was started with its append-only file and is nobody's replica: no rewrite is its first."""
        self._always_had_its_file = True

    def look_again(self) -> None:
        """Ask if it is time to; the answer comes ahead of those of calls that are begun after this."""
        pipeline = self._pipeline
        if pipeline is None or (self._asking is not None and not self._asking.done()):
            return
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._ask_at_s or self._learned_on != pipeline.opened or not pipeline.is_open:
            self._ask_at_s = now_s + _TRUSTED_FOR_S
            self._asking = self._begin(pipeline)

    async def ask(self) -> int:
        """The level as it is now. Raises redis-py's errors when the server does not answer."""
        if self._pipeline is not None:
            try:
                await self._begin(self._pipeline)
            except ResponseError as error:
                if not _is_final(error):
                    raise
        return self.level

    def _begin(self, pipeline: Pipeline) -> asyncio.Future[Any]:
        """Ask; done once the level is learned. The state is asked second, so that a file that is on is on in both."""
        config = pipeline.begin(*_CONFIG)
        state = pipeline.begin(*_STATE)
        state.add_done_callback(lambda state: self._learn(pipeline, config, state))
        return state

    def _learn(self, pipeline: Pipeline, config: asyncio.Future[Any], state: asyncio.Future[Any]) -> None:
        """Called when both have answered: `config` does first."""
        if state.cancelled():  # its caller has gone
            config.add_done_callback(asyncio.Future.exception)
            return
        errors = config.exception(), state.exception()
        error = errors[0] or errors[1]
        ask_at_s = asyncio.get_running_loop().time() + _TRUSTED_FOR_S
        if error is None:
            self._judge(_config_of(config.result()), _fields_of(state.result()), pipeline)
            self._ask_at_s = ask_at_s
        elif isinstance(error, RedisError):
            self._level = MEMORY
            self._is_rewriting = False
            if isinstance(error, ResponseError):
                self._why_not = "the store does not let it be known whether it fsyncs before it answers (CONFIG GET)"
                # Where it will never tell, each try would be one more line in its log.
                self._ask_at_s = float("inf") if _is_final(error) else ask_at_s
        self._learned_on = pipeline.opened

    def _judge(self, config: dict[str, str], state: dict[str, str], pipeline: Pipeline) -> None:
        wanted = _FSYNC_BEFORE_ANSWERS.items()
        lacks = [f"{name} is {config.get(name)}" for name, value in wanted if config.get(name) != value]
        has_its_file = self._always_had_its_file or self._had_its_file_on == pipeline.opened
        self._is_rewriting = not lacks and not has_its_file and _rewrites(state)
        if lacks:
            self._level = MEMORY
            self._had_its_file_on = 0
            self._why_not = f"the store does not fsync before it answers ({', '.join(lacks)})"
        elif self._is_rewriting:
            self._level = MEMORY
            self._why_not = "the store rewrites its append-only file, which may be its first"
        else:
            self._level = FSYNC
            self._had_its_file_on = pipeline.opened


def _is_final(error: Exception) -> bool:
    return isinstance(error, NoPermissionError) or "unknown command" in str(error)


def _rewrites(state: dict[str, str]) -> bool:
    """Whether a rewrite of the append-only file runs, or is to run, or is tried again because it failed."""
    return (
        state.get("aof_rewrite_in_progress") != "0"
        or state.get("aof_rewrite_scheduled") != "0"
        or state.get("aof_last_bgrewrite_status") != "ok"
    )


def _config_of(answer: list[bytes]) -> dict[str, str]:
    told = [part.decode() for part in answer]
    return dict(zip(told[::2], told[1::2], strict=True))


def _fields_of(answer: bytes) -> dict[str, str]:
    lines = (line.partition(":") for line in answer.decode().splitlines())
    return {name: value for name, _, value in lines}
