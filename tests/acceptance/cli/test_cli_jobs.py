"""The commands of producers and consumers, each against a real service."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.acceptance.cli.command_line import Shell, environment, terminal


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
    [(0, ["put", "{topic}", "-5", "--id", "a", "--on-conflict", "keep"]), (3, ["get", "{topic}", "missing"])],
)
def test_a_process_does_the_same_as_a_call_of_main(shell: Shell, topic: str, code: int, words: list[str]) -> None:
    """The other tests call `main`."""
    shell.good("put", topic, "-5", "--id", "a", "--run-at", "2030-01-31T09:30:00Z")
    words = [word.replace("{topic}", topic) for word in words]

    called, done = shell.run(*words), shell.run_process(*words)

    assert code == done.returncode
    assert (called.returncode, called.stdout, called.stderr) == (done.returncode, done.stdout, done.stderr)


def test_cancel_continues_after_a_missing_job(shell: Shell, topic: str) -> None:
    shell.good("put", topic, "-", "--jobs", stdin='{"id": "a"}\n{"id": "c", "delay": 60}\n')

    done = shell.run("cancel", topic, "a", "b", "c", "--json")

    assert 3 == done.returncode
    assert f"deferd: topic {topic!r} has no job 'b'\n" == done.stderr
    assert [("a", "ready", None), ("b", None, "job_not_found"), ("c", "delayed", None)] == [
        (one["id"], one.get("was"), one.get("code")) for one in map(json.loads, done.stdout.splitlines())
    ]


def test_a_job_is_waited_for(shell: Shell, topic: str) -> None:
    shell.good("put", topic, "1", "--id", "a", "--retain", "1h")
    late = shell.run("wait", topic, "a", "--within", "50ms")
    assert (late.returncode, late.stderr) == (4, "")
    assert late.stdout.splitlines()[1].startswith("state")

    [job] = shell.json("pop", topic)
    shell.good("touch", topic, "a", "--receipt", job["receipt"], "--progress", "0.5")
    command = [sys.executable, "-m", "deferd", "wait", topic, "a", "--progress", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(shell.url)
    ) as waiting:
        assert waiting.stderr is not None
        assert waiting.stdout is not None
        assert waiting.stderr.readline().endswith(": 50%\n")
        shell.good("touch", topic, "a", "--receipt", job["receipt"], "--progress", '{"left": 1}')
        assert waiting.stderr.readline().endswith(': {"left":1}\n')
        shell.good("finish", topic, "a", "--receipt", job["receipt"], "--result", "[2]")
        ended = json.loads(waiting.stdout.read())
        assert waiting.wait(20) == 0
    assert (ended["outcome"], ended["result"]) == ("finished", [2])

    assert shell.good("wait", topic, "a").splitlines()[1].split() == ["outcome", "finished"]
    shell.good("put", topic, "1", "--id", "b")
    shell.json("pop", topic)
    shell.good("bury", topic, "b")
    assert shell.run("wait", topic, "b").returncode == 6
    assert f"deferd: topic {topic!r} has no job 'c'" == shell.refused(3, "wait", topic, "c")


def test_a_consumer_pops_touches_releases_and_finishes(shell: Shell, topic: str) -> None:
    shell.good("put", topic, '{"n": 1}', "--id", "a", "--retain", "1h")

    [job] = shell.json("pop", topic, "--ttr", "30s", "--consumer", "me")
    assert (1, "me") == (job["attempt"], shell.json("get", topic, "a")[0]["reserved_by"])
    [touched] = shell.json("touch", topic, "a", "--receipt", job["receipt"], "--ttr", "1h", "--progress", "0.4")
    shown = [line.split() for line in shell.good("get", topic, "a").splitlines()]
    assert [words[:2] for words in shown if words[0] == "progress"] == [["progress", "40%,"]]
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


def test_a_job_shows_its_snoozes_and_failed_attempts(shell: Shell, topic: str) -> None:
    shell.good("put", topic, "1", "--id", "a")
    shell.good("pop", topic)
    assert "at least 0.1 seconds" in shell.refused(2, "release", topic, "a", "--no-count", "--delay", "0")
    shell.good("release", topic, "a", "--delay", "0.1s", "--no-count")
    assert "snoozes   1\n" in shell.good("get", topic, "a")
    shell.good("pop", topic, "--consumer", "w1")
    shell.good("bury", topic, "a", "--error", "no such order")
    [line] = [line for line in shell.good("get", topic, "a").splitlines() if line.startswith("attempt 1 ")]
    assert line.split()[2] == "buried"
    assert line.endswith(" by w1: no such order")


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


def test_an_unreachable_service_ends_with_1(topic: str) -> None:
    line = Shell("http://127.0.0.1:9").refused(1, "get", topic, "a", "--retry-for", "0")

    assert "the service cannot be reached: GET http://127.0.0.1:9/jobs/" in line
    assert "set its URL by --url or DEFERD_URL" in line


def test_ctrl_c_ends_a_command_with_130(shell: Shell, topic: str) -> None:
    with terminal(shell.url, "put", topic, "-") as reading:
        reading.wait_for("Ctrl-D ends")
        reading.press("1\n")
        reading.press("\x03")
        assert 130 == reading.end()
        assert "Traceback" not in reading.text


def test_commands_with_the_keys_read_and_put_what_others_cannot(shell: Shell, topic: str, tmp_path: Path) -> None:
    keys, others = tmp_path / "keys", tmp_path / "others"
    keys.write_text(shell.good("cipher", "new-key", "k2") + shell.good("cipher", "new-key"))
    others.write_text(shell.good("cipher", "new-key", "k9"))
    with_keys = ("--cipher-keys", str(keys))

    [put] = shell.json("put", topic, '{"to": "ada"}', "--id", "a", "--retain", "60", *with_keys)
    assert put["body"] == {"to": "ada"}

    for more in ((), ("--cipher-keys", str(others))):  # without the key of a job it is shown as it is stored
        [stored] = shell.json("get", topic, "a", *more)
        assert stored["body"].keys() == {"deferd:encrypted", "key", "data"}
        assert '"key": "k2"' in shell.good("get", topic, "a", *more)
        assert "ada" not in shell.good("jobs", topic, *more)
    assert '"to":"ada"' in shell.good("jobs", topic, *with_keys)
    assert 'body     {"to":"ada"}' in shell.good("pop", topic, *with_keys)
    shell.good("finish", topic, "a", "--result", '"sent"', *with_keys)
    assert shell.json("get", topic, "a")[0]["result"]["key"] == "k2"
    [finished] = shell.json("get", topic, "a", *with_keys)
    assert (finished["body"], finished["result"]) == ({"to": "ada"}, "sent")

    keys.write_text("k2:short")
    refused = shell.refused(2, "get", topic, "a", *with_keys)
    assert refused.startswith(f"deferd: --cipher-keys: '{keys}' cannot be used: key 1 of the cipher (not shown here)")
    assert "letters, digits and ._-" in shell.refused(2, "cipher", "new-key", "k 2")
