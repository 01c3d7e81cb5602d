"""For operators: what needs a person now."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Query

from deferd.api.auth.api_keys import Recorded
from deferd.api.context import CurrentRequest
from deferd.api.operation_router import OperationRouter
from deferd.api.responses import instant_or_none, seconds
from deferd.api.routes.inspection import is_visible
from deferd.api.routes.queries import TopicsQuery, page_limit
from deferd.contract.operations import now as contract
from deferd.contract.timestamps import instant
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.inspection.attention import Alert, Now
from deferd.engine.inspection.dead_errors import UNKNOWN
from deferd.engine.record import instant_ms

router = OperationRouter()

_ERROR_CHARACTERS = 100
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


class NowQuery(TopicsQuery):
    """The parameters of what needs a person."""

    limit: int = page_limit("alerts", which="the most urgent ones")


@router.serves(contract.GET_NOW, topics=lambda arguments: arguments["query"].names)
async def get_now(request: CurrentRequest, query: Annotated[NowQuery, Query()]) -> contract.Now:
    is_seen = is_visible(request)
    wanted = TopicPatterns(query.names) if query.names else None
    found = await request.engine.alerts.now(
        is_seen if wanted is None else lambda topic: wanted.match(topic) and is_seen(topic)
    )
    return contract.Now(
        now=instant(found.now_ms),
        alerts=[alert(one, found.now_ms) for one in found.alerts[: query.limit]],
        left_out=max(len(found.alerts) - query.limit, 0),
        next_due_at=instant_or_none(found.next_due_ms),
        next_due_jobs=found.next_due_jobs,
        topics_looked_at=found.looked_at,
        complete=found.is_complete,
        **({"acknowledged": acknowledged} if (acknowledged := _acknowledged(found, query.limit)) else {}),
    )


def _acknowledged(found: Now, most: int) -> list[contract.Alert]:
    return [
        msgspec.structs.replace(
            alert(one, found.now_ms),
            acknowledged=contract.Acknowledgement(reason=noted.reason, by=noted.by, until=instant(noted.until_ms)),
        )
        for one, noted in found.acknowledged[:most]
    ]


@router.serves(
    contract.ACKNOWLEDGE_ALERTS,
    topics=lambda arguments: arguments["meant"].topics or (),
    recorded=Recorded(filter="meant"),
)
async def acknowledge_alerts(request: CurrentRequest, meant: contract.AcknowledgeAlerts) -> contract.Acknowledged:
    wanted = None if meant.topics is None else frozenset(meant.topics)
    visible = request.admission.visible_topics

    def is_meant(one: Alert) -> bool:
        is_seen = visible is None or (one.topic is not None and visible.match(one.topic))
        return one.code == meant.code and is_seen and (wanted is None or one.topic in wanted)

    by, until_ms = request.admission.key_name, instant_ms(meant.until)
    request.changed = await request.engine.alerts.acknowledge(is_meant, meant.reason, by, until_ms)
    return contract.Acknowledged(alerts=request.changed)


def alert(one: Alert, now_ms: int) -> contract.Alert:
    """One alert, without the facts that are not known."""
    subject = "" if one.topic is None else f"{one.topic}: "
    return contract.Alert(
        severity=one.severity,
        code=one.code,
        topic=one.topic,
        text=subject + _TEXTS[one.code](one.facts, now_ms),
        **dict(_fact(name, value) for name, value in one.facts.items() if value is not None),
    )


def _fact(name: str, value: Any) -> tuple[str, Any]:
    if name.endswith("_at_ms"):
        return ("since" if name == "since_at_ms" else name.removesuffix("_ms")), instant(value)
    return (name.removesuffix("_ms"), seconds(value)) if name.endswith("_ms") else (name, value)


def _no_consumer(facts: dict[str, Any], now_ms: int) -> str:
    last_ms = facts["last_consumer_at_ms"]
    seen = "" if last_ms is None else f" for {_span(now_ms - last_ms)}"
    return f"{facts['ready']:,} ready, oldest {_span(facts['oldest_age_ms'])}, no consumer{seen}"


def _push_failing(facts: dict[str, Any], now_ms: int) -> str:
    at_ms, next_ms, failures = facts["last_error_at_ms"], facts["next_try_at_ms"], facts["failures"]
    parts = [f"the push fails{f' {failures:,} times in a row' if failures > 1 else ''}"]
    if at_ms is not None:
        parts[0] += f", the last time {_span(now_ms - at_ms)} ago"
    if facts["last_error"] is not None:
        parts[0] += f" ({_shortened(facts['last_error'])})"
    if facts["ready"]:
        parts.append(f"{facts['ready']:,} ready, oldest {_span(facts['oldest_age_ms'])}")
    parts.append("the next request tries it" if next_ms is None else f"next try in {_span(next_ms - now_ms)}")
    return "; ".join(parts)


def _shortened(error: str) -> str:
    return error if len(error) <= _ERROR_CHARACTERS else error[: _ERROR_CHARACTERS - 1] + "…"


def _failing(facts: dict[str, Any], _now_ms: int) -> str:
    finished = facts["finished"]
    done = f"{finished:,} jobs were" if finished > 1 else "1 job was" if finished else "nothing was"
    parts = [f"{facts['released']:,} attempts failed and {done} finished in {_span(facts['window_ms'])}"]
    if facts.get("retrying"):
        least = "" if facts["exact"] else "at least "
        jobs = "1 job waits" if facts["retrying"] == 1 else f"{facts['retrying']:,} jobs wait"
        parts.append(f"{least}{jobs} for another attempt")
    if facts.get("top_error") is not None:
        parts.append(f"the usual error: {_shortened(facts['top_error'])}")
    return "; ".join(parts)


def _behind(facts: dict[str, Any], _now_ms: int) -> str:
    rate, wait_ms = facts["rate"], facts["estimated_wait_ms"]
    parts = [f"{facts['ready']:,} ready, oldest {_span(facts['oldest_age_ms'])}"]
    if wait_ms is not None:
        parts.append(f"consumers take {rate:,.3g} a second, so the last waits {_span(wait_ms)}")
    elif facts["reserved"]:
        parts.append(f"{facts['reserved']:,} held")
    return ", ".join(parts)


def _dying(facts: dict[str, Any], _now_ms: int) -> str:
    about = "" if facts["exact"] else "about "
    share = "all" if facts["top_dead"] == facts["dead"] else f"{about}{facts['top_dead']:,}"
    error, reason = facts["top_error"], facts["top_reason"]
    if error is None:
        what = "without an error" if reason == UNKNOWN else f"{reason.replace('_', ' ')} without an error"
    else:
        what = _shortened(error)
    return f"{about}{facts['dead']:,} dead in 1 h, {share} of them {what}"


def _paused(facts: dict[str, Any], now_ms: int) -> str:
    since_ms = facts["since_at_ms"]
    since = "" if since_ms is None else f" for {_span(now_ms - since_ms)}"
    due = f", {facts['due']:,} due" if facts["due"] else ""
    by = "" if facts["by"] is None else f" by {facts['by']}"
    why = "" if facts.get("why") is None else f" ({facts['why']})"
    return f"paused{since}{by}{why}, {facts['ready']:,} ready{due}"


def _late(facts: dict[str, Any], _now_ms: int) -> str:
    return f"{facts['jobs']:,} delayed and due, oldest {_span(facts['overdue_ms'])} late: the timer does not keep up"


def _shelf_behind(facts: dict[str, Any], now_ms: int) -> str:
    if facts.get("why") is not None:
        return f"{facts['why']}: calls that need its jobs fail, and jobs become late if this lasts"
    first_ms, within_ms, rate = facts["first_due_at_ms"], facts["within_ms"], facts["rate"]
    number, is_one = f"{facts['jobs']:,}", facts["jobs"] == 1
    due = f"due within {_span(within_ms)}" if within_ms else "that is due" if is_one else "that are due"
    first = f"{_span(now_ms - first_ms)} late" if first_ms <= now_ms else f"due in {_span(first_ms - now_ms)}"
    return (
        f"{number} {'job' if is_one else 'jobs'} {due} {'is' if is_one else 'are'} still on the shelf, the first is "
        f"{first}; {f'{rate:,.0f}' if rate >= 100 else f'{rate:.3g}'} a second are loaded"
    )


def _durability(facts: dict[str, Any], _now_ms: int) -> str:
    return (
        f"asks for durability {facts['durability']}, the store gives {facts['available']} ({facts['why']}): puts "
        "without a level of their own are refused"
    )


def _timer(facts: dict[str, Any], _now_ms: int) -> str:
    who = "the timer does not get to it" if facts["running"] else "no timer runs"
    return f"shard {facts['shard']}: work is overdue by {_span(facts['overdue_ms'])}, {who}"


def _shard_unavailable(facts: dict[str, Any], _now_ms: int) -> str:
    shards = facts["shards"]
    numbers = ", ".join(map(str, shards))
    name = "shard" if len(shards) == 1 else "shards"
    return f"the store cannot be reached for {name} {numbers}: topics are missing here"


def _schedules_missed(facts: dict[str, Any], now_ms: int) -> str:
    ago = _span(now_ms - facts["last_missed_at_ms"])
    return f"schedule {facts['schedule']} missed a run {ago} ago, {facts['missed']:,} in all"


def _topic_full(facts: dict[str, Any], _now_ms: int) -> str:
    full = "full, puts are refused" if facts["jobs"] >= facts["max_jobs"] else "nearly full"
    return f"{facts['jobs']:,} of {facts['max_jobs']:,} jobs: {full}"


def _overload(facts: dict[str, Any], now_ms: int) -> str:
    at_ms, handled = facts["handled_at_ms"], f"{facts['handled']:,} an hour"
    if at_ms is None:
        rate = f"consumers take {handled} now"
    else:
        rate = f"at their best in two days, {_span(now_ms - at_ms)} ago, consumers handled {handled}"
    return f"{facts['due']:,} due in the next hour, {rate}"


_TEXTS = {
    "no_consumer": _no_consumer,
    "push_failing": _push_failing,
    "failing": _failing,
    "behind": _behind,
    "dying": _dying,
    "paused": _paused,
    "late": _late,
    "shelf_behind": _shelf_behind,
    "durability": _durability,
    "timer": _timer,
    "shard_unavailable": _shard_unavailable,
    "schedules_missed": _schedules_missed,
    "topic_full": _topic_full,
    "overload": _overload,
}


def _span(duration_ms: int) -> str:
    """A duration in its largest unit, or its two largest ones above an hour: ``4 min``, ``1 h 30 min``."""
    left = max(duration_ms, 0) // 1000
    if not left:
        return "0 s"
    first = next(at for at, (_, length) in enumerate(_UNITS) if left >= length)
    parts = []
    for unit, length in _UNITS[first : first + (2 if left >= 3600 else 1)]:
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts)
