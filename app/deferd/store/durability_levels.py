"""Durability levels as numbers, the more durable the higher: 0 `memory`, 1 `fsync`, 1 + N `replicated:N`."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from deferd.store.pipeline import Pipeline
from deferd.store.server_info import fields_of_info

MEMORY = 0
FSYNC = 1
_NAMES = ("memory", "fsync")
_REPLICATED = "replicated:"


def is_replicated(level: int) -> bool:
    """Whether the level requires replicas."""
    return level > FSYNC


def replicas_of(level: int) -> int:
    """How many replicas the level requires."""
    return max(level - FSYNC, 0)


def name_of(level: int) -> str:
    """The level's name in the contract."""
    return _NAMES[level] if level <= FSYNC else f"{_REPLICATED}{replicas_of(level)}"


def level_named(name: str) -> int:
    """The level of a name that `deferd.contract.model.Durability` accepts."""
    return FSYNC + int(name.removeprefix(_REPLICATED)) if name.startswith(_REPLICATED) else _NAMES.index(name)


_VALID_S = 1.0
_CONFIG_COMMAND = ("CONFIG", "GET", "*append*")
_STATE_COMMAND = ("INFO", "persistence")
_FSYNC_BEFORE_REPLY = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}


class StoreDurability:
    """FSYNC when the server's configuration shows that it fsyncs before it replies, otherwise MEMORY.

    The configuration can change at any time (CONFIG SET, a failover). It is read again on each new connection, and once
    a second while there are puts. The level is MEMORY for a server that does not allow its configuration to be read,
    and without a pipeline, for one that is not known yet. `place` names the server in errors.

    When the append-only file is switched on, by CONFIG SET or (Redis 7.0) after the full sync of a replica, the server
    fsyncs into a part that it loads only once its first rewrite has ended, and INFO does not show which rewrite is the
    first. So the level is MEMORY during a rewrite, unless it was FSYNC on the same connection before.
    """

    def __init__(self, pipeline: Pipeline | None, place: str = "the store") -> None:
        self._pipeline = pipeline
        self._place = place
        self._level = MEMORY
        self.why_not = f"{place} has not responded yet"
        """Why the level is not FSYNC, for error texts."""
        self._probed_on = 0
        self._probe_at_s = 0.0
        self._pending: asyncio.Future[Any] | None = None
        self._started_with_file = False
        self._had_file_on = 0
        self._rewrite_running = False

    @property
    def level(self) -> int:
        """The level last read on the current connection.

        Right after the reply to a call before which `refresh` was called, it holds for that call.
        """
        pipeline = self._pipeline
        return self._level if pipeline is not None and self._probed_on == pipeline.connections_opened else MEMORY

    @property
    def waits_for_rewrite(self) -> bool:
        """Whether the level is MEMORY only until the server has rewritten its append-only file."""
        return self._rewrite_running and self.level < FSYNC

    def trust_rewrites(self) -> None:
        """Declare that the server started with its append-only file and is not a replica: no rewrite is its first."""
        self._started_with_file = True

    def forget_file(self) -> None:
        """The server may have become a replica: its next rewrite may be the first again, on the same connection."""
        self._had_file_on = 0
        self._probe_at_s = self._probe_at_s if self._probe_at_s == float("inf") else 0.0

    def refresh(self) -> None:
        """Read the configuration again if it is due; the level is updated before the replies to later calls come."""
        pipeline = self._pipeline
        if pipeline is None or (self._pending is not None and not self._pending.done()):
            return
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._probe_at_s or self._probed_on != pipeline.connections_opened or not pipeline.is_open:
            self._probe_at_s = now_s + _VALID_S
            self._pending = self._send_probe(pipeline)

    async def probe(self) -> int:
        """Read the level now. Raises redis-py's errors when the server does not respond."""
        if self._pipeline is not None:
            try:
                await self._send_probe(self._pipeline)
            except ResponseError as error:
                if not _is_final(error):
                    raise
        return self.level

    def _send_probe(self, pipeline: Pipeline) -> asyncio.Future[Any]:
        """Read configuration and state; the future is done once the level is known.

        The state is read second, so that a file that is on in the configuration is on in both.
        """
        config = pipeline.send(*_CONFIG_COMMAND)
        state = pipeline.send(*_STATE_COMMAND)
        state.add_done_callback(lambda state: self._on_replies(pipeline, config, state))
        return state

    def _on_replies(self, pipeline: Pipeline, config: asyncio.Future[Any], state: asyncio.Future[Any]) -> None:
        """Called when both replies are there; `config` comes first."""
        if state.cancelled():  # its caller was cancelled
            config.add_done_callback(asyncio.Future.exception)
            return
        errors = config.exception(), state.exception()
        error = errors[0] or errors[1]
        probe_at_s = asyncio.get_running_loop().time() + _VALID_S
        if error is None:
            self._set_level(_config_of(config.result()), fields_of_info(state.result()), pipeline)
            self._probe_at_s = probe_at_s
        elif isinstance(error, RedisError):
            self._level = MEMORY
            self._rewrite_running = False
            if isinstance(error, ResponseError):
                self.why_not = f"{self._place} refuses CONFIG GET, which shows whether it fsyncs before it replies"
                # A final refusal is not tried again: each try would add a line to the store's log.
                self._probe_at_s = float("inf") if _is_final(error) else probe_at_s
        self._probed_on = pipeline.connections_opened

    def _set_level(self, config: dict[str, str], state: dict[str, str], pipeline: Pipeline) -> None:
        required = _FSYNC_BEFORE_REPLY.items()
        wrong = [f"{name} is {config.get(name)}" for name, value in required if config.get(name) != value]
        has_file = self._started_with_file or self._had_file_on == pipeline.connections_opened
        self._rewrite_running = not wrong and not has_file and _is_rewriting(state)
        if wrong:
            self._level = MEMORY
            self._had_file_on = 0
            self.why_not = f"{self._place} does not fsync before it replies ({', '.join(wrong)})"
        elif self._rewrite_running:
            self._level = MEMORY
            self.why_not = f"{self._place} is rewriting its append-only file, which may be its first"
        else:
            self._level = FSYNC
            self._had_file_on = pipeline.connections_opened


def _is_final(error: Exception) -> bool:
    return isinstance(error, NoPermissionError) or "unknown command" in str(error)


def _is_rewriting(state: dict[str, str]) -> bool:
    """Whether a rewrite of the append-only file is running, scheduled, or to be tried again after a failure."""
    return (
        state.get("aof_rewrite_in_progress") != "0"
        or state.get("aof_rewrite_scheduled") != "0"
        or state.get("aof_last_bgrewrite_status") != "ok"
    )


def _config_of(reply: list[bytes]) -> dict[str, str]:
    parts = [part.decode() for part in reply]
    return dict(zip(parts[::2], parts[1::2], strict=True))
