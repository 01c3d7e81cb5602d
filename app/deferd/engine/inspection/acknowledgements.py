"""Alerts that somebody has acknowledged: until an end they are told apart from those that need somebody.

An acknowledgement is for one alert as it was: of a topic, and as urgent. An alert of another topic, or one that has
become critical since, needs somebody again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from deferd.contract.errors import FieldError, InvalidInput, StoreUnavailable
from deferd.engine.caches import SharedReads
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts, WrongType

ACKNOWLEDGED_MAX_S = 30 * 86_400
"""Longest time until an end."""
ALERTS_MAX = 10_000
"""Most alerts that are acknowledged at a time: of as many topics alerts are made."""
_KEPT_S = 1.0
"""How long another process may not know of one yet."""
_FIELDS_AT_ONCE = 1000
AlertId = tuple[str, str]
"""The code of an alert and its topic, '' for an alert of the store."""


class Acknowledgement(NamedTuple):
    """Why an alert needs nobody until an end, and who says so. `by` None: there are no keys."""

    severity: str
    reason: str
    by: str | None
    until_ms: int


class Acknowledgements:
    """What the store keeps of them: a hash of `code topic` -> JSON."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._key = keys.of_shard(0, "acknowledged")
        self._reads: SharedReads[dict[AlertId, Acknowledgement]] = SharedReads(_KEPT_S, 1)

    async def at(self, now_ms: int) -> dict[AlertId, Acknowledgement]:
        """Those that have not ended; none while the store does not tell."""
        try:
            found = await self._reads.get(None, self._read)
        except (StoreUnavailable, WrongType):  # a wrong type is that of another program's value
            return {}
        return {alert: one for alert, one in found.items() if one.until_ms > now_ms}

    async def _read(self) -> dict[AlertId, Acknowledgement]:
        flat: list[bytes] = await self._scripts.command("HGETALL", self._key)
        found: dict[AlertId, Acknowledgement] = {}
        for field, value in zip(flat[::2], flat[1::2], strict=True):
            code, _, topic = field.decode(errors="replace").partition(" ")
            try:
                found[code, topic] = msgspec.json.decode(value, type=Acknowledgement)
            except msgspec.DecodeError:  # another program has written it
                continue
        return found

    async def add(self, new: Mapping[AlertId, Acknowledgement], now_ms: int) -> None:
        """Acknowledge these alerts, also again with another end.

        Raises:
            InvalidInput: more than ALERTS_MAX would be.
            StoreUnavailable.
        """
        found = await self._read()
        await self.remove([alert for alert, one in found.items() if one.until_ms <= now_ms])
        lasting = {alert for alert, one in found.items() if one.until_ms > now_ms}
        if len(lasting | new.keys()) > ALERTS_MAX:
            raise InvalidInput([FieldError(("body", "topics"), f"acknowledge at most {ALERTS_MAX} alerts at a time")])
        pairs = [(f"{code} {topic}", msgspec.json.encode(one)) for (code, topic), one in new.items()]
        try:
            for at in range(0, len(pairs), _FIELDS_AT_ONCE):
                flat = [part for pair in pairs[at : at + _FIELDS_AT_ONCE] for part in pair]
                await self._scripts.write("HSET", self._key, *flat)
            await self._scripts.write("PEXPIRE", self._key, ACKNOWLEDGED_MAX_S * 1000)
        finally:
            self._reads.forget(None)

    async def remove(self, alerts: list[AlertId]) -> None:
        """End those of these alerts. Raises StoreUnavailable."""
        try:
            for at in range(0, len(alerts), _FIELDS_AT_ONCE):
                some = alerts[at : at + _FIELDS_AT_ONCE]
                await self._scripts.write("HDEL", self._key, *(f"{code} {topic}" for code, topic in some))
        finally:
            self._reads.forget(None)
