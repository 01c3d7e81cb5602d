"""The fields that decide what a put does about an existing job with its id, and how puts of one id become one job."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo

from deferd.contract import limits
from deferd.contract.constraints import seconds_field

_MOVING = frozenset({"replace", "append"})
"""Values of `on_conflict` with which a put moves the due time."""


# Each function below checks one field against those before it in `PutJob`; of those that are invalid nothing is known.


def _has_an_id(value: Any, info: ValidationInfo) -> Any:
    if info.data.get("id", "") is None:
        raise ValueError("needs an `id`: without one no two puts are for the same job")
    return value


def _appends_to_an_id(on_conflict: str, info: ValidationInfo) -> str:
    if on_conflict == "append" and info.data.get("id", "") is None:
        raise ValueError("`append` needs an `id`, under which the bodies are collected")
    return on_conflict


def _says_what_becomes_of_others(if_reserved: str, info: ValidationInfo) -> str:
    if if_reserved == "after":
        if info.data.get("on_conflict") == "reject":
            raise ValueError("`after` needs `on_conflict` `keep`, `replace` or `append`, not `reject`")
        _has_an_id(if_reserved, info)
    return if_reserved


def _counts_items(max_items: int, info: ValidationInfo) -> int:
    if info.data.get("on_conflict", "append") != "append":
        raise ValueError("needs `on_conflict` `append`, which alone makes items")
    return max_items


def _is_long_enough(max_wait: float, info: ValidationInfo) -> float:
    if info.data.get("on_conflict", "replace") not in _MOVING:
        raise ValueError("needs `on_conflict` `replace` or `append`, which move the due time")
    delay = info.data.get("delay")
    if delay is not None and max_wait < delay:
        raise ValueError(f"must be at least the `delay`, {delay:g} seconds")
    return max_wait


OnConflict = Annotated[
    Literal["reject", "keep", "replace", "append"],
    Field(
        description="What to do when the topic has a job with this id: `reject` responds 409 `job_exists`; `keep` "
        "leaves the existing job unchanged; `replace` replaces it, unless a consumer holds it (409 `job_reserved`); "
        "`append` collects the bodies of all puts under this id: the consumer gets them as an array.",
    ),
    AfterValidator(_appends_to_an_id),
]
ConflictWith = Annotated[
    Literal["any", "live"],
    Field(
        description="Which jobs are in the way of this put: `any` job with its id, also a dead or finished one that is "
        "still kept and an id that `unique_for` keeps taken, or only a `live` one (delayed, ready or reserved).",
    ),
]
IfHeld = Annotated[
    Literal["refuse", "after"],
    Field(
        description="What to do when a consumer holds the job that is in the way: `refuse` responds 409 `job_reserved` "
        "(with `keep` the held job is kept); `after` stores this put as the job's one follow-up, which becomes the job "
        "when the held one has ended. Needs `on_conflict` `keep`, `replace` or `append`, which then say what becomes "
        "of an earlier follow-up.",
    ),
    AfterValidator(_says_what_becomes_of_others),
]
MaxWait = Annotated[
    float,
    seconds_field(
        0.001,
        limits.DELAY_MAX_S,
        "With `on_conflict` `replace` or `append`: each put moves the due time, but never beyond this many seconds "
        "after the first of the puts that became one job. At least as long as `delay`.",
    ),
    AfterValidator(_is_long_enough),
    AfterValidator(_has_an_id),
]
MaxItems = Annotated[
    int,
    Field(
        strict=True,
        ge=1,
        le=limits.ITEMS_MAX,
        description="With `on_conflict` `append`: the job is due at once when it has this many items, 1 to "
        f"{limits.ITEMS_MAX}.",
    ),
    AfterValidator(_counts_items),
]
UniqueFor = Annotated[
    float,
    seconds_field(
        0.001,
        limits.RETAIN_MAX_S,
        "Seconds for which the id stays taken after the job is finished, with any `on_conflict`: further puts get 409 "
        "`job_exists`. A cancel of the id frees it.",
    ),
    AfterValidator(_has_an_id),
]
FollowUp = Annotated[
    Literal["cancel", "keep"],
    Field(
        description="What becomes of the job's follow-up (a put with `if_reserved` `after`): `cancel` it too, or "
        "`keep` it: it takes the job's place, not before the lease of a consumer that held the job would have ended.",
    ),
]
