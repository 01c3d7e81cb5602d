"""Time zones, always from the package `tzdata`: all replicas follow the same rules, independent of their hosts."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from zoneinfo import ZoneInfo

TZDATA_VERSION = version("tzdata")
"""The release of the time zone database in use, such as `2026.6`."""


@lru_cache(maxsize=1024)
def zone_named(name: str) -> ZoneInfo:
    """The zone with an IANA name, such as `Europe/Berlin`.

    Raises:
        ValueError: there is no such zone.
    """
    *folders, last = name.split("/")
    file = files("tzdata").joinpath("zoneinfo", *folders, last)
    is_path = ".." in name or name != name.strip("/")
    try:
        if is_path or not file.is_file():
            raise ValueError  # noqa: TRY301 (one message for all reasons)
        with file.open("rb") as data:
            return ZoneInfo.from_file(data, key=name)
    except (ValueError, OSError):
        raise ValueError(f"is not a time zone of the IANA database {TZDATA_VERSION}: {name!r:.100}") from None
