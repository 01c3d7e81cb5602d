"""Flow control: the group and the priority of a job, and the limits of a topic.

In the settings of a topic its limits are stored as a JSON object that has only what is set::

    {"n": most jobs in flight, "r": RATE, "g": {"n", "r"} of each group, "s": {group: {"n", "r", "w": weight}}}

A RATE is `{"c": count, "p": milliseconds}`: in any span of so many milliseconds at most `count` deliveries begin. A
burst is folded into it: `{"count": 100, "per": 1, "burst": 10}` becomes at most 10 in any 100 ms, so at most 100 in any
second. What was given is then kept beside it as `"k": [count, milliseconds, burst]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo

from deferd.contract import limits
from deferd.contract.strict_model import StrictModel, constraint, seconds_field

Group = Annotated[
    str,
    StringConstraints(pattern=limits.GROUP_PATTERN),
    Field(
        description="The group of the job, such as the customer that it is for. The groups of a topic take turns, and "
        "the topic's `limits` may bound each of them. Not for topics with several partitions.",
        examples=["customer-7"],
    ),
]
Priority = Annotated[
    int,
    Field(
        strict=True,
        ge=0,
        le=limits.PRIORITY_MAX,
        description=f"0 to {limits.PRIORITY_MAX}: of the ready jobs of a topic, those of a higher priority are handed "
        "out first. Default: 0. Not for topics with several partitions.",
    ),
]
_BURSTS_TRIED = 100


def _fits_the_count(burst: int, info: ValidationInfo) -> int:
    count, per = info.data.get("count"), info.data.get("per")
    if count is None or per is None:
        return burst
    if burst > count:
        raise ValueError(f"must be at most the `count`, {count}")
    least = -(-count // _ms(per))
    if burst < least:
        raise ValueError(f"must be at least {least}, what the rate allows in a millisecond")
    return burst


class Rate(StrictModel):
    """How many deliveries may begin in any span of `per` seconds of the store's clock; a redelivery counts."""

    count: int = Field(
        strict=True, ge=1, le=limits.FLOW_COUNT_MAX, description=f"Most deliveries, 1 to {limits.FLOW_COUNT_MAX}."
    )
    per: float = seconds_field(
        limits.RATE_SPAN_MIN_S,
        limits.RATE_SPAN_MAX_S,
        f"The length of the span in seconds, {limits.RATE_SPAN_MIN_S} to {limits.RATE_SPAN_MAX_S}.",
        default=1.0,
    )
    burst: (
        Annotated[
            int,
            Field(
                strict=True,
                ge=1,
                description="How many deliveries may begin at once, 1 to `count`; the others are spread over `per`. If "
                "`burst` does not divide `count`, a little less than `count` may be handed out. Default: `count`.",
            ),
            AfterValidator(_fits_the_count),
        ]
        | None
    ) = None

    schema_examples = ({"count": 100, "per": 1, "burst": 10},)


class FlowLimits(StrictModel):
    """Limits of deliveries. Omitted fields are no limit."""

    max_in_flight: (
        Annotated[
            int,
            Field(
                strict=True,
                ge=1,
                le=limits.FLOW_COUNT_MAX,
                description="Most jobs that consumers hold at a time.",
            ),
        ]
        | None
    ) = None
    rate: Rate | None = None


class LimitsOfGroup(FlowLimits):
    """The limits of one group, and its share of the turns."""

    weight: (
        Annotated[
            int,
            Field(
                strict=True,
                ge=1,
                le=limits.WEIGHT_MAX,
                description=f"How many turns the group has where another one has one, 1 to {limits.WEIGHT_MAX}. "
                "Default: 1.",
            ),
        ]
        | None
    ) = None


class TopicLimits(FlowLimits):
    """The limits of a topic: of all its jobs together, of the jobs of each group, and of single groups."""

    per_group: FlowLimits | None = Field(
        default=None,
        description="The limits of each group. With `max_in_flight` 1 the next job of a group is handed out only when "
        "the one before has ended. Jobs without a group have no such limit.",
    )
    groups: dict[Group, LimitsOfGroup] | None = Field(
        default=None,
        max_length=limits.NAMED_GROUPS_MAX,
        description=f"By name, up to {limits.NAMED_GROUPS_MAX}: groups with other limits than `per_group` has; of "
        "these, fields that are left out hold for them too.",
        examples=[{"customer-7": {"max_in_flight": 5, "weight": 3}}],
    )

    schema_examples = (
        {
            "max_in_flight": 50,
            "rate": {"count": 100, "per": 1},
            "per_group": {"max_in_flight": 1},
            "groups": {"customer-7": {"max_in_flight": 5, "weight": 3}},
        },
    )


def _none_if_empty(given: TopicLimits | None) -> TopicLimits | None:
    return given if given is not None and limits_to_store(given) else None


Limits = Annotated[TopicLimits | None, AfterValidator(_none_if_empty), constraint("limits")]


def limits_to_store(given: TopicLimits) -> dict[str, Any]:
    """The limits as they are stored; empty if there is none."""
    stored = _stored(given)
    if given.per_group is not None and (of_each := _stored(given.per_group)):
        stored["g"] = of_each
    named = {name: _stored_of_group(of_group) for name, of_group in (given.groups or {}).items()}
    if named := {name: of_group for name, of_group in named.items() if of_group}:
        stored["s"] = named
    return stored


def read_limits(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a TopicLimits, from what `limits_to_store` wrote."""
    fields = _read(stored)
    if "g" in stored:
        fields["per_group"] = _read(stored["g"])
    if "s" in stored:
        fields["groups"] = {name: _read(of_group) for name, of_group in stored["s"].items()}
    return fields


def _stored_of_group(given: LimitsOfGroup) -> dict[str, Any]:
    return _stored(given) | ({} if given.weight is None else {"w": given.weight})


def _stored(given: FlowLimits) -> dict[str, Any]:
    stored: dict[str, Any] = {}
    if given.max_in_flight is not None:
        stored["n"] = given.max_in_flight
    if given.rate is not None:
        stored["r"] = _rate_to_store(given.rate)
    return stored


def _rate_to_store(rate: Rate) -> dict[str, Any]:
    per_ms = _ms(rate.per)
    if rate.burst is None:
        return {"c": rate.count, "p": per_ms}
    count, span_ms = _folded(rate.count, per_ms, rate.burst)
    return {"c": count, "p": span_ms, "k": [rate.count, per_ms, rate.burst]}


def _folded(count: int, per_ms: int, burst: int) -> tuple[int, int]:
    """The most deliveries at once, at most `burst`, and the milliseconds until as many may follow.

    `per_ms` is then at most `count // at_once` such spans, so that no span of `per_ms` has more than `count`. Of the
    numbers up to `burst` the one that comes closest to the rate is taken.
    """
    of_bursts = (
        (at_once, -(-per_ms // (count // at_once))) for at_once in range(burst, max(burst - _BURSTS_TRIED, 0), -1)
    )
    return max(of_bursts, key=lambda found: found[0] / found[1])


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _read(stored: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if (max_in_flight := stored.get("n")) is not None:
        fields["max_in_flight"] = max_in_flight
    if (rate := stored.get("r")) is not None:
        count, per_ms, *burst = rate.get("k") or (rate["c"], rate["p"])
        fields["rate"] = {"count": count, "per": per_ms / 1000, **({"burst": burst[0]} if burst else {})}
    if (weight := stored.get("w")) is not None:
        fields["weight"] = weight
    return fields
