"""`deferd audit`."""

from __future__ import annotations

import re

import pytest

from tests.acceptance.cli.command_line import Shell, terminal
from tests.acceptance.cli.damaged_store import BreakableService


@pytest.fixture
def shell(broken: BreakableService) -> Shell:
    return Shell(broken.service.url)


def test_sound_topics_end_with_0_and_a_table_of_sums(shell: Shell) -> None:
    for topic in ("a", "b"):
        shell.good("put", topic, "--id", "j")
    shell.good("cancel", "a", "j")

    heading, *rows, empty, last = shell.good("audit").splitlines()
    assert heading.split() == ["TOPIC", "PUT", "FINISHED", "CANCELLED", "DROPPED", "LOST", "DEAD", "LIVE", "RESULT"]
    assert [row.split() for row in rows] == [
        ["a", "1", "0", "1", "0", "0", "0", "0", "clean"],
        ["b", "1", "0", "0", "0", "0", "0", "1", "clean"],
    ]
    assert (empty, last) == ("", "2 topics checked: no findings")
    assert shell.good("audit", "b").splitlines()[-1] == "1 topic checked: no findings"


def test_a_store_without_topics_is_sound(shell: Shell) -> None:
    assert shell.good("audit") == "\n0 topics checked: no findings\n"
    assert shell.good("topics") == ""
    with terminal(shell.url, "topics") as shown:
        assert (0, "there is no topic yet") == (shown.end(), shown.text.strip())


def test_damage_ends_with_6_and_is_explained_and_repaired(shell: Shell, broken: BreakableService) -> None:
    for job_id in ("j1", "j2"):
        shell.good("put", "orders", "--id", job_id)
    shell.good("put", "mails")
    broken.lose_from_list("orders", "j1")

    done = shell.run("audit")
    assert (6, "") == (done.returncode, done.stderr)
    assert "orders: 1 in_no_place\n  what it means: a job is in no state" in done.stdout
    assert re.search(r"\n  j1: due 2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\n", done.stdout)
    assert "1 FINDING" in done.stdout
    assert done.stdout.endswith("2 topics checked: there are findings. To repair them: deferd audit --repair\n")
    assert shell.run("audit", "orders").stdout.endswith("To repair them: deferd audit orders --repair\n")
    assert shell.run("audit", "mails").returncode == 0

    repaired = shell.good("audit", "--repair")
    assert "orders: 1 in_no_place repaired\n" in repaired
    assert repaired.endswith("2 topics checked: repaired, and checked again: no findings\n")
    assert shell.good("audit").endswith("no findings\n")
    jobs = shell.json("pop", "orders", "--count", "5", "--wait", "0")
    assert {"j1", "j2"} == {job["id"] for job in jobs}


def test_unlisted_topics_are_checked_and_repaired(shell: Shell, broken: BreakableService) -> None:
    shell.good("put", "hidden")
    broken.unlist("hidden")
    assert shell.run("audit").returncode == 6
    assert "hidden: 1 unknown_topic repaired" in shell.good("audit", "--repair")
    assert [view["topic"] for view in shell.json("topics")] == ["hidden"]


def test_a_store_whose_lists_are_broken_is_repaired(shell: Shell, broken: BreakableService) -> None:
    shell.good("put", "orders", "--delay", "1m")
    for key in ("topics", "settings", "due"):
        broken.replace_by_text(key)
    found = shell.run("audit")
    assert found.returncode == 6
    assert "the store: 3 wrong_type\n" in found.stdout
    assert "the list of topics cannot be read until these findings are repaired" in found.stderr
    repaired = shell.good("audit", "--repair")
    assert "the store: 3 wrong_type repaired" in repaired
    assert "orders: 1 unknown_topic repaired" in repaired
    assert "orders: 1 timer_late repaired" in repaired
    assert shell.good("audit", "orders").endswith("no findings\n")


def test_unreadable_settings_hide_only_their_topic_and_are_repaired(shell: Shell, broken: BreakableService) -> None:
    shell.good("put", "a")
    shell.good("put", "b")
    broken.store.command("HSET", "deferd:{0}:settings", "b", "{{")
    assert [view["topic"] for view in shell.json("topics")] == ["a"]
    found = shell.run("audit")
    assert found.returncode == 6
    assert "b: 1 settings_unreadable\n" in found.stdout
    assert shell.good("audit", "--repair").endswith("2 topics checked: repaired, and checked again: no findings\n")
    assert len(shell.json("topics")) == 2


def test_as_json_each_topic_is_a_line(shell: Shell, broken: BreakableService) -> None:
    shell.good("put", "orders", "--id", "j1")
    broken.lose_record("orders", "j1")
    [store] = [line for line in shell.json("audit", "--repair") if "topic" not in line]
    assert store["clean"]
    [orders] = shell.json("audit", "orders")
    assert (orders["clean"], orders["sums"]["lost"]) == (True, 1)


def test_a_topic_that_does_not_exist_ends_with_3(shell: Shell) -> None:
    assert "there is no topic 'none'" in shell.refused(3, "audit", "none")
