"""Releases of the package `tzdata` with made zones, as a folder that comes before the installed packages."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from deferd.engine import openings, recurrence, zones
from deferd.engine.caches import BoundedCache

ZONE = "Test/Land"
HOUR_S = 3600


def tzif(offset_h: float, *changes: tuple[int, float]) -> bytes:
    """A zone in the format of RFC 8536, version 1: hours ahead of UTC, and from which seconds on others."""
    offsets = [offset_h, *(offset for _, offset in changes)]
    header = struct.pack(">4sx15x6L", b"TZif", 0, 0, 0, len(changes), len(offsets), 1)
    instants = b"".join(struct.pack(">l", at_s) for at_s, _ in changes)
    kinds = bytes(range(1, len(offsets)))
    types = b"".join(struct.pack(">l?B", round(offset * HOUR_S), False, 0) for offset in offsets)
    return header + instants + kinds + types + b"\0"


def make_release(folder: Path, version: str, zone: bytes) -> Path:
    """Make a release with the zones `UTC` and `Test/Land`; returns the folder, for `PYTHONPATH`."""
    for name, data in {"UTC": tzif(0), ZONE: zone}.items():
        file = folder / "tzdata" / "zoneinfo" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    (folder / "tzdata" / "__init__.py").touch()
    facts = folder / f"tzdata-{version}.dist-info" / "METADATA"
    facts.parent.mkdir()
    facts.write_text(f"Metadata-Version: 2.1\nName: tzdata\nVersion: {version}\n")
    return folder


class ZoneReleases:
    """Lets this process use made releases, one after the other, as restarts with other packages would."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._count = 0

    def use(self, offset_h: float, *changes: tuple[int, float]) -> None:
        """Use a new release, in which `Test/Land` is as `tzif` says."""
        self._count += 1
        version = f"2099.{self._count}"
        folder = make_release(self._folder / version, version, tzif(offset_h, *changes))
        self._monkeypatch.setattr(zones, "_ZONES", folder / "tzdata" / "zoneinfo")
        self._monkeypatch.setattr(zones, "TZDATA_VERSION", version)
        self.forget()

    @staticmethod
    def forget() -> None:
        """Forget what was computed by the rules of a release."""
        zones.zone_named.cache_clear()
        recurrence._recurrences = BoundedCache(recurrence._RECURRENCES_BYTES)
        openings._cached = BoundedCache(openings._CACHED_BYTES)
