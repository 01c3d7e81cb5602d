"""Topics, and the results of consistency checks, as the client returns them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from deferd.client.jobs import JsonView
from deferd.contract.model import JobState, TopicSettings
from deferd.contract.responses.push import PushTarget


class TopicPage(NamedTuple):
    """One page of the list of topics. The last one has `next_cursor` None.

    `unavailable` names topics that are missing because their shard of the store is unreachable, as far as the service
    knows them. `unreadable_shards` are the numbers of those shards; it is empty when the page is complete.
    """

    topics: list[TopicView]
    next_cursor: str | None
    unavailable: list[str]
    unreadable_shards: list[int]


class TopicView(JsonView):
    """A topic as the service returned it. `fields` is its JSON object, as it was received."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic's name."""
        return str(self.fields["topic"])

    @property
    def paused(self) -> bool:
        """Whether pops get no jobs of this topic."""
        return bool(self.fields["paused"])

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of jobs in each state."""
        return {str(JobState(state)): count for state, count in self.fields["counts"].items()}

    @property
    def follow_ups(self) -> int:
        """How many puts wait until the job with their id has ended."""
        return int(self.fields.get("follow_ups", 0))

    @property
    def collections(self) -> int:
        """To how many jobs and follow-ups appends add items."""
        return int(self.fields.get("collections", 0))

    @property
    def oldest_ready_age(self) -> float | None:
        """Seconds since the first job of the Ready list was due. None: no job is ready."""
        age: float | None = self.fields["oldest_ready_age"]
        return age

    @property
    def next_due_at(self) -> datetime | None:
        """When the next delayed job is due. None: no job is delayed."""
        return self._instant("next_due_at")

    @property
    def push(self) -> PushTarget | None:
        """What is known of the target of a pushed topic. None: it is not pushed."""
        fields = self.fields.get("push")
        return None if fields is None else msgspec.convert(fields, PushTarget)

    @property
    def settings(self) -> TopicSettings:
        """The defaults of the topic's jobs, its `max_jobs` and its number of partitions."""
        return TopicSettings.model_validate(self.fields["settings"])

    def __repr__(self) -> str:
        return f"TopicView(topic={self.topic!r}, counts={self.fields['counts']!r})"


class FindingExample(NamedTuple):
    """One finding: `subject` is the job's id, the topic's name or a key of the store, `detail` what is wrong."""

    kind: str
    subject: str
    detail: str


class Audit(JsonView):
    """What a consistency check found, or what a repair repaired. `fields` is the JSON object, as it was received."""

    __slots__ = ()

    @property
    def clean(self) -> bool:
        """Whether everything was checked and nothing was found."""
        return bool(self.fields["clean"])

    @property
    def repaired(self) -> bool:
        """Whether the findings were repaired."""
        return bool(self.fields["repaired"])

    @property
    def findings(self) -> Mapping[str, int]:
        """The number of findings of each kind; kinds without findings are left out."""
        return {str(finding["kind"]): int(finding["found"]) for finding in self.fields["findings"]}

    @property
    def examples(self) -> list[FindingExample]:
        """Findings in detail, at most 100."""
        return [FindingExample(one["kind"], one["subject"], one["detail"]) for one in self.fields["examples"]]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(clean={self.clean}, findings={self.findings!r})"


class StoreAudit(Audit):
    """What is wrong in the store outside single topics."""

    __slots__ = ()

    @property
    def unlisted(self) -> list[str]:
        """Topics that hold data but are missing from the list of topics. Each is repaired by `repair` of that topic."""
        return list(self.fields["unlisted"])


class TopicAudit(Audit):
    """What a check of a topic found, or what a repair repaired. Counts and sums are those after it."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic's name."""
        return str(self.fields["topic"])

    @property
    def checked(self) -> int:
        """The number of jobs that were checked."""
        return int(self.fields["checked"])

    @property
    def counts(self) -> Mapping[str, int] | None:
        """The number of jobs in each state. None: it could not be read."""
        return self.fields.get("counts")

    @property
    def sums(self) -> Mapping[str, int] | None:
        """The fate of all jobs ever put: `put` = finished + cancelled + dropped + lost + dead + live.

        None: it could not be read.
        """
        return self.fields.get("sums")

    @property
    def unchecked(self) -> str | None:
        """What could not be checked, and why. None: everything was checked."""
        return self.fields.get("unchecked")

    def __repr__(self) -> str:
        return f"TopicAudit(topic={self.topic!r}, clean={self.clean}, findings={self.findings!r})"
