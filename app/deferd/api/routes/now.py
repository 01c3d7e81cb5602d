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
from deferd.contract import limits
from deferd.contract.counted import counted
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
        is_seen if wanted is None else lambda topic: wanted.match(topic) and is_seen(topic),
        with_outboxes=request.admission.visible_topics is None,
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
    none = "there is no consumer" if last_ms is None else f"there has been no consumer for {_span(now_ms - last_ms)}"
    return f"{_ready(facts)}; {none}"


def _ready(facts: dict[str, Any]) -> str:
    age = _span(facts["oldest_age_ms"])
    return counted(facts["ready"], f"job has been ready for {age}", f"jobs are ready, the oldest for {age}")


def _push_failing(facts: dict[str, Any], now_ms: int) -> str:
    at_ms, next_ms, failures = facts["last_error_at_ms"], facts["next_try_at_ms"], facts["failures"]
    parts = [f"the push has failed{f' {failures:,} times in a row' if failures > 1 else ''}"]
    if at_ms is not None:
        parts[0] += f", the last time {_span(now_ms - at_ms)} ago"
    if facts["last_error"] is not None:
        parts[0] += f" ({_shortened(facts['last_error'])})"
    if facts["ready"]:
        parts.append(_ready(facts))
    parts.append("the next request tests it" if next_ms is None else f"the next try is in {_span(next_ms - now_ms)}")
    return "; ".join(parts)


def _shortened(error: str) -> str:
    return error if len(error) <= _ERROR_CHARACTERS else error[: _ERROR_CHARACTERS - 1] + "…"


def _failing(facts: dict[str, Any], _now_ms: int) -> str:
    finished = facts["finished"]
    done = counted(finished, "job was", "jobs were") if finished else "nothing was"
    parts = [f"{counted(facts['released'], 'attempt')} failed and {done} finished in {_span(facts['window_ms'])}"]
    if facts.get("retrying"):
        least = "" if facts["exact"] else "at least "
        parts.append(f"{least}{counted(facts['retrying'], 'job waits', 'jobs wait')} for another attempt")
    if facts.get("top_error") is not None:
        parts.append(f"the most frequent error is {_shortened(facts['top_error'])}")
    return "; ".join(parts)


def _behind(facts: dict[str, Any], _now_ms: int) -> str:
    rate, wait_ms = facts["rate"], facts["estimated_wait_ms"]
    if facts.get("limited"):
        wait = "" if wait_ms is None else f"; at {rate:,.3g} a second the last one waits {_span(wait_ms)}"
        return f"{_ready(facts)}; limits of the topic, or pauses of groups, hold them back{wait}"
    if wait_ms is not None:
        return f"{_ready(facts)}; consumers take {rate:,.3g} a second, so the last one waits {_span(wait_ms)}"
    return f"{_ready(facts)}; consumers hold {facts['reserved']:,}" if facts["reserved"] else _ready(facts)


def _dying(facts: dict[str, Any], _now_ms: int) -> str:
    about = "" if facts["exact"] else "about "
    share = "all of them " if facts["top_dead"] == facts["dead"] else f"{about}{facts['top_dead']:,} of them "
    error, reason = facts["top_error"], facts["top_reason"]
    if error is not None:
        what = f"with the error {_shortened(error)}"
    else:
        what = "without an error" + ("" if reason == UNKNOWN else f" ({reason.replace('_', ' ')})")
    return f"{about}{counted(facts['dead'], 'job')} died in the last hour, {'' if facts['dead'] == 1 else share}{what}"


def _paused(facts: dict[str, Any], now_ms: int) -> str:
    since_ms = facts["since_at_ms"]
    paused = "it is paused" if since_ms is None else f"it has been paused for {_span(now_ms - since_ms)}"
    due = f" and {facts['due']:,} more {'is' if facts['due'] == 1 else 'are'} due" if facts["due"] else ""
    by = "" if facts["by"] is None else f" by {facts['by']}"
    why = "" if facts.get("why") is None else f" ({facts['why']})"
    return f"{paused}{by}{why}; {counted(facts['ready'], 'job is', 'jobs are')} ready{due}"


def _late(facts: dict[str, Any], _now_ms: int) -> str:
    late = f"{'by' if facts['jobs'] == 1 else 'the oldest by'} {_span(facts['overdue_ms'])}"
    jobs = counted(facts["jobs"], "job is", "jobs are")
    return f"{jobs} due and still delayed, {late}: the timer does not keep up"


def _shelf_behind(facts: dict[str, Any], now_ms: int) -> str:
    if facts.get("why") is not None:
        return f"{facts['why']}: calls that need its jobs fail, and jobs become late if this lasts"
    first_ms, within_ms, rate = facts["first_due_at_ms"], facts["within_ms"], facts["rate"]
    is_one = facts["jobs"] == 1
    due = f"due within {_span(within_ms)}" if within_ms else "that is due" if is_one else "that are due"
    first = f"{_span(now_ms - first_ms)} late" if first_ms <= now_ms else f"due in {_span(first_ms - now_ms)}"
    return (
        f"{counted(facts['jobs'], 'job')} {due} {'is' if is_one else 'are'} still on the shelf; "
        f"{'it' if is_one else 'the first'} is {first}, and the service loads "
        f"{f'{rate:,.0f}' if rate >= 100 else f'{rate:.3g}'} a second"
    )


def _outbox_stopped(facts: dict[str, Any], now_ms: int) -> str:
    rows = f", which had {_rows(facts, 'row', 'rows')} then" if facts["rows"] else ""
    return f"no relay has sent the outbox of {facts['database']} for {_span(now_ms - facts['since_at_ms'])}{rows}"


def _outbox_behind(facts: dict[str, Any], _now_ms: int) -> str:
    rows = _rows(facts, "row waits", "rows wait")
    return f"the outbox of {facts['database']} is {_span(facts['lag_ms'])} behind: {rows} for the relay"


def _rows(facts: dict[str, Any], one: str, many: str) -> str:
    return f"{'about ' if facts['rows'] > limits.OUTBOX_COUNTED else ''}{counted(facts['rows'], one, many)}"


def _outbox_refused(facts: dict[str, Any], _now_ms: int) -> str:
    rows = counted(facts["refused"], "row of the outbox", "rows of the outbox")
    are = "is" if facts["refused"] == 1 else "are"
    return f"{rows} of {facts['database']} {are} refused: see `deferd outbox refused`"


def _durability(facts: dict[str, Any], _now_ms: int) -> str:
    return (
        f"it asks for durability {facts['durability']}, and the store gives {facts['available']} ({facts['why']}): "
        "puts without a level of their own are refused"
    )


def _timer(facts: dict[str, Any], _now_ms: int) -> str:
    who = "the timer does not get to it" if facts["running"] else "no timer runs"
    return f"shard {facts['shard']}: its work is overdue by {_span(facts['overdue_ms'])}, and {who}"


def _shard_unavailable(facts: dict[str, Any], _now_ms: int) -> str:
    shards = facts["shards"]
    numbers = ", ".join(map(str, shards))
    name, their = ("shard", "its") if len(shards) == 1 else ("shards", "their")
    return f"the store can't be reached for {name} {numbers}: {their} topics are missing here"


def _schedules_missed(facts: dict[str, Any], now_ms: int) -> str:
    ago = _span(now_ms - facts["last_missed_at_ms"])
    if facts["missed"] == 1:
        return f"schedule {facts['schedule']} missed a run {ago} ago"
    return f"schedule {facts['schedule']} missed {facts['missed']:,} runs, the last one {ago} ago"


def _topic_full(facts: dict[str, Any], _now_ms: int) -> str:
    if facts["jobs"] >= facts["max_jobs"]:
        return f"it is full, with {counted(facts['jobs'], 'job')}: puts are refused"
    return f"it is nearly full, with {facts['jobs']:,} of {counted(facts['max_jobs'], 'job')}"


def _overload(facts: dict[str, Any], now_ms: int) -> str:
    at_ms, handled = facts["handled_at_ms"], f"{facts['handled']:,} an hour"
    if at_ms is None:
        rate = f"consumers take {handled} now"
    else:
        rate = f"at their best in two days, {_span(now_ms - at_ms)} ago, consumers handled {handled}"
    return f"{counted(facts['due'], 'job is', 'jobs are')} due in the next hour; {rate}"


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
    "outbox_stopped": _outbox_stopped,
    "outbox_behind": _outbox_behind,
    "outbox_refused": _outbox_refused,
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
