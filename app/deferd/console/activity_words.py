"""Changes by people and keys in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WORDS = {
    "put_job": "put a job",
    "change_job": "changed job",
    "cancel_job": "cancelled job",
    "finish_job": "finished job",
    "release_job": "released job",
    "bury_job": "buried job",
    "cancel_jobs": "cancelled jobs",
    "cancel_selected_jobs": "cancelled jobs",
    "reschedule_selected_jobs": "rescheduled jobs",
    "set_topic": "set the settings of topic",
    "pause_topic": "paused topic",
    "resume_topic": "resumed topic",
    "redrive_jobs": "redrove dead jobs of",
    "purge_topic": "purged jobs of",
    "repair_topic": "repaired topic",
    "repair_store": "repaired the store",
    "put_schedule": "put schedule",
    "delete_schedule": "deleted schedule",
    "pause_schedule": "paused schedule",
    "resume_schedule": "resumed schedule",
    "run_schedule": "ran schedule",
    "set_push": "set push",
    "remove_push": "removed push",
    "test_push": "tested push",
    "put_calendar": "put calendar",
    "delete_calendar": "deleted calendar",
}


def action_words(change: Mapping[str, Any]) -> str:
    """What was done, as `paused topic`. An operation that has no words here is named by its id.

    The topic follows, behind `in` unless the words end with `topic` or `of`.
    """
    operation: str = change["operation"]
    return _WORDS.get(operation, operation.replace("_", " "))


def subject_kind(change: Mapping[str, Any]) -> str | None:
    """What its `subject` names: a `job`, a `schedule`, or something without a page (None)."""
    if change.get("subject") is None:
        return None
    noun = change["operation"].rpartition("_")[2]
    return noun if noun == "schedule" or (noun == "job" and change.get("topic")) else None
