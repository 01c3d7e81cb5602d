"""Durability levels as numbers, the more durable the higher: 0 `memory`, 1 `fsync`, 1 + N `replicated:N`."""

from __future__ import annotations

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
