"""For operators: why a job does not run, dead jobs by error, what comes due, and who consumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import orjson
from fastapi import Query
from msgspec.structs import replace
from pydantic import Field

from deferd.api.context import CurrentRequest, RequestContext
from deferd.api.operation_router import OperationRouter
from deferd.api.responses import instant_or_none, seconds
from deferd.api.routes.queries import TopicsQuery, page_limit
from deferd.contract import limits
from deferd.contract.counted import counted
from deferd.contract.encrypted_values import key_of
from deferd.contract.model import Instant, JobId, JobState, Topic
from deferd.contract.operations import inspection as contract
from deferd.contract.operations.inspection import Explanation, WhyReason
from deferd.contract.strict_model import StrictModel
from deferd.contract.timestamps import instant, instant_text
from deferd.engine.inspection.consumers import TopicActivity
from deferd.engine.inspection.forecast import TopicForecast
from deferd.engine.inspection.job_facts import JobFacts, MissingJob, Pause
from deferd.engine.record import JobRecord, instant_ms

router = OperationRouter()

_LOOK_AT_DEFAULT, _LOOK_AT_MAX = 5000, 100_000
_BUCKETS_DEFAULT, _BUCKETS_MAX = 60, 240
_TOPICS_SHOWN_DEFAULT = 20


def is_visible(request: RequestContext) -> Callable[[str], bool]:
    """Whether the caller may see a topic."""
    visible = request.admission.visible_topics
    return (lambda _topic: True) if visible is None else visible.match


@router.serves(contract.EXPLAIN_JOB)
async def explain_job(request: CurrentRequest, topic: Topic, id: JobId) -> contract.Explanation:
    facts = await request.engine.topics.why(topic, id)
    needs_consumer = isinstance(facts, JobFacts) and facts.record.state is JobState.READY and facts.target is None
    activity = await request.engine.consumer_registry.activity_of(topic) if needs_consumer else None
    shelf_after_s = request.app.settings.shelf_after
    return explanation(topic, id, facts, activity, loaded_ahead_s=None if shelf_after_s is None else shelf_after_s / 2)


class DeadQuery(TopicsQuery):
    """The parameters of dead jobs by error."""

    since: Instant | None = Field(
        None, description="Only jobs that died at this instant or later, or whose time of death is not known."
    )
    limit: int = page_limit("groups", which="the largest ones")
    look_at: int = Field(
        _LOOK_AT_DEFAULT,
        strict=True,
        ge=1,
        le=_LOOK_AT_MAX,
        description="About how many dead jobs to read at most, 1 to 100000; each topic gets an equal share.",
    )


@router.serves(contract.LIST_DEAD_ERRORS, topics=lambda arguments: arguments["query"].names)
async def list_dead_errors(request: CurrentRequest, query: Annotated[DeadQuery, Query()]) -> contract.DeadErrors:
    found = await request.engine.dead_jobs.by_error(
        query.names or None,
        is_visible(request),
        since_ms=None if query.since is None else instant_ms(query.since),
        look_at=query.look_at,
    )
    return contract.DeadErrors(
        groups=[
            contract.DeadGroup(
                topic=group.topic,
                reason=group.reason,
                error=group.error,
                count=group.count,
                first_at=instant_or_none(group.first_ms),
                last_at=instant_or_none(group.last_ms),
                samples=group.samples,
                originals=[contract.DeadOriginal(error=error, count=count) for error, count in group.originals],
            )
            for group in found.groups[: query.limit]
        ],
        left_out=max(len(found.groups) - query.limit, 0),
        dead=found.dead,
        looked_at=found.looked_at,
        complete=found.is_complete,
        unreadable_shards=found.unreadable,
    )


class ForecastQuery(TopicsQuery):
    """The parameters of a forecast."""

    from_: Instant | None = Field(None, alias="from", description="When the first bucket begins; by default now.")
    to: Instant | None = Field(
        None, description="When the last bucket ends; by default 6 hours after the beginning, or after now."
    )
    buckets: int = Field(
        _BUCKETS_DEFAULT,
        strict=True,
        ge=1,
        le=_BUCKETS_MAX,
        description=f"How many buckets of equal length, 1 to {_BUCKETS_MAX}.",
    )
    limit: int = Field(
        _TOPICS_SHOWN_DEFAULT,
        strict=True,
        ge=0,
        le=limits.PAGE_MAX,
        description="Maximum number of topics to show, 0 to 1000: those with the most jobs due in the period. The sums "
        "include all.",
    )


@router.serves(contract.GET_FORECAST, topics=lambda arguments: arguments["query"].names)
async def get_forecast(request: CurrentRequest, query: Annotated[ForecastQuery, Query()]) -> contract.Forecast:
    forecast = await request.engine.forecasts.forecast(
        query.names or None,
        is_visible(request),
        from_ms=None if query.from_ is None else instant_ms(query.from_),
        to_ms=None if query.to is None else instant_ms(query.to),
        buckets=query.buckets,
    )
    shown = forecast.with_most(query.limit)
    is_everything = not query.names and request.admission.visible_topics is None
    wanted = None if is_everything else query.names or ["*"]
    rates = await request.engine.finish_rates.read(list(shown), wanted, is_visible(request))
    rate_limits = await request.engine.forecasts.rate_limits(shown)
    period = forecast.period
    bucket_s = (period.to_ms - period.from_ms) / period.buckets / 1000
    return contract.Forecast(
        now=instant(forecast.now_ms),
        begins_at=instant(period.from_ms),
        ends_at=instant(period.to_ms),
        bucket=seconds(round((period.to_ms - period.from_ms) / period.buckets)),
        **_due(forecast.total()),
        handled=_per_bucket(rates.in_all, bucket_s),
        topics=[
            contract.TopicForecast(
                topic=name,
                **_due(counts),
                handled=_per_bucket(rates.of_topic.get(name), bucket_s),
                rate_limit=_per_bucket(rate_limits.get(name), bucket_s),
            )
            for name, counts in shown.items()
        ],
        left_out=len(forecast.topics) - len(shown),
        complete=forecast.is_complete,
        unreadable_shards=sorted(forecast.unreadable),
    )


class ConsumersQuery(StrictModel):
    """The parameters of a list of consumers."""

    limit: int = page_limit("consumers")


@router.serves(contract.LIST_CONSUMERS)
async def list_consumers(request: CurrentRequest, query: Annotated[ConsumersQuery, Query()]) -> contract.Consumers:
    visible = request.admission.visible_topics

    def is_visible(topic: str) -> bool:
        return visible is None or bool(visible.overlapping(topic))

    found = await request.engine.consumers.all(is_visible)
    return contract.Consumers(
        consumers=[
            contract.Consumer(
                name=one.name,
                addresses=sorted(one.addresses),
                clients=sorted(one.clients),
                topics=sorted(one.topics),
                waiting=one.waiting,
                last_seen_at=instant_or_none(None if one.seen_ms is None else found.now_ms - one.seen_ms),
                held=one.held,
                lease_ends_at=instant_or_none(one.lease_end_ms),
            )
            for one in found.consumers[: query.limit]
        ],
        left_out=max(len(found.consumers) - query.limit, 0),
        nameless_held=found.nameless,
        complete=found.is_complete,
    )


def _due(counts: TopicForecast) -> dict[str, Any]:
    due = {"delayed": counts.delayed, "before": counts.before, "after": counts.after, "counts": [*counts.counts]}
    return {**due, "scheduled": [*counts.scheduled] or [0] * len(counts.counts)}


def _per_bucket(rate: float | None, bucket_s: float) -> float | None:
    return None if rate is None else round(rate * bucket_s, 2)


# Why a job has not run: each reason is a code with facts for programs, and a sentence for people.


def explanation(
    topic: str,
    id: str,
    facts: JobFacts | MissingJob,
    activity: TopicActivity | None,
    *,
    loaded_ahead_s: float | None = None,
) -> Explanation:
    """The reasons; what holds the job back now comes first.

    `activity` None: nothing is known about consumers, or the topic is pushed and needs none. `loaded_ahead_s`: how long
    before they are due jobs leave the shelf, None if they leave it at once.
    """
    if isinstance(facts, MissingJob):
        return Explanation(topic=topic, id=id, state=None, reasons=[_missing(facts)])
    state = facts.record.state
    match state:
        case JobState.DELAYED:
            due = _delayed(facts)
            if facts.was_shelved:
                due = replace(due, text=f"{due.text} {_shelved(loaded_ahead_s)}")
            reasons = [*_placed(facts, due), *_paused_reason(facts), *_failing_push(facts)]
        case JobState.READY:
            reasons = [*_paused_reason(facts), *_pushed(facts), *_limited(facts), *_ready(facts, activity)]
        case JobState.RESERVED:
            reasons = [_leased(facts)]
        case JobState.DEAD:
            reasons = [_dead(facts)]
        case JobState.FINISHED:
            reasons = [_finished(facts)]
    shelved = True if facts.was_shelved and state is JobState.DELAYED else None
    return Explanation(topic=topic, id=id, state=state, shelved=shelved, reasons=reasons)


def _delayed(facts: JobFacts) -> WhyReason:
    job = facts.record
    due: dict[str, Any] = {"due_at": instant(job.due_at_ms), "due_in": seconds(job.due_at_ms - facts.now_ms)}
    when = _when(job.due_at_ms, facts.now_ms)
    snoozes = job.endings.snoozes or None
    if not job.attempts:
        snoozed = f"; it was snoozed {_times(snoozes)}" if snoozes else ""
        return WhyReason(code="not_due", text=f"It is due {when}{snoozed}.", **due, snoozes=snoozes)
    last = _last_attempt(job)
    failed = f" failed with {_quoted(last['error'])}" if "error" in last else " failed"
    most = job.stored("max_attempts") or None
    left = f" of {most}" if most else ""
    text = f"Attempt {job.attempts}{left}{failed}; the next is due {when}."
    return WhyReason(code="backoff", text=text, **due, **last, max_attempts=most, snoozes=snoozes)


def _shelved(loaded_ahead_s: float | None) -> str:
    where = "It was on the shelf, on disk"
    if loaded_ahead_s is not None:
        until = f"{_span(loaded_ahead_s)} before they are due" if loaded_ahead_s else "they are due"
        where += f", where jobs stay until {until}"
    return f"{where}; this look has loaded it."


def _placed(facts: JobFacts, due: WhyReason) -> list[WhyReason]:
    """Why it is due, and what moved that: its opening hours and its spread hold it back alone once it would be due."""
    job, placement = facts.record, facts.record.placement
    if not placement.moved_ms:
        return [due]
    asked_for_ms = job.due_at_ms - placement.moved_ms
    what = " and ".join(
        part for part, is_there in (("opening hours", placement.window), ("spread", placement.spread_ms)) if is_there
    )
    moved = WhyReason(
        code="window",
        text=f"Its {what or 'opening hours'} moved it by {_span(placement.moved_ms / 1000)}: without them it would be "
        f"due {_when(asked_for_ms, facts.now_ms)}.",
        asked_for=instant(asked_for_ms),
        moved=seconds(placement.moved_ms),
        window=orjson.loads(placement.window) if placement.window else None,
        spread=seconds(placement.spread_ms) if placement.spread_ms else None,
    )
    return [moved, due] if asked_for_ms <= facts.now_ms else [due, moved]


def _last_attempt(job: JobRecord) -> dict[str, Any]:
    """The number of the last attempt that ended, and how it ended, where known."""
    facts: dict[str, Any] = {"attempt": job.attempts}
    log = job.endings.attempts_log
    if log:
        _, ended_at_ms, how, consumer, error = log[-1]
        facts |= {"ended_at": instant(ended_at_ms), "how": how}
        if consumer:
            facts["by"] = consumer
        if error:
            facts["error"] = error
    if "error" not in facts and job.last_error is not None:
        facts["error"] = job.last_error
    return facts


def _paused_reason(facts: JobFacts) -> Iterator[WhyReason]:
    pause = facts.pause
    if pause is None:
        return
    yield WhyReason(
        code="paused",
        text=f"Topic {facts.record.topic} has been paused{_pause_text(pause, facts.now_ms)}: it hands out no jobs.",
        since=instant_or_none(pause.since_ms),
        by=pause.by,
        why=pause.reason,
    )


def _pause_text(pause: Pause, now_ms: int) -> str:
    since = "" if pause.since_ms is None else f" for {_span((now_ms - pause.since_ms) / 1000)}"
    by = "" if pause.by is None else f" by {pause.by}"
    return since + by + ("" if pause.reason is None else f" ({pause.reason})")


def _failing_push(facts: JobFacts) -> Iterator[WhyReason]:
    """A delayed job waits for its due time first: only a target that fails is worth a word."""
    if facts.target is not None and facts.target.failures:
        yield from _pushed(facts)


def _pushed(facts: JobFacts) -> Iterator[WhyReason]:
    target = facts.target
    if target is None:
        return
    parts = [f"The service pushes topic {facts.record.topic} to its target"]
    if target.failures:
        failed_ms = target.last_error_at_ms
        when = "" if failed_ms is None else f" {_when(failed_ms, facts.now_ms)}"
        error = "" if target.last_error is None else f" with {_quoted(target.last_error)}"
        parts.append(f"which has failed {_times(target.failures)} in a row, the last time{when}{error}")
    if target.open_until_ms is not None:
        parts.append(f"the circuit is open, and the next try is {_when(target.open_until_ms, facts.now_ms)}")
    elif target.circuit == "half_open":
        parts.append("the circuit is half open: one request tries whether it responds again")
    else:
        requests = counted(target.in_flight, "request is", "requests are")
        parts.append(f"the circuit is closed, and {requests} under way")
    yield WhyReason(
        code="push",
        text="; ".join(parts) + ".",
        circuit=target.circuit,
        failures=target.failures,
        in_flight=target.in_flight,
        error=target.last_error,
        ended_at=instant_or_none(target.last_error_at_ms),
        next_try_at=instant_or_none(target.open_until_ms),
    )


def _limited(facts: JobFacts) -> Iterator[WhyReason]:
    job = facts.record
    for limit in facts.limits:
        of_topic = not limit.name.startswith("group_")
        whose = f"Topic {job.topic}" if of_topic else f"Group {job.group} of topic {job.topic}"
        text = f"{whose} {_LIMITED[limit.name.removeprefix('group_')]}"
        if limit.room_at_ms is not None:
            text += f"; the next may go {_when(limit.room_at_ms, facts.now_ms)}"
        yield WhyReason(
            code="limited",
            text=text + ".",
            limit=limit.name,
            group=job.group,
            jobs_ahead=facts.ahead,
            next_at=instant_or_none(limit.room_at_ms),
        )


_LIMITED = {
    "max_in_flight": "has as many jobs in flight as its `max_in_flight` allows",
    "rate": "has handed out as many jobs as its `rate` allows",
    "paused": "is paused: none of its jobs is handed out",
    "order": "hands out its jobs one after the other, and waits for a job that is tried again later",
}


def _ready(facts: JobFacts, activity: TopicActivity | None) -> Iterator[WhyReason]:
    topic, ahead = facts.record.topic, facts.ahead
    if activity is not None and not activity.is_consumed:
        since = activity.last_consumer_ms
        seen = (
            "No consumer has been seen" if since is None else f"The last consumer was seen {_when(since, facts.now_ms)}"
        )
        yield WhyReason(code="no_consumers", text=f"{seen} for topic {topic}.", since=instant_or_none(since))
    oldest_ms = facts.oldest_due_at_ms
    age_ms = None if oldest_ms is None else max(facts.now_ms - oldest_ms, 0)
    rate = None if activity is None else activity.rate
    wait_s = (ahead + 1) / rate if rate and not facts.takes_turns else None
    whose = " of its group" if facts.takes_turns else ""
    parts = [
        f"{counted(ahead, f'job{whose} is', f'jobs{whose} are')} ahead of it"
        if ahead
        else f"It is the next job{whose or ' of its topic'}"
    ]
    if facts.takes_turns:
        parts.append("groups take turns")
    if age_ms is not None and ahead:
        parts.append(f"the oldest has waited {_span(age_ms / 1000)}")
    if rate is not None:
        parts.append(f"consumers take {rate:,.3g} jobs a second")
    if wait_s is not None and ahead:
        parts.append(f"so it may take {_span(wait_s)}")
    yield WhyReason(
        code="behind",
        text="; ".join(parts) + ".",
        group=facts.record.group,
        jobs_ahead=ahead,
        ready=facts.ready,
        oldest_age=None if age_ms is None else seconds(age_ms),
        rate=None if rate is None else round(rate, 3),
        estimated_wait=None if wait_s is None else round(wait_s, 3),
    )


def _leased(facts: JobFacts) -> WhyReason:
    job = facts.record
    until_ms = facts.until_ms or 0
    holder = job.reserved_by or "A consumer that gave no name"
    if facts.target is not None:
        holder = f"The push of the topic ({job.reserved_by})"
    waits = " A put waits until that has ended." if facts.has_follow_up else ""
    ends = "ends" if until_ms > facts.now_ms else "ended"
    since_ms = job.reserved_since_ms
    held = "holds it" if since_ms is None else f"has held it for {_span((facts.now_ms - since_ms) / 1000)}"
    touched = f"; it was touched {_times(facts.touches)}" if facts.touches else ""
    return WhyReason(
        code="leased",
        text=f"{holder} {held}; the lease of attempt {job.attempts} {ends} {_when(until_ms, facts.now_ms)}"
        f"{touched}.{waits}",
        by=job.reserved_by,
        attempt=job.attempts,
        reserved_until=instant(until_ms),
        lease_left=seconds(until_ms - facts.now_ms),
        since=instant_or_none(since_ms),
        touches=facts.touches,
        follow_up=True if facts.has_follow_up else None,
    )


def _dead(facts: JobFacts) -> WhyReason:
    job, kept_ms = facts.record, facts.until_ms or 0
    error = "" if job.last_error is None else f": {_quoted(job.last_error)}"
    why = _DEAD.get(job.reason or "", "It is dead")
    return WhyReason(
        code="dead",
        text=f"{why}{error}. A redrive makes it ready again, due at once and with no attempts counted; without one it "
        f"is removed {_when(kept_ms, facts.now_ms)}.",
        reason=job.reason,
        error=job.last_error,
        attempt=job.attempts,
        dead_at=instant_or_none(job.dead_at_ms),
        kept_until=instant(kept_ms),
    )


_DEAD = {
    "expired": "It was not delivered within its ttl",
    "attempts_exhausted": "All its attempts have failed",
    "schedule_ended": "Its backoff has no wait left",
    "deadline": "It was not finished by its deadline",
    "buried": "A consumer buried it",
}


def _finished(facts: JobFacts) -> WhyReason:
    job, kept_ms = facts.record, facts.until_ms or 0
    at_ms = job.finished_at_ms
    when = "" if at_ms is None else f" {_when(at_ms, facts.now_ms)}"
    return WhyReason(
        code="finished",
        text=f"It was finished{when}; its record is kept until {instant_text(kept_ms)}.",
        finished_at=instant_or_none(at_ms),
        kept_until=instant(kept_ms),
    )


def _missing(job: MissingJob) -> WhyReason:
    if job.cancelled_until_ms is not None:
        until = instant_text(job.cancelled_until_ms)
        text = f"It was cancelled while a consumer held it; this is remembered until {until}."
        return WhyReason(code="cancelled", text=text, kept_until=instant(job.cancelled_until_ms))
    if job.taken_until_ms is not None:
        text = f"It was finished; its id stays taken until {instant_text(job.taken_until_ms)}."
        return WhyReason(code="finished", text=text, kept_until=instant(job.taken_until_ms))
    if not job.topic_is_known:
        text = "There is no such topic: nothing was put into it for an hour, and it has no settings."
        return WhyReason(code="unknown_job", text=text, nearest=[], compared=0, jobs=0)
    like = f" Ids like it: {', '.join(job.nearest)}." if job.nearest else ""
    text = (
        "The topic has no such job: it was never put, it was finished without `retain`, it was cancelled, or its "
        f"retention has ended.{like}"
    )
    return WhyReason(code="unknown_job", text=text, nearest=job.nearest, compared=job.compared, jobs=job.jobs)


def _when(at_ms: int, now_ms: int) -> str:
    """``in 30m (2030-01-31T09:30:00.000Z)``, by the store's clock."""
    away_s = abs(at_ms - now_ms) / 1000
    return f"{f'in {_span(away_s)}' if at_ms > now_ms else f'{_span(away_s)} ago'} ({instant_text(at_ms)})"


def _span(duration_s: float) -> str:
    """A duration in its two largest units, such as ``1h 30m``."""
    duration_s = max(duration_s, 0.0)
    if duration_s < 60:
        return f"{duration_s:.3g}s"
    left, parts = int(duration_s), list[str]()
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0"))


_QUOTED_CHARACTERS = 200


def _quoted(error: str) -> str:
    """The first line of an error text, not longer than a sentence; what only the application can read is not quoted."""
    if (key := key_of(error)) is not None:
        return f"an error that is encrypted with key {key}"
    line = error.strip().partition("\n")[0].strip()
    return f'"{line if len(line) <= _QUOTED_CHARACTERS else line[: _QUOTED_CHARACTERS - 1] + "…"}"'


def _times(count: int | None) -> str:
    return "once" if count == 1 else f"{count:,} times"
