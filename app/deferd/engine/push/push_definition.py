"""How the jobs of a topic are pushed, as the store holds it, and the state of the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deferd.contract.push import CircuitState, SetPush
from deferd.engine.record import json_bytes


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
