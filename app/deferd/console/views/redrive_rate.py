"""How many dead jobs a second are to become ready, as people type it: they see how long that takes before it begins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from deferd.contract.limits import REDRIVE_RATE_MAX, REDRIVE_RATE_MIN
from deferd.contract.timestamps import format_instant

_RATE = re.compile(r"(?P<jobs>\d{1,6}(?:\.\d{1,6})?)(?:\s*/\s*(?P<unit>s|min|h))?", re.IGNORECASE)
_UNITS_S = {"s": 1, "m": 60, "h": 3600}


class RedriveRate(NamedTuple):
    """A rate as it was typed, the jobs a second that it means, or the `problem` with it. `per_s` None: all at once.

    `is_seen`: the form has shown what it means; true without one.
    """

    given: str = ""
    per_s: float | None = None
    problem: str | None = None
    is_seen: bool = True

    def takes_s(self, jobs: int) -> float:
        """How long so many jobs take."""
        return jobs / (self.per_s or REDRIVE_RATE_MAX)

    def ends_at(self, jobs: int, now_ms: int | None) -> str:
        """When the last of so many is ready if it begins now."""
        at = datetime.fromtimestamp((now_ms or 0) / 1000, UTC) + timedelta(seconds=self.takes_s(jobs))
        return format_instant(at)


def read_redrive_rate(fields: Mapping[str, str]) -> RedriveRate:
    """The rate in a form, whose field `rate_seen` has what it showed."""
    given = fields.get("rate", "").strip()
    if not given:
        return RedriveRate()
    typed = _RATE.fullmatch(given)
    per_s = 0.0 if typed is None else float(typed["jobs"]) / _UNITS_S[(typed["unit"] or "s")[0].lower()]
    if not REDRIVE_RATE_MIN <= per_s <= REDRIVE_RATE_MAX:
        least, most = f"{REDRIVE_RATE_MIN:g}", f"{REDRIVE_RATE_MAX:g}"
        problem = f"Say how many jobs a second, from {least} to {most}, such as 10, or 30/min."
        return RedriveRate(given, None, problem, is_seen=False)
    return RedriveRate(given, per_s, None, fields.get("rate_seen") == given)
