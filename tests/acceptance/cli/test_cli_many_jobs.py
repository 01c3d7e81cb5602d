"""`deferd put --tag --header`, `deferd cancel` and `deferd reschedule` of many jobs."""

from __future__ import annotations

import uuid

import pytest

from deferd.cli.framework.options import REASONS
from deferd.contract.model import DeadReason
from tests.acceptance.cli.command_line import Shell, ids


@pytest.fixture
def tag() -> str:
    return f"tag-{uuid.uuid4().hex}"


def test_tags_and_headers_are_put_shown_and_changed(shell: Shell, topic: str, tag: str) -> None:
    labels = ["--tag", tag, "--tag", "vip", "--header", "tenant=acme", "--header", "q=a=b"]
    [put] = shell.json("put", topic, "1", "--id", "a", "--delay", "1h", *labels)
    assert (put["tags"], put["headers"]) == ([tag, "vip"], {"tenant": "acme", "q": "a=b"})
    shown = shell.good("get", topic, "a")
    assert f"{tag}, vip\n" in shown
    assert "tenant=acme\n" in shown
    [changed] = shell.json("change", topic, "a", "--tag", "", "--header", "x=y")
    assert ("tags" not in changed, changed["headers"]) == (True, {"x": "y"})
    assert "write NAME=TEXT" in shell.refused(2, "put", topic, "1", "--header", "tenant")
    assert "tags[0] must match" in shell.refused(2, "put", topic, "1", "--tag", "a b")


def test_each_line_of_a_stream_has_the_tags(shell: Shell, topic: str, tag: str) -> None:
    shell.good("put", topic, "-", "--delay", "1h", "--tag", tag, stdin="1\n2\n3\n")
    assert shell.good("cancel", "--tag", tag) == "3 of 3 jobs cancelled, was 3 delayed\n"


def test_jobs_with_a_tag_are_rescheduled_and_cancelled(shell: Shell, topic: str, tag: str) -> None:
    for number in range(3):
        shell.good("put", topic, "1", "--id", f"j{number}", "--delay", "1h", "--tag", tag)
    moved = "3 of 3 jobs rescheduled, was 3 delayed\n"
    assert shell.good("reschedule", "--tag", tag, "--by", "30m", "--request-id", "r") == moved
    assert shell.good("reschedule", "--tag", tag, "--by", "30m", "--request-id", "r") == moved
    assert "(in 1h 29m)" in shell.good("get", topic, "j0") or "(in 1h 30m)" in shell.good("get", topic, "j0")
    shell.good("reschedule", topic, "j0", "--by=-1h")
    assert "in 29m" in shell.good("get", topic, "j0") or "in 30m" in shell.good("get", topic, "j0")
    assert shell.good("cancel", "--tag", tag, "--dry-run") == "0 of 3 jobs cancelled, was 3 delayed\n"
    assert shell.good("cancel", "other.*", "--tag", tag) == "0 of 0 jobs cancelled\n"
    limited = "2 of 2 jobs cancelled, was 2 delayed; there may be more\n"
    assert shell.good("cancel", topic, "--tag", tag, "--limit", "2") == limited
    assert shell.json("cancel", "--tag", tag) == [{"matched": 1, "done": 1, "was": {"delayed": 1}, "complete": True}]


def test_jobs_in_a_state_are_rescheduled_and_cancelled(shell: Shell, topic: str) -> None:
    for job_id, delay in {"a": "1h", "b": "3h", "c": "0"}.items():
        shell.good("put", topic, "1", "--id", job_id, "--delay", delay)
    [b] = shell.json("get", topic, "b")
    pattern = f"{topic[:-1]}*"
    limits = ["--state", "delayed", "--due-after", "2020-01-01T00:00Z", "--due-before", b["due_at"]]
    assert shell.good("cancel", pattern, *limits) == "1 of 1 job cancelled, was 1 delayed\n"
    assert shell.good("reschedule", topic, "--state", "ready", "--delay", "1h").startswith("1 of 1 job rescheduled")
    assert ids(shell.json("jobs", topic, "--state", "delayed")) == ["c", "b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cancel"], "say which jobs"),
        (["cancel", "t"], "say which jobs"),
        (["cancel", "t", "a", "--dry-run"], "--limit and --dry-run are for --tag, --group and --state"),
        (["cancel", "t", "a", "--tag", "x"], "leave out ID"),
        (["cancel", "--state", "ready"], "--state needs TOPIC"),
        (["cancel", "--group", "g"], "--group needs TOPIC"),
        (["pause", "t", "--group", "g", "--reason", "x"], "--reason is for topics"),
        (["cancel", "t", "--tag", "x", "--state", "ready"], "exclude each other"),
        (["cancel", "--tag", "x", "--due-before", "2030-01-01T00:00Z"], "are for --state"),
        (["reschedule", "--tag", "x"], "give one of --by, --delay and --run-at"),
        (["reschedule", "--tag", "x", "--by", "1", "--delay", "1"], "give one of --by, --delay and --run-at"),
        (["reschedule", "--by", "1"], "say which jobs"),
        (["reschedule", "--tag", "x", "--by", "0"], "--by must be at least 0.001"),
        (["cancel", "--tag", "a b"], "--tag must match"),
        (["reschedule", "--tag", "x", "--by", "soon"], "is not a duration"),
    ],
)
def test_wrong_usage_is_refused(shell: Shell, words: list[str], message: str) -> None:
    assert message in shell.refused(2, *words)


def test_lists_redrives_and_purges_are_filtered(shell: Shell, topic: str, tag: str) -> None:
    for number in range(3):
        shell.good("put", topic, "1", "--id", f"j{number}", *(["--tag", tag, "--group", "g"] if number else []))
    header, *rows = shell.good("groups", topic).splitlines()
    assert header.split() == ["GROUP", "READY", "RESERVED", "DELAYED", "OLDEST", "READY", "STATE"]
    assert [row.split()[:4] for row in rows] == [["g", "2", "0", "0"], ["-", "1", "0", "0"]]
    assert ids(shell.json("jobs", topic, "--group", "g")) == ["j1", "j2"]
    for job in shell.json("pop", topic, "--count", "3"):
        shell.good("bury", topic, job["id"], "--error", f"it failed: {job['id']}")
    assert ids(shell.json("jobs", topic, "--tag", tag)) == ["j1", "j2"]
    assert ids(shell.json("jobs", topic, "--error", "failed: j2")) == ["j2"]
    assert ids(shell.json("jobs", topic, "--id-prefix", "j", "--due-before", "2020-01-01T00:00Z")) == []
    assert shell.good("redrive", topic, "--tag", tag, "--limit", "1") == f"1 dead job of {topic} ready again\n"
    assert shell.good("redrive", topic, "--reason", "expired") == f"0 dead jobs of {topic} ready again\n"
    assert shell.good("purge", topic, "--reason", "buried", "--yes") == f"2 jobs of {topic} removed\n"
    assert shell.good("purge", topic, "--tag", tag, "--yes") == f"1 job of {topic} removed\n"


def test_jobs_of_one_error_and_jobs_that_are_retried_are_listed(shell: Shell, topic: str) -> None:
    for number in range(4):
        shell.good("put", topic, "1", "--id", f"j{number}")
    shell.good("put", topic, "1", "--id", "later", "--delay", "1h")
    verbs = {"j0": ("bury",), "j1": ("bury",), "j2": ("release", "--delay", "600"), "j3": ("bury",)}
    for job in shell.json("pop", topic, "--count", "4"):
        verb, *options = verbs[job["id"]]
        error = "KeyError: 'email'" if job["id"] in {"j1", "j2"} else f"no order {job['id'][1:]}"
        shell.good(verb, topic, job["id"], "--error", error, *options)
    groups = shell.json("dead", topic)[0]["groups"]
    assert {group["error"]: group["count"] for group in groups} == {"KeyError: 'email'": 1, "no order *": 2}
    assert sorted(ids(shell.json("jobs", topic, "--reason", "buried", "--error-group", "no order *"))) == ["j0", "j3"]
    assert ids(shell.json("jobs", topic, "--retrying")) == ["j2"]
    _, row = shell.good("jobs", topic, "--retrying").splitlines()
    assert "after KeyError: 'email'" in row


def test_the_choices_of_reasons_are_all_reasons() -> None:
    assert list(REASONS) == [reason.value for reason in DeadReason]
