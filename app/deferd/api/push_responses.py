"""A topic's push, its target and a test of it as responses. Secrets, and the values of headers, are never shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deferd.api.response_values import instant_or_none, whole
from deferd.contract.responses import push as responses
from deferd.engine.push.push_definition import PushDefinition, TargetState

if TYPE_CHECKING:
    from deferd.push.pushers import TestResult


def definition(stored: PushDefinition) -> responses.Push:
    """How the jobs of a topic are pushed."""
    push = stored.push
    return responses.Push(
        topic=stored.topic,
        url=push.url,
        secret_count=len(stored.secrets),
        timeout=whole(push.timeout),
        max_in_flight=push.max_in_flight,
        rate=None if push.rate is None else whole(push.rate),
        header_names=sorted(push.headers),
        mode=push.mode,
    )


def target(state: TargetState) -> responses.PushTarget:
    """What is known of the target of a pushed topic."""
    return responses.PushTarget(
        circuit=state.circuit,
        failures=state.failures,
        in_flight=state.in_flight,
        open_until=instant_or_none(state.open_until_ms),
        last_error=state.last_error,
        last_error_at=instant_or_none(state.last_error_at_ms),
    )


def test_result(result: TestResult) -> responses.TestedPush:
    """How a target responded to a test."""
    return responses.TestedPush(
        message_id=result.message_id,
        took=round(result.took_s, 3),
        status=result.status,
        response=result.excerpt,
        error=result.error,
    )
