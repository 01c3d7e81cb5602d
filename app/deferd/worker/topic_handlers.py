"""The handlers of a worker, and which of them is for a topic."""

from __future__ import annotations

from collections.abc import Iterator

from deferd.contract.limits import POP_TOPICS_MAX
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.worker.handlers import Handler

_TOPICS_REMEMBERED = 10_000


class TopicHandlers:
    """Handlers by topic or pattern. A topic's own handler precedes those of patterns; the first pattern that matches
    counts, in the order of their declaration.

    The iteration is over topics and patterns as they were declared.
    """

    def __init__(self) -> None:
        self._declared: dict[str, Handler] = {}
        self._patterns: dict[str, TopicPatterns] = {}
        self._matched: dict[str, Handler | None] = {}

    def add(self, handler: Handler) -> None:
        """Declare a handler. Raises ValueError if its topic has one, or there are 32 already."""
        topic = handler.topic
        if topic in self._declared:
            raise ValueError(f"topic {topic!r} has a handler already: {self._declared[topic].function!r}")
        if len(self._declared) == POP_TOPICS_MAX:
            raise ValueError(f"a worker has handlers for at most {POP_TOPICS_MAX} topics: {topic!r} is one too many")
        self._declared[topic] = handler
        if is_pattern(topic):
            self._patterns[topic] = TopicPatterns([topic])
        self._matched.clear()

    def find(self, topic: str) -> Handler | None:
        """The handler for the jobs of a topic, None if there is none."""
        declared = self._declared.get(topic)
        return self._match(topic) if declared is None and self._patterns else declared

    def _match(self, topic: str) -> Handler | None:
        if topic not in self._matched:
            if len(self._matched) >= _TOPICS_REMEMBERED:
                self._matched.clear()
            matching = (one for one, patterns in self._patterns.items() if patterns.match(topic))
            self._matched[topic] = next((self._declared[one] for one in matching), None)
        return self._matched[topic]

    def __getitem__(self, topic: str) -> Handler:
        handler = self.find(topic)
        if handler is None:
            raise KeyError(topic)
        return handler

    def __contains__(self, topic: str) -> bool:
        return self.find(topic) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)
