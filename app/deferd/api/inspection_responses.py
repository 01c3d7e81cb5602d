"""What operators look at, as the API shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deferd.api.response_values import instant, instant_or_none, seconds
from deferd.contract.responses import inspection as responses
from deferd.engine.history.finish_rates import Rates
from deferd.engine.inspection.consumers import Consumers
from deferd.engine.inspection.dead_errors import DeadErrors
from deferd.engine.inspection.forecast import Forecast, TopicForecast


def dead_errors(found: DeadErrors, limit: int) -> responses.DeadErrors:
    """Dead jobs by error: the `limit` largest groups."""
    return responses.DeadErrors(
        groups=[
            responses.DeadGroup(
                topic=group.topic,
                reason=group.reason,
                error=group.error,
                count=group.count,
                first_at=instant_or_none(group.first_ms),
                last_at=instant_or_none(group.last_ms),
                samples=group.samples,
            )
            for group in found.groups[:limit]
        ],
        left_out=max(len(found.groups) - limit, 0),
        dead=found.dead,
        looked_at=found.looked_at,
        complete=found.is_complete,
        unreadable_shards=found.unreadable,
    )


def forecast(made: Forecast, shown: Mapping[str, TopicForecast], rates: Rates) -> responses.Forecast:
    """What comes due, in all and in the topics to show, and what was finished at these rates."""
    period = made.period
    bucket_s = (period.to_ms - period.from_ms) / period.buckets / 1000
    return responses.Forecast(
        now=instant(made.now_ms),
        begins_at=instant(period.from_ms),
        ends_at=instant(period.to_ms),
        bucket=seconds(round((period.to_ms - period.from_ms) / period.buckets)),
        **_due(made.total()),
        handled=_handled(rates.in_all, bucket_s),
        topics=[
            responses.TopicForecast(topic=name, **_due(counts), handled=_handled(rates.of_topic.get(name), bucket_s))
            for name, counts in shown.items()
        ],
        left_out=len(made.topics) - len(shown),
        complete=made.is_complete,
        unreadable_shards=sorted(made.unreadable),
    )


def _due(counts: TopicForecast) -> dict[str, Any]:
    due = {"delayed": counts.delayed, "before": counts.before, "after": counts.after, "counts": [*counts.counts]}
    return {**due, "scheduled": [*counts.scheduled] or [0] * len(counts.counts)}


def _handled(rate: float | None, bucket_s: float) -> float | None:
    return None if rate is None else round(rate * bucket_s, 2)


def consumers(found: Consumers, limit: int) -> responses.Consumers:
    """Who consumes: the first `limit`."""
    return responses.Consumers(
        consumers=[
            responses.Consumer(
                name=one.name,
                addresses=sorted(one.addresses),
                clients=sorted(one.clients),
                topics=sorted(one.topics),
                waiting=one.waiting,
                last_seen_at=instant_or_none(None if one.seen_ms is None else found.now_ms - one.seen_ms),
                held=one.held,
                lease_ends_at=instant_or_none(one.lease_end_ms),
            )
            for one in found.consumers[:limit]
        ],
        left_out=max(len(found.consumers) - limit, 0),
        nameless_held=found.nameless,
        complete=found.is_complete,
    )
