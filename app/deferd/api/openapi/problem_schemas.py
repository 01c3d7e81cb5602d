"""The schema of problem documents, for the OpenAPI document only: `api.problem_details` writes them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, Field

from deferd.api.problem_details import BY_CODE
from deferd.contract.model import JobState

ProblemCode = Annotated[
    str,
    Field(
        description="The kind of error, for programs to decide by. Codes never change.",
        json_schema_extra={"enum": sorted(BY_CODE), "x-name": "ProblemCode"},
    ),
]


class FieldError(BaseModel):
    """One invalid value."""

    field: str = Field(
        description="Its location: `body`, `query` or `path`, then the names below it, separated by dots."
    )
    message: str = Field(description="What is wrong, with the bound that the value breaks.")
    value: Any = Field(None, description="The value if it is small; a long string is cut.")
    pointer: str | None = Field(None, description="Its location in the request body, as a JSON Pointer fragment.")


class Problem(BaseModel):
    """An error (RFC 9457). Programs should decide by `code`; `title` and `detail` are for people."""

    type: str = Field(description="A URN of the kind of error; it ends in `code`.")
    title: str = Field(description="The kind of error in words.")
    status: int = Field(ge=400, le=599, description="The HTTP status.")
    detail: str = Field(description="What went wrong in this request.")
    code: ProblemCode
    topic: str | None = Field(None, description="The topic concerned.")
    id: str | None = Field(None, description="The job concerned.")
    calendar: str | None = Field(None, description="With `calendar_not_found`: the calendar concerned.")
    task: str | None = Field(None, description="With `task_not_found`: the task concerned.")
    errors: list[FieldError] | None = Field(None, description="With `validation`: the invalid values, at most 100.")
    limit_bytes: int | None = Field(None, description="With `payload_too_large`: the maximum size of a body.")
    max_jobs: int | None = Field(None, description="With `topic_full`: the maximum number of live jobs in the topic.")
    durability: str | None = Field(
        None,
        description="With `durability_unavailable`: the requested level. With `job_exists` and `job_reserved` of a "
        "put: the level that the existing job has reached.",
    )
    available: list[str] | None = Field(None, description="With `durability_unavailable`: the available levels.")
    state: JobState | None = Field(None, description="With `job_exists`: the state of the job that has the id.")
    until: datetime | None = Field(
        None,
        description="With `job_exists` of a dead or finished job: when its retention, or its `unique_for`, ends.",
    )
