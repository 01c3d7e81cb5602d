"""The schemas of responses about pushed topics, for the OpenAPI document only."""

from __future__ import annotations

from pydantic import BaseModel, Field

from deferd.contract.push import Mode


class Push(BaseModel):
    """How the jobs of a topic are pushed."""

    topic: str
    url: str = Field(description="Where the jobs are sent.")
    secret_count: int = Field(description="How many secrets sign the requests. The secrets are never shown.")
    timeout: float = Field(description="How long the target may take to respond, in seconds.")
    max_in_flight: int = Field(description="Most requests under way at a time, of all processes together.")
    rate: float | None = Field(description="Most requests a second; `null`: there is no limit.")
    header_names: list[str] = Field(description="The names of the further headers. Their values are never shown.")
    mode: Mode = Field(description="`job`: one job a request. `batch`: up to 100.")


class RemovedPush(BaseModel):
    """A push that was removed."""

    topic: str
    removed: bool = Field(description="`true`.")


class TestedPush(BaseModel):
    """How a target responded to a test."""

    message_id: str = Field(description="The `webhook-id` of the request.")
    took: float = Field(description="Seconds from the beginning of the request to the end of the response.")
    status: int | None = Field(description="The status of the response; `null` without one.")
    response: str = Field(description="The first 200 bytes of the response's body, on one line.")
    error: str | None = Field(description="Why there is no response; `null` if there is one.")
