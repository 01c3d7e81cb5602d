"""What is known of the consumers of one topic, in all processes."""

from __future__ import annotations

from typing import NamedTuple


class TopicActivity(NamedTuple):
    """`is_consumed`: somebody has popped the topic, or waits for it, within a minute.

    `last_consumer_ms`: when the last one was seen, None if that is not known. `rate`: jobs handed out per second in the
    last seconds, None if that is not known.
    """

    is_consumed: bool
    last_consumer_ms: int | None
    rate: float | None
