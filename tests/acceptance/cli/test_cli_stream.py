"""`deferd put TOPIC -`: many jobs from standard input."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.acceptance.cli.command_line import Shell, environment, ids, terminal

MANY = 20_000


def start_put(shell: Shell, topic: str) -> tuple[subprocess.Popen[str], IO[str], IO[str]]:
    """A put whose input stays open, with its standard input and output."""
    process = subprocess.Popen(
        [sys.executable, "-m", "deferd", "put", topic, "-", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(shell.url),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return process, process.stdin, process.stdout


def test_whole_jobs_can_be_put_again_without_harm(shell: Shell, topic: str) -> None:
    jobs = "".join(json.dumps({"id": f"j{n}", "body": n, "delay": 60 + n}) + "\n" for n in range(2500))

    assert shell.good("put", topic, "-", "--jobs", stdin=jobs).startswith("2,500 put in ")
    again = shell.run("put", topic, "-", "--jobs", "--json", "--on-conflict", "keep", stdin=jobs)

    assert 0 == again.returncode
    assert again.stderr.startswith("0 put, 2,500 kept in ")
    kept = {"topic": topic, "status": 200, "durability": "fsync", "state": "delayed"}
    assert [{"line": n + 1, "id": f"j{n}", **kept} for n in range(2500)] == [
        json.loads(line) for line in again.stdout.splitlines()
    ]
    refused = shell.run("put", topic, "-", "--jobs", stdin=jobs)
    assert 3 == refused.returncode
    assert refused.stdout.startswith("0 put, 2,500 refused (2,500 job_exists) in ")
    assert [f"deferd: line {n + 1}: job_exists: {topic}/j{n}" for n in range(10)] == refused.stderr.splitlines()


def test_a_broken_line_in_the_middle_leaves_all_before_it_put_and_none_after(shell: Shell, topic: str) -> None:
    lines = [json.dumps({"id": f"j{n}"}) for n in range(5000)]
    lines[3210] = '{"id": "j3210", "delay": "soon"}'

    done = shell.run("put", topic, "-", "--jobs", stdin="\n".join(lines))

    assert 2 == done.returncode
    assert done.stdout.startswith("3,210 put in ")
    [problem, how_far] = done.stderr.splitlines()
    assert problem.startswith("deferd: line 3211: delay: Input should be a valid number")
    assert "deferd: lines up to 3210 are put; none after line 3210 was sent" == how_far
    assert {f"j{n}" for n in range(3210)} == set(ids(shell.json("jobs", topic, "--all")))


def test_a_line_that_only_the_service_refuses_is_named_as_well(shell: Shell, topic: str) -> None:
    deepest = "[" * 199 + "]" * 199
    done = shell.run("put", topic, "-", stdin=f"1\n{deepest}\n2\n")

    assert (2, "0 put") == (done.returncode, done.stdout.partition(" in ")[0])
    [problem, how_far] = done.stderr.splitlines()
    assert problem.startswith("deferd: lines 1 to 3: ")
    assert "nested deeper than" in problem
    assert "deferd: no line is known to be put; lines 1 to 3 are not put; none after line 3 was sent" == how_far
    assert "there is no topic" in shell.refused(3, "topic", topic)


def test_each_line_may_name_its_topic(shell: Shell, topic: str) -> None:
    jobs = f'{{"topic": "{topic}.a", "id": "x"}}\n\n{{"topic": "{topic}.b", "id": "y"}}\n'

    results = [json.loads(line) for line in shell.run("put", "--jobs", "-", "--json", stdin=jobs).stdout.splitlines()]

    assert [(1, f"{topic}.a", "x"), (3, f"{topic}.b", "y")] == [
        (result["line"], result["topic"], result["id"]) for result in results
    ]


def test_each_line_is_put_before_the_next_arrives_and_ctrl_c_reports_which_are(shell: Shell, topic: str) -> None:
    process, stdin, stdout = start_put(shell, topic)
    for line in (1, 2, 3):
        stdin.write(f"{line}\n")
        stdin.flush()
        assert line == json.loads(stdout.readline())["line"]
    process.send_signal(signal.SIGINT)
    process.wait(20)  # although its input is still open
    rest, progress = process.communicate(timeout=20)

    assert (130, "") == (process.returncode, rest)
    assert progress.startswith("3 put in ")
    assert ["deferd: lines up to 3 are put; none after line 3 was sent"] == progress.splitlines()[1:]


@pytest.mark.slow
def test_a_bar_shows_how_far_it_is_on_a_terminal(shell: Shell, topic: str, tmp_path: Path) -> None:
    bodies = tmp_path / "bodies.ndjson"
    bodies.write_text("".join(f"{number}\n" for number in range(MANY)))
    line = f"{sys.executable} -m deferd put {topic} - < {bodies}"

    with terminal(shell.url, program=("bash", "-c", line)) as shown:
        text = shown.wait_for(r"20,000 put in ")
        assert 0 == shown.end()

    assert "putting" in text
    assert "jobs" in text


def test_an_unreachable_service_is_reported_before_the_first_line(topic: str) -> None:
    done = Shell("http://127.0.0.1:9").run("put", topic, "-", "--retry-for", "0", stdin="1\n")

    assert (1, "") == (done.returncode, done.stdout)
    assert "deferd: the service cannot be reached" in done.stderr
