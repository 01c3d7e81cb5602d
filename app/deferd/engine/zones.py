"""Time zones, always from the package `tzdata`: all replicas follow the same rules, independent of their hosts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from zoneinfo import ZoneInfo

TZDATA_VERSION = version("tzdata")
"""The release of the time zone database in use, such as `2026.6`."""
_ZONES = files("tzdata").joinpath("zoneinfo")
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (subtracted from local times)
_SECOND = timedelta(seconds=1)
_MS = timedelta(milliseconds=1)


@lru_cache(maxsize=1024)
def zone_named(name: str) -> ZoneInfo:
    """The zone with an IANA name, such as `Europe/Berlin`.

    Raises:
        ValueError: there is no such zone.
    """
    parts = name.split("/")
    file = _ZONES.joinpath(*parts)
    try:
        if not {"", ".", ".."}.isdisjoint(parts) or not file.is_file():
            raise ValueError  # noqa: TRY301 (one message for all reasons)
        with file.open("rb") as data:
            return ZoneInfo.from_file(data, key=name)
    except (ValueError, OSError):
        raise ValueError(f"is not a time zone of the IANA database {TZDATA_VERSION}: {name!r:.100}") from None


def offset_ms(zone: ZoneInfo, at_ms: int) -> int:
    """How far the clocks of a zone are ahead of UTC at an instant."""
    return _offset(_utc(at_ms).replace(tzinfo=UTC).astimezone(zone)) // _MS


def instant_ms(zone: ZoneInfo, local: datetime, *, take_last: bool = False) -> int:
    """The instant of a local time: the first or the last one if clocks show it twice.

    If they never show it, because a change skips it, it is the instant of that change.
    """
    before = _offset(local.replace(tzinfo=zone))
    after = _offset(local.replace(tzinfo=zone, fold=1))
    if before < after:
        return _ms(_change(zone, local - after, local - before))
    return _ms(local - (after if take_last else before))


def instant_by_new_rules_ms(zone: ZoneInfo, at_ms: int, offset_then_ms: int) -> int:
    """When clocks show what they showed at `at_ms` by another release's rules, which were `offset_then_ms` ahead."""
    if offset_ms(zone, at_ms) == offset_then_ms:
        return at_ms
    return instant_ms(zone, _utc(at_ms + offset_then_ms))


def _change(zone: ZoneInfo, earliest: datetime, latest: datetime) -> datetime:
    """The instant in UTC, after `earliest` and until `latest`, from which the zone has the offset of `latest`."""
    after = _offset(latest.replace(tzinfo=UTC).astimezone(zone))
    low, high = 0, (latest - earliest) // _SECOND
    while low < high:
        middle = (low + high) // 2
        if _offset((earliest + middle * _SECOND).replace(tzinfo=UTC).astimezone(zone)) == after:
            high = middle
        else:
            low = middle + 1
    return earliest + low * _SECOND


def _offset(time: datetime) -> timedelta:
    return time.utcoffset() or timedelta()


def _utc(at_ms: int) -> datetime:
    return _EPOCH + at_ms * _MS


def _ms(utc: datetime) -> int:
    return (utc - _EPOCH) // _MS
