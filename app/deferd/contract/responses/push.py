"""The responses about pushed topics."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, get_args

from deferd.contract.push import CircuitState, Mode
from deferd.contract.responses.response import Response, one_of


class Push(Response, frozen=True, kw_only=True):
    """How the jobs of a topic are pushed."""

    topic: str
    url: Annotated[str, "Where the jobs are sent."]
    secret_count: Annotated[int, "How many secrets sign the requests. The secrets are never shown."]
    timeout: Annotated[float, "How long the target may take to respond, in seconds."]
    max_in_flight: Annotated[int, "Most requests under way at a time, of all processes together."]
    rate: Annotated[float | None, "Most requests a second; `null`: there is no limit."]
    header_names: Annotated[list[str], "The names of the further headers. Their values are never shown."]
    mode: Annotated[str, one_of(*get_args(Mode)), "`job`: one job a request. `batch`: up to 100."]

    schema_examples = (
        {
            "topic": "orders.close",
            "url": "https://shop.example.com/hooks/close",
            "secret_count": 1,
            "timeout": 30,
            "max_in_flight": 10,
            "rate": None,
            "header_names": [],
            "mode": "job",
        },
    )


class PushTarget(Response, frozen=True, kw_only=True):
    """The state of the target of a pushed topic."""

    circuit: Annotated[
        str,
        one_of(*get_args(CircuitState)),
        "`closed`: jobs are pushed. `open`: the target failed, and nothing is sent until `open_until`. "
        "`half_open`: one request tests whether the target is back.",
    ]
    failures: Annotated[int, "Failures in a row."]
    in_flight: Annotated[int, "Requests under way, as the processes last reported."]
    open_until: Annotated[datetime | None, "Until when the circuit is open; `null` unless it is."]
    last_error: Annotated[str | None, "The last failure; `null` after a success."]
    last_error_at: Annotated[datetime | None, "When that was."]


class RemovedPush(Response, frozen=True, kw_only=True):
    """A push that was removed."""

    topic: str
    removed: Annotated[bool, "`true`."]

    schema_examples = ({"topic": "orders.close", "removed": True},)


class TestedPush(Response, frozen=True, kw_only=True):
    """How a target responded to a test."""

    message_id: Annotated[str, "The `webhook-id` of the request."]
    took: Annotated[float, "Seconds from the beginning of the request to the end of the response."]
    status: Annotated[int | None, "The status of the response; `null` without one."]
    response: Annotated[str, "The first 200 bytes of the response's body, on one line."]
    error: Annotated[str | None, "Why there is no response; `null` if there is one."]

    schema_examples = (
        {
            "message_id": "msg_test_5f0c9a3be7d2481c",
            "took": 0.042,
            "status": 200,
            "response": '{"ok": true}',
            "error": None,
        },
    )
