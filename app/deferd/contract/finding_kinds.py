"""What a consistency check can find."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


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
