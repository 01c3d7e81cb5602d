"""Topics that a list lacks because a part of the store cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator

from deferd.client import TopicPage


class UnavailableTopics:
    """What the pages of a list lack: `shards`, and the known names of their `topics`."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.shards: list[int] = []

    def note(self, page: TopicPage) -> None:
        """Add a page."""
        self.topics = sorted({*self.topics, *page.unavailable})
        self.shards = sorted({*self.shards, *page.unreadable_shards})

    def sentences(self) -> Iterator[str]:
        """Messages for people; none if the list is complete."""
        if self.shards:
            numbers = ", ".join(map(str, self.shards))
            yield f"the list is incomplete: the store cannot be reached for shards {numbers}"
        if self.topics:
            yield f"unavailable: {', '.join(self.topics)}"
