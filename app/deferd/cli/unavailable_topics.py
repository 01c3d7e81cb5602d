"""Topics that a list leaves out because a part of the store cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator

from deferd.client import TopicPage


class LeftOut:
    """What the pages of a list left out: `topics` by name, as far as they are known, of `shards`."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.shards: list[int] = []

    def note(self, page: TopicPage) -> None:
        """Take in a page."""
        self.topics = sorted({*self.topics, *page.unavailable})
        self.shards = sorted({*self.shards, *page.unreadable_shards})

    def sentences(self) -> Iterator[str]:
        """For people; none when the list is whole."""
        if self.shards:
            numbers = ", ".join(map(str, self.shards))
            yield f"the list is not whole: the store cannot be reached for shards {numbers}"
        if self.topics:
            yield f"unavailable: {', '.join(self.topics)}"
