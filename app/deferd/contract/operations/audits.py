"""Consistency checks of a topic and of the whole store, and repairs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Self

from msgspec import field

from deferd.contract.operations.operation import Operation
from deferd.contract.operations.response import Response, shown_as
from deferd.contract.operations.topics import Counts
from deferd.contract.scopes import Scope


class FindingKind(StrEnum):
    """A kind of inconsistency. Its cause is another program or a broken store: no call of deferd leaves one behind."""

    meaning: str
    repair: str

    def __new__(cls, value: str, meaning: str, repair: str) -> Self:
        """Create a member with its texts: what it means for the jobs, and what a repair does."""
        kind = str.__new__(cls, value)
        kind._value_ = value
        kind.meaning = meaning
        kind.repair = repair
        return kind

    WRONG_TYPE = (
        "wrong_type",
        "a key has the wrong type: every call that needs it fails",
        "the key is renamed with its data; what it should have held is rebuilt where possible",
    )
    UNKNOWN_TOPIC = (
        "unknown_topic",
        "the topic has data, but no list of topics shows it",
        "the topic is listed again, with its settings if they still exist",
    )
    SETTINGS_UNREADABLE = (
        "settings_unreadable",
        "the topic's settings cannot be read: its puts and pops fail",
        "the settings are moved aside; the topic then has none and hands out jobs",
    )
    UNREADABLE = (
        "unreadable",
        "the id or the record of a job cannot be read: calls that need it can fail",
        "the record is moved aside as it is and the job is removed from all states; it counts as lost",
    )
    IN_TWO_PLACES = (
        "in_two_places",
        "a job is in several states at once: it may be handed out again when it is over, or to two consumers",
        "it stays in one: finished before dead, dead before reserved, reserved before delayed, delayed before ready",
    )
    IN_NO_PLACE = (
        "in_no_place",
        "a job is in no state: it would never be handed out",
        "it goes to the end of the Ready list, or stays delayed if it is not due yet",
    )
    NO_RECORD = (
        "no_record",
        "an id has no record: nothing is left of the job but its id",
        "the id is removed; the job counts as lost",
    )
    DUE_DIFFERS = (
        "due_differs",
        "a delayed job would run at another time than its record says",
        "it runs when its record says",
    )
    LEASE_ENDLESS = (
        "lease_endless",
        "a lease ends later than any lease may: its job would not be ready again if its consumer is gone",
        "it ends after the job's ttr, counted from now",
    )
    EXPIRY_WRONG = (
        "expiry_wrong",
        "the end of a job's ttl, deadline or time limit is not scheduled, scheduled without need, or at another time",
        "it is scheduled as the record says",
    )
    HOLDER_WRONG = (
        "holder_wrong",
        "a consumer is recorded as holder of a job that is not reserved",
        "the entry is removed",
    )
    TOMBSTONE_WRONG = (
        "tombstone_wrong",
        "a job is recorded as cancelled although it exists: its holder may receive job_cancelled",
        "the entry is removed",
    )
    PLACE_WRONG = (
        "place_wrong",
        "a ready job is not among those of its group and priority: it is handed out too early, too late, or never",
        "it goes to the end of those",
    )
    TURNS_WRONG = (
        "turns_wrong",
        "jobs of a group and priority take no turns, are held back without end, or share their place with others",
        "they take turns again",
    )
    GROUP_WRONG = (
        "group_wrong",
        "a group's jobs or held ones are counted wrong, or it waits for a job that is gone: its limits are not kept",
        "the numbers are set to those of its jobs, and it does not wait",
    )
    TAGS_WRONG = (
        "tags_wrong",
        "a job is not found by its tags, or by tags that it does not have",
        "it is found by the tags that its record says",
    )
    TAG_STALE = (
        "tag_stale",
        "the tag index has a job that is gone or does not have the tag",
        "the entry is removed",
    )
    TAKEN_WRONG = (
        "taken_wrong",
        "an id is recorded as taken after its job was finished, although a job that is not finished has it",
        "the entry is removed",
    )
    FOLLOW_UP_STUCK = (
        "follow_up_stuck",
        "a follow-up waits for a job that has ended or does not exist: it would never run",
        "it becomes the job",
    )
    ITEMS_WRONG = (
        "items_wrong",
        "the items collected for a job are missing, of no job, or not as large as recorded",
        "their size is corrected; items of no job are moved aside; a job without its items gets an empty array",
    )
    SCHEDULE_STOPPED = (
        "schedule_stopped",
        "a schedule that is neither paused nor ended is not due to be advanced: it makes no more runs",
        "it is advanced when its next run is due",
    )
    SCHEDULE_WRONG = (
        "schedule_wrong",
        "a list of schedules or runs has one that does not exist or makes no runs, or lacks one",
        "the entry is removed or added",
    )
    BATCH_WRONG = (
        "batch_wrong",
        "a batch has counted more ends than jobs, so that it may put its job too early, or is in no list",
        "the number of jobs is set to that of the ends, and the batch is listed",
    )
    SCHEDULE_UNREADABLE = (
        "schedule_unreadable",
        "a schedule cannot be read: it makes no runs, and calls for it fail",
        "it is moved aside as it is; put it again",
    )
    SCHEDULE_TWICE = (
        "schedule_twice",
        "two shards of the store have a schedule with this name: both may make runs",
        "the one that was put last stays",
    )
    RUN_STALE = (
        "run_stale",
        "a run of a schedule is recorded as waiting although its job is not delayed",
        "it counts as run",
    )
    RUN_UNLISTED = (
        "run_unlisted",
        "a run of a schedule waits that is not listed there: it outlives a pause and a delete, and overlaps later runs",
        "it is listed",
    )
    PARTITIONS_WRONG = (
        "partitions_wrong",
        "the topic's number of partitions is unreadable, or not that of its settings: puts fail, or jobs are not found",
        "the larger number counts; all smaller ones are taken for former ones until no job needs them",
    )
    PARTITION_SETTINGS = (
        "partition_settings",
        "a partition has other settings than its topic: its puts fail, or its jobs are treated in another way",
        "it gets those of the topic",
    )
    ON_SHELF_TOO = (
        "on_shelf_too",
        "a job is on the shelf, and another one with its id is in the store: it could run twice",
        "the one in the store stays, the other is deleted",
    )
    SHELF_UNREADABLE = (
        "shelf_unreadable",
        "a job on the shelf cannot be read, as its file is damaged: calls for it fail, and it is not handed out",
        "none: restore a backup",
    )
    SHELF_MISCOUNTED = (
        "shelf_miscounted",
        "the number of jobs on the shelf is wrong: counts of the topic and its limit are wrong",
        "the number is set to that of the jobs that are there",
    )
    PARTITION_UNKNOWN = (
        "partition_unknown",
        "there is data of a partition that its topic does not have: nobody gets or finds its jobs",
        "none: give the topic so many partitions; then all is checked again",
    )
    MISPLACED = (
        "misplaced",
        "a job is in a partition where no call looks for its id: it is handed out, but cannot be finished or cancelled",
        "all smaller numbers of partitions are taken for former ones: that finds it, unless it was never put there",
    )
    IN_TWO_PARTITIONS = (
        "in_two_partitions",
        "two partitions of a topic have a job with this id: both are handed out, but calls find one of them",
        "none: cancel the job once for each",
    )
    TIMER_LATE = (
        "timer_late",
        "the timer's next visit is too late or not scheduled: jobs would be late, or never ready",
        "the next visit is scheduled for the first work",
    )
    TALLY_OFF = (
        "tally_off",
        "the number of jobs put is not the sum of the existing and the ended ones",
        "missing jobs are counted as lost, surplus ones as put; what happened to them is unknown",
    )


_Repaired = Annotated[bool, "Whether what was found has been repaired."]
_UNREAD = "Omitted when they could not be read."


class FindingSummary(Response, frozen=True, kw_only=True):
    """All findings of one kind: what an audit found, or a repair found and repaired."""

    kind: Annotated[str, shown_as(FindingKind)]
    found: Annotated[int, "The number of findings of this kind."]
    meaning: Annotated[str, "What it means, for people."]
    repair: Annotated[str, "What a repair does about it, for people."]


class FindingExample(Response, frozen=True, kw_only=True):
    """One finding."""

    kind: Annotated[str, shown_as(FindingKind)]
    subject: Annotated[str, "The id of a job, the name of a topic, or a key of the store."]
    detail: Annotated[str, "What was found, for people."]


_Examples = Annotated[list[FindingExample], "Examples of the findings, at most 100."]


class Sums(Response, frozen=True, kw_only=True):
    """The outcomes of all jobs that were ever put; `put` is the sum of the others."""

    put: int
    finished: int
    cancelled: Annotated[int, "By a cancel, a purge, or a put that replaced them."]
    dropped: Annotated[int, "Dead until their retention ended."]
    lost: Annotated[int, "Found missing by a repair."]
    dead: Annotated[int, "Dead now, including expired jobs."]
    live: Annotated[int, "Delayed, ready or reserved now."]


class TopicAudit(Response, frozen=True, kw_only=True):
    """What an audit of a topic found, or a repair repaired. `counts` and `sums` are read afterwards."""

    schema_name = "Audit"

    topic: str
    clean: Annotated[bool, "Whether everything was checked and nothing was found."]
    repaired: _Repaired
    checked: Annotated[int, "The number of jobs checked."]
    timer_overdue: Annotated[
        float, "How many seconds the timer is late. This is not a finding, but check that a service is running."
    ]
    summaries: list[FindingSummary] = field(name="findings")
    examples: _Examples
    counts: Annotated[dict[str, int] | None, shown_as(Counts | None), _UNREAD] = None
    sums: Annotated[dict[str, int] | None, shown_as(Sums | None), _UNREAD] = None
    unchecked: Annotated[str | None, "What could not be checked, and why."] = None

    @property
    def findings(self) -> Mapping[str, int]:
        """The number of findings of each kind; kinds without findings are left out."""
        return {one.kind: one.found for one in self.summaries}

    schema_examples = (
        {
            "topic": "orders.close",
            "clean": False,
            "repaired": False,
            "checked": 14,
            "counts": {"delayed": 12, "ready": 1, "reserved": 1, "dead": 0, "finished": 0},
            "sums": {"put": 5014, "finished": 4800, "cancelled": 200, "dropped": 0, "lost": 0, "dead": 0, "live": 14},
            "timer_overdue": 0,
            "findings": [
                {
                    "kind": "in_no_place",
                    "found": 1,
                    "meaning": FindingKind.IN_NO_PLACE.meaning,
                    "repair": FindingKind.IN_NO_PLACE.repair,
                }
            ],
            "examples": [{"kind": "in_no_place", "subject": "order-1042", "detail": "due 2026-11-21T07:16:58.123Z"}],
        },
    )


class StoreAudit(Response, frozen=True, kw_only=True):
    """What an audit of the whole store found, or a repair repaired."""

    clean: Annotated[bool, "Whether nothing was found and no topic is unlisted."]
    repaired: _Repaired
    unlisted: Annotated[
        list[str], "Topics that have data but are missing from the list of topics, or make it fail. Audit each."
    ]
    summaries: list[FindingSummary] = field(name="findings")
    examples: _Examples
    stray_keys: Annotated[
        list[str], "Keys under deferd's prefix that belong to no topic, at most 100. They are harmless."
    ]
    stray_count: Annotated[int, "The number of such keys."]

    @property
    def findings(self) -> Mapping[str, int]:
        """The number of findings of each kind; kinds without findings are left out."""
        return {one.kind: one.found for one in self.summaries}

    schema_examples = (
        {
            "clean": True,
            "repaired": False,
            "unlisted": [],
            "findings": [],
            "examples": [],
            "stray_keys": [],
            "stray_count": 0,
        },
    )


AUDIT_TOPIC = Operation(
    "audit_topic",
    "GET",
    "/topics/{topic}/audit",
    tag="topics",
    scope=Scope.ADMIN,
    summary="Audit a topic",
    description=(
        "Checks that the data of the topic is consistent: each job is in exactly one state, nothing is left "
        "over from removed jobs, the timer is not late, and every job that was ever put is accounted for. It changes "
        "nothing and runs in small steps beside the load: about 25 s for a million jobs."
    ),
    response=TopicAudit,
    response_description="The findings.",
    errors=("topic_not_found",),
)
REPAIR_TOPIC = Operation(
    "repair_topic",
    "POST",
    "/topics/{topic}/repair",
    tag="topics",
    scope=Scope.ADMIN,
    summary="Audit and repair a topic",
    description=(
        "Like the audit, but repairs each finding atomically when it is found. No readable job is lost, and no "
        "finished or dead job is handed out because of it."
    ),
    response=TopicAudit,
    response_description="The repaired findings.",
    errors=("topic_not_found",),
    repeatable=False,
    done="repaired topic",
)
AUDIT_STORE = Operation(
    "audit_store",
    "GET",
    "/audit",
    tag="operations",
    scope=Scope.ADMIN,
    summary="Audit the store",
    description=(
        "Finds topics that have data but are missing from the list of topics, and store keys of the wrong "
        "type. It reads all keys of the store in small steps and changes nothing. The API key must match all topics."
    ),
    response=StoreAudit,
    response_description="The findings.",
)
REPAIR_STORE = Operation(
    "repair_store",
    "POST",
    "/repair",
    tag="operations",
    scope=Scope.ADMIN,
    summary="Audit and repair the store",
    description=(
        "Like the audit, but renames store keys of the wrong type. To repair a topic that is missing from the "
        "list, repair that topic. The API key must match all topics."
    ),
    response=StoreAudit,
    response_description="The repaired findings.",
    repeatable=False,
    done="repaired the store",
)
