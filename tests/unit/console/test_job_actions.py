"""Filters of lists of jobs, calls on many jobs, and jobs as puts."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from typing import Any

import pytest

from deferd.console.job_puts import put_command, put_text
from deferd.console.json_text import Members, parse
from deferd.console.views.bulk import Target, api_call, is_selectable
from deferd.console.views.filters import read_filter

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW_MS = round(NOW.timestamp() * 1000)


def test_a_filter_is_read_from_a_url() -> None:
    wanted = read_filter({"state": "dead", "id": " a ", "error": "x", "due_after": "soon", "other": "1"}, NOW_MS)
    assert (wanted.state, wanted.id, wanted.due_after, list(wanted.problems)) == ("dead", "a", None, ["due_after"])
    assert wanted.query() == {
        "state": "dead", "id_prefix": "a", "tag": None, "group": None, "error": "x", "due_after": None,
        "due_before": None, "reason": None, "error_group": None, "retrying": None,
    }  # fmt: skip
    assert not wanted.is_oldest_first
    assert read_filter({"state": "nothing"}, NOW_MS).state is None


@pytest.mark.parametrize(
    ("action", "fields", "selectable"),
    [
        ("cancel", {"state": "delayed", "due_before": "+1h"}, True),
        ("cancel", {"state": "dead"}, True),
        ("cancel", {"state": "dead", "tag": "a", "group": ""}, True),
        ("cancel", {"state": "finished"}, True),
        ("cancel", {"state": "dead", "due_before": "now"}, False),
        ("cancel", {"state": "reserved"}, False),
        ("cancel", {"tag": "a"}, True),
        ("cancel", {"tag": "a", "state": "ready"}, False),
        ("cancel", {}, False),
        ("run_now", {"state": "delayed", "id": "x"}, False),
        ("redrive", {"state": "dead", "tag": "a"}, True),
        ("redrive", {"state": "ready"}, False),
        ("redrive", {"state": "dead", "error": "x"}, False),
        ("redrive", {"state": "dead", "reason": "buried", "group": "x"}, True),
        ("cancel", {"tag": "a", "reason": "buried"}, False),
        ("run_now", {"state": "delayed", "retrying": "1"}, False),
        ("cancel", {"state": "delayed", "retrying": "1", "tag": "a"}, False),
        ("cancel", {"state": "delayed", "of_group": "customer-7"}, False),
    ],
)
def test_what_the_api_can_select_itself(action: str, fields: dict[str, str], selectable: bool) -> None:
    assert is_selectable(action, read_filter(fields, NOW_MS), is_admin=True) == selectable


def test_cancels_of_dead_and_finished_jobs_by_a_filter_are_for_admins() -> None:
    for state, selectable in (("dead", False), ("finished", False), ("ready", True)):
        assert is_selectable("cancel", read_filter({"state": state}, NOW_MS), is_admin=False) == selectable


def call(action: str, fields: dict[str, str], ids: tuple[str, ...] | None = None, **more: Any) -> Any:
    target = Target("t", ids, read_filter(fields, NOW_MS))
    return api_call(action, target, **{"cutoff": "C", "options": {}, "dry_run": False, **more})


def test_a_redrive_and_a_cancel_of_a_group_name_its_reason_and_error() -> None:
    group = {"state": "dead", "reason": "buried", "group": ""}
    redrive = call("redrive", group).body
    assert (redrive["reason"], redrive["error"], redrive["cutoff"]) == ("buried", "", "C")
    purge = call("cancel", {**group, "group": "x *"}).query
    assert (purge["state"], purge["reason"], purge["error"]) == ("dead", "buried", "x *")


def test_every_call_has_the_cutoff() -> None:
    delayed = {"state": "delayed", "due_before": "+1h"}
    select = {"cutoff": "C", "state": "delayed", "topics": ["t"], "due_before": "2026-03-01T13:00:00.000Z"}
    assert call("cancel", delayed) == ("POST", "/jobs/cancel", {"select": select, "limit": 100_000}, {})
    moved = call("reschedule", {"tag": "a"}, options={"delay": 0}, dry_run=True, limit=7)
    assert moved.body == {
        "select": {"cutoff": "C", "tag": "a", "topics": ["t"]}, "limit": 7, "delay": 0, "dry_run": True, "samples": 10
    }  # fmt: skip
    assert call("redrive", {"state": "dead"}, ("x",)).body == {"cutoff": "C", "ids": ["x"]}
    assert call("redrive", {"tag": "a"}).body == {"cutoff": "C", "limit": 1_000_000, "tag": "a"}
    purge = call("cancel", {"state": "dead"}, dry_run=True)
    assert purge[:2] == ("DELETE", "/topics/t")
    assert purge.query == {"state": "dead", "tag": None, "cutoff": "C", "dry_run": True}
    task = call("cancel", delayed, as_task=True).body
    assert (task["as_task"], "limit" in task) == (True, False)
    assert call("cancel", {"state": "dead"}, as_task=True).query["as_task"]
    assert call("redrive", {"state": "dead"}, as_task=True).body == {"cutoff": "C", "as_task": True}
    assert call("cancel", {"state": "dead"}, ("x", "y")).body["select"] == {
        "cutoff": "C", "ids": [{"topic": "t", "id": "x"}, {"topic": "t", "id": "y"}]
    }  # fmt: skip


JOB = """{"topic":"t","id":"a","state":"delayed","body":{"it's":12345678901234567890.10},
"due_at":"2026-03-01T13:00:00Z","created_at":"2026-03-01T10:00:00Z","attempts":2,"ttr":60,"max_attempts":null,"backoff":{"kind":"fixed","seconds":1},
"ttl":null,"retain":0,"tags":["x","batch:b"],"batch":"b","group":"g","priority":2,"attempts_log":[],"last_error":"bad"}"""


def shown() -> Members:
    job = parse(JOB)
    assert isinstance(job, Members)
    return job


def test_a_job_is_put_again_as_it_was() -> None:
    text = put_text(shown(), with_id=True, now_ms=NOW_MS).decode()
    assert '"body":{"it\'s":12345678901234567890.10}' in text
    assert json.loads(text) == {
        "topic": "t", "id": "a", "body": {"it's": 12345678901234567890.10}, "run_at": "2026-03-01T13:00:00Z",
        "tags": ["x"], "group": "g", "priority": 2,
        "ttr": 60, "max_attempts": None, "backoff": {"kind": "fixed", "seconds": 1},
        "ttl": None, "retain": 0
    }  # fmt: skip
    later = json.loads(put_text(shown(), with_id=False, now_ms=NOW_MS + 10_000_000))
    assert "run_at" not in later
    assert "id" not in later


def test_the_command_is_one_that_a_shell_reads() -> None:
    text = put_command(shown(), now_ms=NOW_MS, has_keys=True, hides=True)
    assert text.startswith("# This console masks some fields")
    script = text.replace("curl -sS", "printf '%s\\n'")
    printed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env={}).stdout
    assert "Authorization: Bearer \n" in printed
    assert '"it\'s": 12345678901234567890.10' in printed
    assert "Bearer" not in put_command(shown(), now_ms=NOW_MS, has_keys=False, hides=False)
