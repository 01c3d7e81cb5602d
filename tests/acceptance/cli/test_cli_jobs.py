"""The commands of producers and consumers, each against a real service."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from tests.acceptance.cli.command_line import Shell, ids, terminal
from tests.acceptance.service_process import ServiceProcess


@pytest.fixture
def shell(shared_service: ServiceProcess) -> Shell:
    return Shell(shared_service.url)


def test_a_job_is_put_shown_changed_and_cancelled(shell: Shell, topic: str) -> None:
    put = shell.good("put", topic, '{"order": 1042}', "--id", "o-1", "--delay", "30m", "--backoff", "schedule:2m,1h")
    assert put.startswith(f"{topic}/o-1 delayed, due 20")
    assert put.endswith("Z (in 30m)\n") or "(in 29m" in put

    facts = dict(line.split(maxsplit=1) for line in shell.good("get", topic, "o-1").splitlines()[:9])
    assert (f"{topic}/o-1", "0 of any number", "schedule:120,3600") == (
        facts["job"],
        facts["attempts"],
        facts["backoff"],
    )
    assert facts["state"].startswith("delayed, due in ")

    [changed] = shell.json("change", topic, "o-1", '"new"', "--delay", "0", "--ttl", "none")
    assert ("ready", "new") == (changed["state"], changed["body"])

    assert f"{topic}/o-1 cancelled, was ready\n" == shell.good("cancel", topic, "o-1")
    assert f"deferd: topic {topic!r} has no job 'o-1'" == shell.refused(3, "get", topic, "o-1")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, ["put", "{topic}", "-5", "--id", "a", "--on-conflict", "keep"]),
        (0, ["get", "{topic}", "a", "--json"]),
        (3, ["get", "{topic}", "missing"]),
        (2, ["put", "{topic}", "1", "--delai", "5"]),
        (4, ["pop", "{topic}", "--wait", "0"]),
        (0, ["audit", "{topic}", "--json"]),
        (2, ["copy"]),
    ],
)
def test_a_process_does_the_same_as_a_call_of_main(shell: Shell, topic: str, code: int, words: list[str]) -> None:
    """The other tests call `main`."""
    shell.good("put", topic, "-5", "--id", "a", "--run-at", "2030-01-31T09:30:00Z")
    words = [word.replace("{topic}", topic) for word in words]

    called, done = shell.run(*words), shell.run_process(*words)

    assert code == done.returncode
    assert (called.returncode, called.stdout, called.stderr) == (done.returncode, done.stdout, done.stderr)


def test_every_flag_of_put_reaches_the_job(shell: Shell, topic: str) -> None:
    run_at = (datetime.now(UTC) + timedelta(days=2)).replace(microsecond=0)
    flags = ["--ttr", "2m", "--max-attempts", "3", "--backoff", "fixed:10:0.5", "--ttl", "1h", "--retain", "1d"]
    flags += ["--dead-retain", "0", "--time-limit", "1m", "--deadline", "2h"]

    [job] = shell.json("put", topic, "null", "--run-at", run_at.isoformat(), *flags)

    assert run_at == datetime.fromisoformat(job["due_at"])
    assert (0, 60, 7200) == tuple(job[name] for name in ("dead_retain", "time_limit", "deadline"))
    assert (None, 120, 3, 3600, 86400) == tuple(job[name] for name in ("body", "ttr", "max_attempts", "ttl", "retain"))
    assert {"kind": "fixed", "seconds": 10, "jitter": 0.5} == job["backoff"]


def test_a_leap_second_is_read_by_flag_and_line(shell: Shell, topic: str) -> None:
    leap, due_at = "2030-06-30T23:59:60Z", "2030-07-01T00:00:00.000Z"

    [by_flag] = shell.json("put", topic, "1", "--run-at", leap)
    by_line = shell.run("put", topic, "-", "--jobs", stdin=json.dumps({"id": "a", "run_at": leap}))

    assert 0 == by_line.returncode, by_line.stderr
    assert due_at == by_flag["due_at"]
    assert due_at == shell.json("get", topic, "a")[0]["due_at"]


def test_a_taken_id_is_refused_kept_or_replaced(shell: Shell, topic: str) -> None:
    shell.good("put", topic, '"old"', "--id", "a")

    assert f"deferd: topic {topic!r} already has a job 'a'" == shell.refused(3, "put", topic, '"new"', "--id", "a")
    [kept] = shell.json("put", topic, '"new"', "--id", "a", "--on-conflict", "keep")
    [replaced] = shell.json("put", topic, '"new"', "--id", "a", "--on-conflict", "replace")

    assert ("old", "new") == (kept["body"], replaced["body"])


def test_commands_have_the_names_of_other_tools(shell: Shell, topic: str) -> None:
    for job_id in ("a", "b", "c", "d", "e"):
        shell.good("put", topic, "1", "--id", job_id)

    assert "a" == shell.json("get", topic, "a")[0]["id"]
    for word, job_id in (("delete", "a"), ("remove", "b"), ("rm", "c")):
        assert f"{topic}/{job_id} cancelled, was ready\n" == shell.good(word, topic, job_id)
    assert ["d", "e"] == ids(shell.json("pop", topic, "--count", "2"))
    assert f"{topic}/d finished\n" == shell.good("ack", topic, "d")
    assert f"{topic}/e delayed, due" in shell.good("nack", topic, "e", "--delay", "1h")


def test_cancel_continues_after_a_missing_job(shell: Shell, topic: str) -> None:
    shell.good("put", topic, "-", "--jobs", stdin='{"id": "a"}\n{"id": "c", "delay": 60}\n')

    done = shell.run("cancel", topic, "a", "b", "c", "--json")

    assert 3 == done.returncode
    assert f"deferd: topic {topic!r} has no job 'b'\n" == done.stderr
    assert [("a", "ready", None), ("b", None, "job_not_found"), ("c", "delayed", None)] == [
        (one["id"], one.get("was"), one.get("code")) for one in map(json.loads, done.stdout.splitlines())
    ]


def test_refuse_reserved_does_not_cancel_a_held_job(shell: Shell, topic: str) -> None:
    shell.good("put", topic, "--id", "a")
    shell.json("pop", topic)

    assert "a consumer holds job 'a'" in shell.refused(3, "cancel", topic, "a", "--refuse-reserved")
    assert "was reserved" in shell.good("cancel", topic, "a")
    assert "was cancelled" in shell.refused(3, "touch", topic, "a")


def test_a_consumer_pops_touches_releases_and_finishes(shell: Shell, topic: str) -> None:
    shell.good("put", topic, '{"n": 1}', "--id", "a", "--retain", "1h")

    [job] = shell.json("pop", topic, "--ttr", "30s", "--consumer", "me")
    assert (1, "me") == (job["attempt"], shell.json("get", topic, "a")[0]["reserved_by"])
    [touched] = shell.json("touch", topic, "a", "--receipt", job["receipt"], "--ttr", "1h")
    left = datetime.fromisoformat(touched["reserved_until"]) - datetime.now(UTC)
    assert timedelta(minutes=58) < left <= timedelta(minutes=61)
    [released] = shell.json(
        "release", topic, "a", "--receipt", job["receipt"], "--delay", "0", "--error", "away\x1b[2J"
    )
    assert 1 == released["attempts"]
    text = shell.good("pop", topic, "--wait", "5s")
    assert [f"{topic}/a attempt 2, lease ends", "  receipt  ", r"  error    away\x1b[2J", '  body     {"n":1}'] == [
        text.splitlines()[0][: len(f"{topic}/a attempt 2, lease ends")],
        text.splitlines()[1][:11],
        *text.splitlines()[2:],
    ]
    stale = shell.refused(3, "finish", topic, "a", "--receipt", job["receipt"])
    assert f"a consumer holds job 'a' of topic {topic!r} under another receipt" in stale
    assert f"{topic}/a finished\n" == shell.good("finish", topic, "a", "--result", '{"ok": true}')
    assert {"ok": True} == shell.json("get", topic, "a")[0]["result"]


def test_a_job_shows_its_failed_attempts(shell: Shell, topic: str) -> None:
    shell.good("put", topic, "1", "--id", "a")
    shell.good("pop", topic, "--consumer", "w1")
    shell.good("bury", topic, "a", "--error", "no such order")
    [line] = [line for line in shell.good("get", topic, "a").splitlines() if line.startswith("attempt 1 ")]
    assert line.split()[2] == "buried"
    assert line.endswith(" by w1: no such order")


def test_a_finish_puts_the_jobs_that_follow(shell: Shell, topic: str) -> None:
    shell.good("put", topic, "1", "--id", "a")
    shell.good("pop", topic)
    puts = [f'{{"topic": "{topic}", "id": "{job_id}", "delay": 60}}' for job_id in ("b", "c")]
    assert f"{topic}/a finished\n" == shell.good("finish", topic, "a", "--put", puts[0], "--put", puts[1])
    assert ["b", "c"] == sorted(ids(shell.json("jobs", topic)))


def test_a_release_need_not_count_as_an_attempt(shell: Shell, topic: str) -> None:
    shell.good("put", topic, "1", "--id", "a")
    shell.good("pop", topic)
    [released] = shell.json("release", topic, "a", "--delay", "0.1s", "--no-count")
    assert (released["state"], released["attempts"]) == ("delayed", 0)
    assert "snoozes   1\n" in shell.good("get", topic, "a")
    shell.good("pop", topic)
    assert "at least 0.1 seconds" in shell.refused(2, "release", topic, "a", "--no-count")


@pytest.mark.parametrize("verb", ["finish", "release", "touch", "bury"])
def test_a_verb_on_a_job_without_a_holder_fails_with_its_state(shell: Shell, topic: str, verb: str) -> None:
    shell.good("put", topic, "1", "--id", "a", "--delay", "1h")

    assert f"deferd: nobody holds job 'a' of topic {topic!r}: it is delayed" == shell.refused(3, verb, topic, "a")


def test_a_buried_job_is_dead_with_its_error(shell: Shell, topic: str) -> None:
    shell.good("put", topic, "--id", "a")
    shell.json("pop", topic)

    assert [{"topic": topic, "id": "a", "state": "dead"}] == shell.json("bury", topic, "a", "--error", "no such order")
    assert "buried: no such order" in shell.good("get", topic, "a")


def test_pop_takes_from_several_topics_in_their_order(shell: Shell, topic: str) -> None:
    shell.good("put", f"{topic}.b", "--id", "second")
    shell.good("put", f"{topic}.a", "--id", "first")

    assert ["first", "second"] == ids(shell.json("pop", f"{topic}.a,{topic}.b", "--count", "5"))


def test_pop_with_nothing_ready_ends_with_4(shell: Shell, topic: str) -> None:
    done = shell.run("pop", topic, "--wait", "0.1")

    assert (4, "", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["put", "no topic", "1"], "deferd: TOPIC must match ^[A-Za-z0-9]"),
        (["put", "t", "1", "--id", "no id"], "deferd: --id must match ^[A-Za-z0-9]"),
        (["put", "t", "1", "--delay", "-5"], "deferd: --delay must be at least 0 seconds (it is -5)"),
        (["put", "t", "1", "--ttr", "2d"], "deferd: --ttr must be at most 86400 seconds"),
        (["put", "t", "1", "--backoff", "exponential:0:5"], "deferd: --backoff.base must be at least 1"),
        (["pop", "t", "--count", "0"], "deferd: --count must be at least 1"),
        (["pop", "t", "--wait", "2m"], "deferd: --wait must be at most 60 seconds"),
        (["finish", "t", "a", "--receipt", "r" * 100], "deferd: --receipt must "),
        (["topic", "t", "--ttr", "2d"], "deferd: --ttr must be at most 86400 seconds"),
        (["topic", "t", "--set", '{"ttl": 0}'], "deferd: ttl must be at least 0.001 seconds"),
        (["redrive", "t", "--limit", "0"], "deferd: --limit must be at least 1"),
        (["put", "t", "hello"], "deferd: BODY: 'hello' is not JSON"),
    ],
)
def test_a_refused_value_is_named_as_its_flag_with_its_limit(shell: Shell, words: list[str], line: str) -> None:
    assert shell.refused(2, *words).startswith(line)


def test_a_body_that_is_too_large_ends_with_2(shell: Shell, topic: str) -> None:
    body = "x" * 100_000
    done = shell.run("put", topic, "-", stdin="\n".join(f'"{body * 11}"' for _ in range(1)))

    assert 2 == done.returncode
    assert "larger than 1048576 bytes" in done.stderr


def test_an_unreachable_service_ends_with_1(topic: str) -> None:
    line = Shell("http://127.0.0.1:9").refused(1, "get", topic, "a", "--retry-for", "0")

    assert "the service cannot be reached: GET http://127.0.0.1:9/jobs/" in line
    assert "set its URL by --url or DEFERD_URL" in line


def test_the_next_replica_is_tried_when_one_is_down(shell: Shell, topic: str) -> None:
    [job] = shell.json("put", topic, "1", "--url", f"http://127.0.0.1:9,{shell.url}")

    assert topic == job["topic"]


def test_ctrl_c_ends_a_waiting_pop_with_130(shell: Shell, topic: str) -> None:
    with terminal(shell.url, "pop", topic, "--wait", "60", "--consumer", "waiting") as waiting:
        shell.json("put", topic, "1", "--id", "first")
        waiting.wait_for(f"{topic}/first attempt 1")
        assert 0 == waiting.end()
    with terminal(shell.url, "put", topic, "-") as reading:
        reading.wait_for("Ctrl-D ends")
        reading.press("1\n")
        reading.press("\x03")
        assert 130 == reading.end()
        assert "Traceback" not in reading.text
