"""The partitions of topics: names, and which partition has a job.

A topic whose settings say `partitions: P` has P partitions, each in the shard after that of the one before. To the
scripts, the timers and the wait queues a partition is a topic with a Job Pool and a Ready list of its own. The first
one has the topic's own name, the others that name, a "#" and their number, which no topic of a caller can have.

A job's id decides its partition. When the number of partitions grows, jobs stay where they are, so that an id may be in
the partition of an earlier number, until none is. Runs of schedules are in the first partition, as schedules are. So
are the jobs that ends of others put (lua/lib/ends.lua): their ids end like those of runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from zlib import crc32

from deferd.contract.limits import PARTITIONS_MAX

SEPARATOR = "#"
_RUN_ID = re.compile(r":[0-9]{8}T[0-9]{6}(?:\.[0-9]{3})?Z\Z")
_RUN_ID_ENDS = "Z"
_NUMBER_ENDS_BEFORE = 4
"""Digits of a partition's number, and one more."""
_IS_SPREAD, _IS_NOT_SPREAD = "", "!"


def topic_of(partition: str) -> str:
    """The topic of a partition; a topic itself, too, is the name of its first partition."""
    return partition.partition(SEPARATOR)[0] if SEPARATOR in partition else partition


def number_of(partition: str) -> int:
    """The number of a partition of its topic, from 0."""
    return int(partition.partition(SEPARATOR)[2]) if SEPARATOR in partition else 0


def is_partition_name(name: str) -> bool:
    """Whether this is the name of a partition that is not the first of its topic."""
    number = name.partition(SEPARATOR)[2]
    return len(number) < _NUMBER_ENDS_BEFORE and number.isascii() and number.isdigit() and not number.startswith("0")


@lru_cache(maxsize=1024)
def names_of(topic: str, count: int) -> tuple[str, ...]:
    """The names of a topic's partitions in their order."""
    return (topic, *(f"{topic}{SEPARATOR}{number}" for number in range(1, count)))


def is_first(partition: str) -> bool:
    """Whether a partition is the first one of its topic, and so has the topic's own name."""
    return SEPARATOR not in partition


def topics_of(partitions: Iterable[str]) -> list[str]:
    """The topics of these partitions, each once, in order of appearance."""
    return list(dict.fromkeys(map(topic_of, partitions)))


def _number_for(job_id: str, count: int) -> int:
    """The number of the partition, of `count`, that an id belongs to."""
    if job_id.endswith(_RUN_ID_ENDS) and _RUN_ID.search(job_id):
        return 0
    return crc32(job_id.encode()) % count


@dataclass(frozen=True, slots=True)
class Layout:
    """How many partitions a topic has, followed, newest first, by the former numbers by which jobs may still be placed.
    `is_spread`: all partitions have the settings of the topic.
    """

    counts: tuple[int, ...]
    is_spread: bool = True

    @property
    def count(self) -> int:
        """The number of partitions."""
        return self.counts[0]

    def home(self, topic: str, job_id: str) -> str:
        """The partition for a new job of the topic with this id."""
        return names_of(topic, self.count)[_number_for(job_id, self.count)]

    def homes(self, topic: str, job_id: str) -> tuple[str, ...]:
        """All partitions in which a job may be: the one for a new job, then those by former numbers of partitions."""
        names = names_of(topic, self.count)
        return tuple(dict.fromkeys(names[_number_for(job_id, count)] for count in self.counts))

    @staticmethod
    def read(stored: bytes) -> Layout:
        """Read a value of the shard's `partitioned`: numbers, newest first, and "!" until the settings are spread.

        Raises ValueError for anything else.
        """
        *numbers, end = stored.decode().split(" ")
        counts = tuple(map(int, numbers))
        are_right = counts and all(1 <= now <= before - 1 for before, now in pairwise((PARTITIONS_MAX + 1, *counts)))
        if not are_right or end not in {_IS_SPREAD, _IS_NOT_SPREAD}:
            raise ValueError(f"no layout of partitions: {stored!r}")
        return Layout(counts, end == _IS_SPREAD)

    def stored(self) -> str:
        """As `read` reads it."""
        return " ".join((*map(str, self.counts), _IS_SPREAD if self.is_spread else _IS_NOT_SPREAD))


ONE_PARTITION = Layout((1,))


class Partitions:
    """The layouts of the partitioned topics that this process knows; every other topic is its only partition.

    `on_change` is called with a topic that has got another number of partitions.
    """

    def __init__(self, on_change: Callable[[str], None] = lambda _topic: None) -> None:
        self.layouts: dict[str, Layout] = {}
        self._on_change = on_change
        self.version = 0
        """Replaced whenever a number of partitions has changed."""

    def layout_of(self, topic: str) -> Layout:
        """The layout of a topic."""
        return self.layouts.get(topic, ONE_PARTITION)

    def count(self, topic: str) -> int:
        """How many partitions a topic has."""
        layout = self.layouts.get(topic)
        return 1 if layout is None else layout.count

    def of(self, topic: str) -> tuple[str, ...]:
        """The partitions of a topic, in order."""
        layout = self.layouts.get(topic)
        return (topic,) if layout is None else names_of(topic, layout.count)

    def of_all(self, topics: Iterable[str]) -> list[str]:
        """The partitions of topics, in order."""
        return [partition for topic in topics for partition in self.of(topic)]

    def fitting(self, topics: Sequence[str], most: int) -> tuple[list[str], int]:
        """The partitions of the first topics, at most `most` together, and how many topics are left out."""
        partitions: list[str] = []
        for at, topic in enumerate(topics):
            of_topic = self.of(topic)
            if len(partitions) + len(of_topic) > most:
                return partitions, len(topics) - at
            partitions += of_topic
        return partitions, 0

    def further(self) -> Iterator[str]:
        """All partitions but the first ones, which have the names of their topics."""
        for topic, layout in self.layouts.items():
            yield from names_of(topic, layout.count)[1:]

    def home(self, topic: str, job_id: str) -> str:
        """The partition for a new job with this id."""
        layout = self.layouts.get(topic)
        return topic if layout is None else layout.home(topic, job_id)

    def homes(self, topic: str, job_id: str) -> tuple[str, ...]:
        """All partitions in which a job may be; see `Layout.homes`."""
        layout = self.layouts.get(topic)
        return (topic,) if layout is None else layout.homes(topic, job_id)

    def note(self, topic: str, layout: Layout | None) -> bool:
        """Replace the known layout of a topic. Returns whether jobs may now be elsewhere."""
        before = self.layouts.get(topic)
        if layout is None:
            self.layouts.pop(topic, None)
        else:
            self.layouts[topic] = layout
        is_other = (None if before is None else before.counts) != (None if layout is None else layout.counts)
        if is_other:
            self.version += 1
            self._on_change(topic)
        return is_other
