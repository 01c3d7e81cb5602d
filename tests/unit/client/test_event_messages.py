"""Messages of a stream as events."""

from __future__ import annotations

import pytest

from deferd.client.errors import UnexpectedAnswer
from deferd.client.events import _read_event
from deferd.client.response_stream import ServerSentEvent


def test_a_notice_of_a_later_service_is_an_event() -> None:
    event = _read_event(ServerSentEvent(None, "moved", '{"topic":"orders","shard":3}'))
    assert event.fields == {"topic": "orders", "event": "moved"}


@pytest.mark.parametrize("data", ["[]", "x", '{"topic":5}'])
def test_what_is_no_event_is_an_unexpected_answer(data: str) -> None:
    with pytest.raises(UnexpectedAnswer, match="it has no event"):
        _read_event(ServerSentEvent(None, "put", data))
