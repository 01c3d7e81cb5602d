"""The pops that wait for the same patterns, and what is known about the topics that match."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from deferd.contract.errors import InvalidInput
from deferd.engine.topic_search import TopicSelection
from deferd.engine.wait_queue import Waiter


class _Report(NamedTuple):
    """A topic is said to have something ready: `jobs`, 0 if their number is unknown."""

    number: int
    jobs: int


class PatternGroup:
    """`waiters` are in the order of their arrival. `newcomers` are those for which not all topics that match have been
    searched yet, each with the number of searches that had begun when it came: it needs a later one.

    `polls` counts the polls under way for each topic. `last` is the topic that had the last turn. `refusal` is the
    error of the last search if that found too many topics.
    """

    __slots__ = (
        "_names",
        "_reports",
        "_reports_made",
        "last",
        "newcomers",
        "polls",
        "refusal",
        "retry",
        "search_wanted",
        "searches_begun",
        "searches_done",
        "searching",
        "selection",
        "waiters",
    )

    def __init__(self, selection: TopicSelection, last: str) -> None:
        self.selection = selection
        self.waiters: dict[Waiter, None] = {}
        self.newcomers: dict[Waiter, int] = {}
        self.polls: Counter[str] = Counter()
        self.last = last
        self.refusal: InvalidInput | None = None
        self.retry: asyncio.TimerHandle | None = None
        self.searching = False
        self.search_wanted = False
        self.searches_begun = 0
        self.searches_done = 0
        self._reports: dict[str, _Report] = {}
        self._names: list[str] = []
        self._reports_made = 0

    def report(self, topic: str, jobs: int = 0) -> None:
        """`topic` may have something ready: `jobs`, 0 if their number is unknown."""
        if topic not in self._reports:
            insort(self._names, topic)
        self._reports_made += 1
        self._reports[topic] = _Report(self._reports_made, jobs)

    def number_of(self, topic: str) -> int:
        """The number of the last report of a topic, 0 if it was dropped."""
        return self._reports[topic].number if topic in self._reports else 0

    def jobs_of(self, topic: str) -> int:
        """How many jobs a topic is said to have ready, 0 if that is unknown."""
        return self._reports[topic].jobs if topic in self._reports else 0

    def took(self, topic: str, jobs: int) -> None:
        """Some jobs of a topic were handed out. It stays among those that may have more."""
        if topic in self._reports:
            number, known = self._reports[topic]
            self._reports[topic] = _Report(number, max(known - jobs, 0))

    def drop(self, topic: str, number: int) -> None:
        """A poll found nothing in `topic`; if it was reported again since the report with this number, it stays."""
        if topic in self._reports and self._reports[topic].number == number:
            del self._reports[topic]
            del self._names[bisect_left(self._names, topic)]

    def topics_to_poll(self) -> Iterator[str]:
        """The topics that may have something ready and are not polled now, in turns: those after `last` first."""
        begin = bisect_right(self._names, self.last)
        for names in (self._names[begin:], self._names[:begin]):
            for name in names:
                if not self.polls[name]:
                    yield name

    def idle(self) -> Iterator[Waiter]:
        """The waiters that a topic which matches may serve now, in the order of their arrival.

        Nobody is served before the first search: it knows more topics than the messages that came since.
        """
        if not self.searches_done:
            return
        for waiter in self.waiters:
            if not waiter.in_call and (waiter.first_pass_index is None or waiter in self.newcomers):
                yield waiter
