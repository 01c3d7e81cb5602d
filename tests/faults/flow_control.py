"""Topics with groups, priorities and limits in a fault run, and the check that the limits held.

Each check is of plain contradictions: a lease counts only while it was certainly live, a delivery only if the response
shows when the store made it, and a job's place only if it was delivered again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from deferd import Client
from tests.faults.history import History, Operation
from tests.faults.linearizability import StoreClock

FAIR_TOPIC, LIMITED_TOPIC, STRICT_TOPIC, RATED_TOPIC = "faults.a", "faults.limited", "faults.strict", "faults.rated"
GROUPS = ("g0", "g1", "g2")
LIMITS: Mapping[str, Any] = {
    FAIR_TOPIC: {"groups": {GROUPS[0]: {"weight": 4}}},
    LIMITED_TOPIC: {"max_in_flight": 3, "per_group": {"max_in_flight": 2}},
    STRICT_TOPIC: {"per_group": {"max_in_flight": 1}},
    RATED_TOPIC: {"rate": {"count": 3, "per": 0.25}, "per_group": {"rate": {"count": 1, "per": 0.2}}},
}
"""Topics whose jobs have groups and priorities, and their limits."""
_REFUSED = {"stale", "not found", "none", "held"}
_ENDS = {"finish", "release", "snooze", "bury", "cancel"}


def set_limits(url: str) -> None:
    """Set the limits of all topics, before they have any job."""
    with Client(url) as client:
        for topic, limits in LIMITS.items():
            client.set_topic(topic, {"limits": limits})


@dataclass(frozen=True)
class FlowControl:
    """Broken limits, and how far each one was used, by what it limits: one that was never reached tests nothing."""

    over_in_flight: list[str] = field(default_factory=list)
    over_rate: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    most_in_flight: Counter[str] = field(default_factory=Counter)
    most_in_window: Counter[str] = field(default_factory=Counter)

    def usage(self) -> Iterator[str]:
        """For people: how far each limit was used."""
        for name, most in sorted(self.most_in_flight.items()):
            yield f"{most:6}  leases of {name} were live at a time, at most"
        for name, most in sorted(self.most_in_window.items()):
            yield f"{most:6}  deliveries of {name} were made within the time of its rate, at most"

    @property
    def never_reached(self) -> list[str]:
        """Limits that the run never reached."""
        reached = {"max_in_flight": self.most_in_flight, "rate": self.most_in_window}
        return [
            f"{what} of {name}"
            for topic, limits in LIMITS.items()
            for name, of_name in ((topic, limits), (_each_group(topic), limits.get("per_group", {})))
            for what, most in reached.items()
            if what in of_name and most[name] < _count(of_name[what])
        ]


def _each_group(topic: str) -> str:
    return f"a group of {topic}"


def _count(limit: Any) -> int:
    return int(limit["count"] if isinstance(limit, dict) else limit)


class _Lease(NamedTuple):
    """A delivery, made at `at_ms` or before; its lease was live until `until_ms` at least."""

    at_ms: float
    until_ms: float
    delivery: Operation


def _made(lease: _Lease) -> float:
    return lease.at_ms


def check_limits(history: History, clock: StoreClock, limits_of: Mapping[str, Any]) -> FlowControl:
    """Check all topics that have limits."""
    found = FlowControl()
    leases: defaultdict[str, list[_Lease]] = defaultdict(list)
    of_topic: defaultdict[str, list[Sequence[Operation]]] = defaultdict(list)
    for (topic, _), operations in history.of_job.items():
        leases[topic] += _leases(operations, clock)
        of_topic[topic].append(operations)
    for topic, limits in limits_of.items():
        of_group: defaultdict[str, list[_Lease]] = defaultdict(list)
        for lease in leases[topic]:
            of_group[lease.delivery.group].append(lease)
        of_group.pop("", None)
        _check(found, topic, limits, leases[topic])
        for some in of_group.values():
            _check(found, _each_group(topic), limits.get("per_group", {}), some)
        if limits.get("per_group", {}).get("max_in_flight") == 1:
            found.out_of_order.extend(
                problem for some in of_group.values() for problem in _out_of_order(some, of_topic[topic], clock)
            )
    return found


def _check(found: FlowControl, name: str, limits: Mapping[str, Any], leases: Sequence[_Lease]) -> None:
    """Check the limits of a topic or of one group, whose leases these are."""
    if most := limits.get("max_in_flight"):
        live: list[_Lease] = []
        for lease in sorted(leases, key=lambda one: (one.at_ms, one.until_ms)):  # in one ms they have any order
            live = [other for other in live if other.until_ms > lease.at_ms] + [lease]
            found.most_in_flight[name] = max(found.most_in_flight[name], len(live))
            if len(live) > most:
                found.over_in_flight.append(f"{name}: {_shown(live)}")
    if rate := limits.get("rate"):
        made = [lease.delivery for lease in leases if lease.delivery.at_ms is not None]
        times_ms = sorted(one.at_ms or 0 for one in made)
        start = 0
        for end, at_ms in enumerate(times_ms):
            while times_ms[start] <= at_ms - 1000 * rate["per"]:
                start += 1
            count = end - start + 1
            found.most_in_window[name] = max(found.most_in_window[name], count)
            if count > rate["count"]:
                found.over_rate.append(f"{name}: {count} deliveries from {times_ms[start]} to {at_ms}")


def _leases(operations: Sequence[Operation], clock: StoreClock) -> Iterator[_Lease]:
    """The leases of one job; the earliest instant at which each may have ended."""
    of_receipt: dict[str, tuple[float, Operation]] = {}
    for one in operations:
        if one.kind == "deliver":
            at_ms = min(clock.latest(one.end_s), one.lease_end_ms) if one.at_ms is None else one.at_ms
            of_receipt[one.receipt] = min((at_ms, one), of_receipt.get(one.receipt, (at_ms, one)), key=lambda of: of[0])
    ends = [one for one in operations if one.kind in _ENDS and one.outcome not in _REFUSED]
    for at_ms, delivery in of_receipt.values():
        touches = [one for one in operations if one.kind == "touch" and one.receipt == delivery.receipt]
        until_ms: list[float] = [
            max([delivery.lease_end_ms, *(one.lease_end_ms for one in touches if one.outcome == "done")])
        ]
        until_ms += [
            _earliest(one, clock)
            for one in ends
            if one.receipt in {"", delivery.receipt} and clock.latest(one.over_s) >= at_ms
        ]
        until_ms += [_earliest(one, clock) for other_ms, one in of_receipt.values() if other_ms > at_ms]
        yield _Lease(at_ms, min(until_ms), delivery)


def _earliest(one: Operation, clock: StoreClock) -> float:
    return clock.earliest(one.call_s) if one.at_ms is None else one.at_ms


def _out_of_order(of_group: Iterable[_Lease], jobs: Iterable[Sequence[Operation]], clock: StoreClock) -> Iterator[str]:
    """Deliveries of a group in strict order between two deliveries of another job, which had not ended meanwhile."""
    made = sorted((lease for lease in of_group if lease.delivery.at_ms is not None), key=_made)
    of_put: defaultdict[tuple[str, str], list[_Lease]] = defaultdict(list)
    for lease in made:
        of_put[lease.delivery.job, lease.delivery.tag].append(lease)
    operations_of = {operations[0].job: operations for operations in jobs}
    for (job, _), leases in of_put.items():
        for first, again in pairwise(leases):
            between = [
                other
                for other in made
                if first.at_ms < other.at_ms < again.at_ms
                and (other.delivery.job, other.delivery.tag) != (job, first.delivery.tag)
            ]
            if between and not any(
                _may_lose_place(one)
                and clock.earliest(one.call_s) <= again.at_ms
                and clock.latest(one.over_s) >= first.at_ms
                for one in operations_of[job]
            ):
                yield f"{first.delivery.topic} {first.delivery.group}: {_shown([first, *between, again])}"


def _may_lose_place(one: Operation) -> bool:
    """Whether the job of a group in strict order may be behind others afterwards: it had died, or moved."""
    return one.outcome not in _REFUSED and (one.kind == "redrive" or (one.kind == "change" and one.group != ""))


def _shown(leases: Iterable[_Lease]) -> str:
    return ", ".join(f"{of.delivery.job} {of.delivery.receipt} {of.at_ms:.0f} to {of.until_ms:.0f}" for of in leases)
