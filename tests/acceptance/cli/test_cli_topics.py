"""The commands for topics."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.acceptance.cli.command_line import Shell, environment, ids, terminal


def seed(shell: Shell, topic: str, *jobs: dict[str, Any]) -> None:
    shell.good("put", topic, "-", "--jobs", stdin="\n".join(map(json.dumps, jobs)))


def test_topics_are_a_table_for_people_and_json_for_programs(shell: Shell, topic: str) -> None:
    seed(shell, topic, {"id": "a"}, {"id": "b", "delay": 3600})

    table = shell.good("topics").splitlines()
    assert ["TOPIC", "DELAYED", "READY", "RESERVED", "DEAD", "FINISHED", "OLDEST", "READY", "NEXT", "DUE"] == table[
        0
    ].split()
    [row] = [line.split() for line in table if line.startswith(topic)]
    assert [topic, "1", "1", "0", "0", "0"] == row[:6]
    [view] = [one for one in shell.json("topics") if one["topic"] == topic]
    assert {"delayed": 1, "ready": 1, "reserved": 0, "dead": 0, "finished": 0} == view["counts"]


def test_a_batch_is_set_shown_and_deleted(shell: Shell, topic: str) -> None:
    created = shell.good("batch", topic, "--on-end", f"{topic}.done", "--expect", "3")
    assert f"puts       {topic}.done\nexpects    3\njobs       0\n" in created
    seed(shell, topic, {"id": "a", "batch": topic}, {"id": "b", "batch": topic})
    shell.good("cancel", topic, "a")
    [row] = [line.split() for line in shell.good("batches").splitlines() if line.startswith(topic)]
    assert row == [topic, "open", "2", "1", "0", "0", "1", f"{topic}.done"]
    assert f"batch     {topic}\n" in shell.good("get", topic, "b")
    assert "--on-end is required: there is no such batch yet" in shell.refused(2, "batch", f"{topic}.new", "--seal")
    for options in (("--delete", "--seal"), ("--refuse-reserved",)):
        assert "--delete" in shell.refused(2, "batch", topic, *options)
    assert shell.good("batch", topic, "--delete") == f"{topic} deleted, 1 job cancelled\n"
    assert "there is no batch" in shell.refused(3, "batch", topic)


def test_a_topic_gets_partitions_and_keeps_them(shell: Shell, topic: str) -> None:
    [view] = shell.json("topic", topic, "--partitions", "4")
    assert view["settings"]["partitions"] == 4
    for options in (("--ttr", "30"), ("--set", "{}"), ("--partitions", "4")):
        [view] = shell.json("topic", topic, *options)
        assert (view["topic"], view["settings"]["partitions"]) == (topic, 4)
    assert "partitions    4\n" in shell.good("topic", topic)
    assert "at least 4: partitions can grow, not shrink" in shell.refused(2, "topic", topic, "--partitions", "3")
    shell.refused(2, "topic", topic, "--partitions", "65")
    shell.refused(2, "topic", topic, "--partitions", "0")
    seed(shell, topic, *({"id": f"job-{number}"} for number in range(20)))
    [audit] = shell.json("audit", topic)
    assert (audit["topic"], audit["clean"], audit["checked"], audit["counts"]["ready"]) == (topic, True, 20, 20)


def test_a_topic_is_set_in_part_or_as_a_whole(shell: Shell, topic: str) -> None:
    assert f"there is no topic {topic!r}" in shell.refused(3, "topic", topic)

    shell.json("topic", topic, "--ttr", "2m", "--max-attempts", "5", "--backoff", "fixed:30")
    [view] = shell.json("topic", topic, "--max-jobs", "2", "--max-attempts", "none")
    assert (120, None, 30, 2) == (
        view["settings"]["ttr"],
        view["settings"]["max_attempts"],
        view["settings"]["backoff"]["seconds"],
        view["settings"]["max_jobs"],
    )
    text = shell.good("topic", topic)
    assert "backoff       fixed:30\n" in text
    assert "ttl           the service's default\n" in text

    assert "limits        none\n" in text

    limits = ("--max-in-flight", "50", "--rate", "100/s", "--burst", "10", "--per-group-max-in-flight", "1")
    [view] = shell.json("topic", topic, *limits)
    [view] = shell.json("topic", topic, "--per-group-rate", "5/10s", "--max-in-flight", "none", "--ttl", "1h")
    assert view["settings"]["limits"] == {
        "rate": {"count": 100, "per": 1, "burst": 10},
        "per_group": {"max_in_flight": 1, "rate": {"count": 5, "per": 10}},
    }
    text = "limits        100 per 1s, 10 at once; each group: at most 1 in flight, 5 per 10s\n"
    assert text in shell.good("topic", topic)
    [view] = shell.json("topic", topic, "--rate", "200/s")
    assert view["settings"]["limits"]["rate"] == {"count": 200, "per": 1, "burst": 10}
    assert "at most the `count`, 5" in shell.refused(2, "topic", topic, "--rate", "5/s", "--burst", "6")
    gone = [word for name in ("rate", "per-group-max-in-flight", "per-group-rate") for word in (f"--{name}", "none")]
    [view] = shell.json("topic", topic, *gone)
    assert (view["settings"]["limits"], view["settings"]["ttl"]) == (None, 3600)
    assert "give --rate as well" in shell.refused(2, "topic", topic, "--burst", "6")

    [view] = shell.json("topic", topic, "--set", '{"max_jobs": 1}')
    assert (None, 1) == (view["settings"]["ttr"], view["settings"]["max_jobs"])


@pytest.mark.slow
def test_an_empty_list_says_so_on_a_terminal_only(shell: Shell, topic: str) -> None:
    shell.json("topic", topic, "--set", "{}")
    words = ("jobs", topic, "--state", "dead")

    assert ("", []) == (shell.good(*words), shell.json(*words))
    with terminal(shell.url, *words) as shown:
        assert (0, f"{topic} has no dead jobs") == (shown.end(), shown.text.strip())
    with terminal(shell.url, *words, "--json") as shown:
        assert (0, "") == (shown.end(), shown.text)


def test_a_full_topic_ends_with_3(shell: Shell, topic: str) -> None:
    shell.json("topic", topic, "--max-jobs", "1")
    shell.json("put", topic)

    assert "holds 1 live jobs, which is its max_jobs" in shell.refused(3, "put", topic, "--retry-for", "0")
    done = shell.run("put", topic, "-", stdin="1\n2\n")
    assert (3, "0 put, 2 refused (2 topic_full)") == (done.returncode, done.stdout.partition(" in ")[0])
    assert [f"deferd: line {line}: topic_full: {topic}/" for line in (1, 2)] == [
        line[: line.index("/") + 1] for line in done.stderr.splitlines()
    ]


def test_jobs_are_listed_by_state_and_limit(shell: Shell, topic: str) -> None:
    seed(
        shell, topic, *({"id": f"j{number}", "body": {"n": number}, "delay": 3590} for number in range(5)), {"id": "r"}
    )

    assert {f"j{number}" for number in range(5)} | {"r"} == set(ids(shell.json("jobs", topic)))
    assert ["r"] == ids(shell.json("jobs", topic, "--state", "ready"))
    assert 2 == len(shell.json("jobs", topic, "--limit", "2"))
    table = shell.good("jobs", topic, "--state", "delayed").splitlines()
    assert ["ID", "STATE", "STANDS", "TRIES", "BODY"] == table[0].split()
    assert {f'j{number} delayed due in 59m 5xs 0 {{"n":{number}}}' for number in range(5)} == {
        " ".join([*words[:5], "5xs", *words[6:]]) for words in (line.split() for line in table[1:])
    }


def test_a_purge_prompts_on_a_terminal_and_requires_yes_elsewhere(shell: Shell, topic: str) -> None:
    seed(shell, topic, {"id": "a"}, {"id": "b", "delay": 60})
    assert "give --yes" in shell.refused(2, "purge", topic)

    with terminal(shell.url, "purge", topic, "--state", "ready") as purge:
        purge.wait_for(r"Remove 1 job \(1 ready\) of .* for good\? \[y/N\] ")
        purge.press("\n")
        assert 130 == purge.end()
        assert "nothing was removed" in purge.text
    with terminal(shell.url, "purge", topic) as purge:
        purge.wait_for(r"Remove 2 jobs \(1 delayed, 1 ready\)")
        purge.press("y\n")
        assert 0 == purge.end()
        assert f"2 jobs of {topic} removed" in purge.text

    seed(shell, topic, {"id": "a"})
    assert [{"removed": 1}] == shell.json("purge", topic, "--yes")


def test_a_paused_topic_hands_out_nothing_until_it_is_resumed(shell: Shell, topic: str) -> None:
    seed(shell, topic, {"id": "a"})

    assert f"{topic} paused, 1 ready\n" == shell.good("pause", topic)
    assert 4 == shell.run("pop", topic, "--wait", "0").returncode
    assert f"\n{topic} (paused) " in shell.good("topics")
    assert [False] == [view["paused"] for view in shell.json("resume", topic)]
    assert f"{topic}.2 paused, no jobs\n" == shell.good("pause", f"{topic}.2")
    assert f"deferd: there is no topic '{topic}.3'" == shell.refused(3, "resume", f"{topic}.3")
    assert ["a"] == ids(shell.json("pop", topic, "--wait", "0"))


def test_a_closed_pipe_ends_it_quietly(shell: Shell, topic: str) -> None:
    seed(shell, topic, *({"id": f"j{number}", "body": "x" * 200} for number in range(2000)))
    line = f"{sys.executable} -m deferd jobs {topic} --all --json | head -n 1; exit ${{PIPESTATUS[0]}}"

    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=30, check=False, env=environment(shell.url)
    )

    assert (141, "") == (done.returncode, done.stderr)
    assert topic == json.loads(done.stdout)["topic"]


@pytest.mark.slow
def test_the_table_of_topics_keeps_its_numbers_whole_on_a_narrow_terminal(shell: Shell, topic: str) -> None:
    seed(shell, f"{topic}.and-a-name-that-goes-on", *({"id": f"j{number}", "delay": 3600} for number in range(1200)))

    with terminal(shell.url, "topics", size=(24, 76)) as shown:
        assert 0 == shown.end()

    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.text.replace("\r", ""))
    assert max(map(len, text.splitlines())) <= 76
    rows = [line.split() for line in text.splitlines() if line.startswith(topic[:10])]
    assert ["1.20k", "0", "0", "0", "0", "-", "59m"] in [row[1:] for row in rows]


def test_a_table_fits_a_narrow_terminal(shell: Shell, topic: str) -> None:
    seed(shell, topic, {"id": "a", "body": "long " * 100})

    with terminal(shell.url, "jobs", topic, size=(24, 60)) as shown:
        assert 0 == shown.end()

    lines = shown.text.replace("\r", "").splitlines()
    assert 2 == len(lines)
    assert max(map(len, lines)) <= 60 + len("\x1b[1m\x1b[0m") * 5
    assert lines[1].endswith("…")
