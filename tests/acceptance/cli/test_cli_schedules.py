"""`deferd schedules`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deferd.cli.framework.exit_codes import DONE, FINDINGS, REFUSED, USAGE
from deferd.testing import ServiceForTests
from tests.acceptance.cli.command_line import Shell, run_in_process


@pytest.fixture
def shell(clocked_service: ServiceForTests) -> Shell:
    clocked_service.purge()
    return Shell(clocked_service.url)


def test_a_schedule_is_put_listed_shown_and_deleted(shell: Shell) -> None:
    put = ["schedules", "put", "nightly", "reports", '{"of": "all"}', "--cron", "0 3 * * *", "--zone", "Europe/Berlin"]
    options = ["--overlap", "skip", "--spread", "30s", "--ttr", "5m", "--tag", "night", "--max-runs", "9"]
    assert shell.good(*put, *options).startswith("nightly runs 20")
    [view] = shell.json("schedules", "get", "nightly")
    assert view["job"] == {"body": {"of": "all"}, "ttr": 300, "tags": ["night"]}
    assert (view["overlap"], view["spread"], view["max_runs"]) == ("skip", 30, 9)

    shown = shell.good("schedules", "get", "nightly")
    assert "runs at   0 3 * * * Europe/Berlin\n" in shown
    assert f"next job  {view['next_job']}\n" in shown
    assert "overlap   skip\n" in shown
    header, row = shell.good("schedules", "list").splitlines()
    assert header.split() == ["NAME", "RUNS", "AT", "TOPIC", "NEXT", "RUN", "RUNS", "SKIPS", "MISSED"]
    assert row.split()[:7] == ["nightly", "0", "3", "*", "*", "*", "Europe/Berlin"]

    assert "there is a schedule 'nightly' already" in shell.refused(REFUSED, *put, "--create-only")
    assert shell.good("schedules", "delete", "nightly") == "nightly deleted\n"
    assert "there is no schedule 'nightly'" in shell.refused(REFUSED, "schedules", "get", "nightly")
    assert shell.good("schedules", "list") == ""


def test_schedules_are_filtered_paused_resumed_and_run(shell: Shell) -> None:
    shell.good("schedules", "put", "poll", "feeds", "--every", "5m")
    shell.good("schedules", "put", "open", "shop", "--at", "09:00,13:30", "--days", "mon,tue")
    assert shell.good("schedules", "pause", "poll") == "poll paused\n"
    assert [one["name"] for one in shell.json("schedules", "list", "--paused")] == ["poll"]
    assert [one["name"] for one in shell.json("schedules", "list", "--active")] == ["open"]
    assert [one["name"] for one in shell.json("schedules", "list", "--topic", "shop", "--prefix", "o")] == ["open"]
    table = shell.good("schedules", "list")
    assert "poll (paused)  every 5m " in table
    assert "09:00,13:30 mon,tue UTC" in table
    assert shell.good("schedules", "resume", "poll").startswith("poll runs 20")
    topic, job_id = shell.good("schedules", "run", "poll").split()
    assert shell.json("get", topic, job_id)[0]["state"] == "ready"


def test_runs_to_come_are_previewed(shell: Shell) -> None:
    options = ["--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--start-at", "2037-03-28T00:00Z", "--count", "2"]
    expected = (
        "2037-03-28T02:30:00+01:00  2037-03-28T01:30:00.000Z  Sat\n"
        "2037-03-29T03:00:00+02:00  2037-03-29T01:00:00.000Z  Sun\n"
    )
    assert shell.good("schedules", "preview", *options) == expected
    shell.good("schedules", "put", "spring", "reports", *options[:-2])
    assert shell.good("schedules", "preview", "spring", "--count", "2") == expected
    assert shell.json("schedules", "preview", "spring")[1] == {
        "at": "2037-03-29T03:00:00+02:00",
        "utc": "2037-03-29T01:00:00.000Z",
    }
    assert "exclude each other" in shell.refused(USAGE, "schedules", "preview", "spring", *options)
    assert "say of what" in shell.refused(USAGE, "schedules", "preview")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--cron", "0 0 30 2 *"], "--cron never runs: no date is day of month '30' in month '2'"),
        (["--cron", "0 25 * * *"], "--cron is not a cron expression: its hour is '25'"),
        (["--every", "0.5s"], "--every must be at least 1"),
        (["--cron", "@daily", "--zone", "Mars"], "--zone is not a time zone of the IANA database"),
        (["--at", "9:00"], "--at[0] must match"),
        ([], "must have exactly one of `cron`, `every` and `at`: it has none"),
    ],
)
def test_what_the_service_refuses_is_named_as_the_option(shell: Shell, words: list[str], text: str) -> None:
    assert text in shell.refused(USAGE, "schedules", "put", "bad", "reports", *words)


def test_names_are_completed(shell: Shell) -> None:
    shell.good("schedules", "put", "nightly", "reports", "--cron", "@daily")
    words = {"_DEFERD_COMPLETE": "bash_complete", "COMP_WORDS": "deferd schedules get nig", "COMP_CWORD": "3"}
    assert "nightly" in shell.run(**words).stdout


FILE = """
[schedules.nightly]
topic = "reports"
cron = "0 3 * * *"
zone = "Europe/Berlin"
job = { body = { of = "all" }, max_attempts = 3 }

[schedules."feeds.poll"]
topic = "feeds"
every = 300
start_at = 2030-01-01T00:00:00+01:00
overlap = "skip"
"""


class Synced:
    """Runs `deferd schedules sync` with a file."""

    def __init__(self, shell: Shell, file: Path) -> None:
        self.shell = shell
        self.file = file

    def run(self, text: str, *words: str) -> tuple[int, str, str]:
        """The exit code, the output, and the errors."""
        self.file.write_text(text)
        done = self.shell.run("schedules", "sync", str(self.file), *words)
        return done.returncode, done.stdout, done.stderr.replace(str(self.file), "FILE")


@pytest.fixture
def synced(shell: Shell, tmp_path: Path) -> Synced:
    return Synced(shell, tmp_path / "schedules.toml")


def test_sync_makes_the_service_match_a_file(shell: Shell, synced: Synced) -> None:
    shell.good("schedules", "put", "old", "reports", "--cron", "@daily")
    added = (
        "+ feeds.poll\n"
        "    every: 300.0\n"
        '    overlap: "skip"\n'
        '    start_at: "2029-12-31T23:00:00.000Z"\n'
        '    topic: "feeds"\n'
        "+ nightly\n"
        '    cron: "0 3 * * *"\n'
        '    job.body: {"of":"all"}\n'
        "    job.max_attempts: 3\n"
        '    topic: "reports"\n'
        '    zone: "Europe/Berlin"\n'
    )
    assert synced.run(FILE, "--dry-run") == (FINDINGS, added, "")
    assert [one["name"] for one in shell.json("schedules", "list")] == ["old"]
    assert synced.run(FILE) == (DONE, added, "")
    assert {one["name"] for one in shell.json("schedules", "list")} == {"old", "nightly", "feeds.poll"}
    assert synced.run(FILE, "--dry-run") == (DONE, "", "")
    assert synced.run(FILE, "--prune", "--dry-run") == (FINDINGS, "- old\n", "")

    changed = FILE.replace("0 3 * * *", "30 3 * * *").replace("max_attempts = 3", "ttr = 60").replace("300", "600")
    [before] = shell.json("schedules", "get", "nightly")
    assert synced.run(changed, "--prune") == (
        DONE,
        (
            "~ feeds.poll\n"
            "    every: 300.0 -> 600.0\n"
            "~ nightly\n"
            '    cron: "0 3 * * *" -> "30 3 * * *"\n'
            "    job.max_attempts: 3 -> (default)\n"
            "    job.ttr: (default) -> 60.0\n"
            "- old\n"
        ),
        "",
    )
    [after] = shell.json("schedules", "get", "nightly")
    assert (after["cron"], after["created_at"]) == ("30 3 * * *", before["created_at"])
    assert {one["name"] for one in shell.json("schedules", "list")} == {"nightly", "feeds.poll"}
    assert synced.run(changed, "--prune") == (DONE, "", "")


def test_sync_says_in_json_what_it_did_to_each(shell: Shell, synced: Synced) -> None:
    shell.good("schedules", "put", "old", "reports", "--cron", "@daily")
    shell.good("schedules", "put", "feeds.poll", "feeds", "--every", "5m", "--overlap", "skip")
    synced.file.write_text(FILE)
    lines: list[Any] = shell.json("schedules", "sync", str(synced.file))
    assert lines == [
        {
            "schedule": "feeds.poll",
            "change": "changed",
            "fields": {"start_at": [None, "2029-12-31T23:00:00.000Z"]},
        },
        {"schedule": "nightly", "change": "added", "fields": lines[1]["fields"]},
        {"schedule": "old", "change": "unlisted", "fields": {}},
    ]
    assert lines[1]["fields"]["cron"] == [None, "0 3 * * *"]
    [_, _, removed] = shell.json("schedules", "sync", str(synced.file), "--prune")
    assert removed == {"schedule": "old", "change": "removed", "fields": {}}


def test_sync_prunes_only_below_a_prefix(shell: Shell, synced: Synced) -> None:
    shell.good("schedules", "put", "feeds.old", "feeds", "--every", "5m")
    shell.good("schedules", "put", "others", "feeds", "--every", "5m")
    only_feeds = FILE[FILE.index('[schedules."feeds.poll"]') :]
    code, out, _ = synced.run(only_feeds, "--prune", "--prefix", "feeds.")
    assert (code, "- feeds.old\n" in out) == (DONE, True)
    assert {one["name"] for one in shell.json("schedules", "list")} == {"feeds.poll", "others"}
    assert synced.run(FILE, "--prefix", "feeds.") == (
        *(USAGE, ""),
        "deferd: FILE: schedule nightly does not begin with 'feeds.', which is the --prefix\n",
    )


def test_sync_leaves_a_pause_that_the_file_does_not_name(shell: Shell, synced: Synced) -> None:
    synced.run(FILE)
    shell.good("schedules", "pause", "nightly")
    assert synced.run(FILE) == (DONE, "", "")
    code, out, _ = synced.run(FILE.replace("zone =", "paused = false\nzone ="))
    assert (code, out) == (DONE, "~ nightly\n    paused: true -> (default)\n")
    assert not shell.json("schedules", "get", "nightly")[0]["paused"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x = ", "FILE is not TOML: "),
        ("[nightly]\n", "FILE must have nothing but tables [schedules.NAME]: it has nightly"),
        ("schedules = 1\n", "FILE must have nothing but tables [schedules.NAME]: `schedules` is not a table"),
        ("[schedules]\nnightly = 1\n", "FILE: schedule nightly must be a table [schedules.nightly] and not 1"),
        (FILE.replace("0 3 * * *", "0 25 * * *"), "FILE: schedule nightly: cron is not a cron expression: its hour is"),
        (FILE.replace("0 3 * * *", "0 0 31 6 *"), "FILE: schedule nightly: cron never runs: no date is day of month"),
        (FILE.replace("Europe/Berlin", "Mars"), "FILE: schedule nightly: zone is not a time zone of the IANA database"),
        (FILE.replace("max_attempts = 3", "ttr = 0"), "FILE: schedule nightly: job.ttr must be at least 0.1"),
        (FILE.replace("overlap", "overlaps"), "FILE: schedule feeds.poll: overlaps is not a known field"),
        (FILE.replace("00+01:00", "00"), "FILE: schedule feeds.poll: start_at must have a zone"),
        ('[schedules.x]\ntopic = "t"\nevery = 60\njob = 5\n', "FILE: schedule x: job must be a JSON object (it is 5)"),
        (FILE.replace('"reports"', '"a b"'), "FILE: schedule nightly: topic must match"),
        (
            FILE.replace("schedules.nightly", 'schedules."a b"'),
            "FILE: schedule a b must have a name such as nightly or shop.orders",
        ),
    ],
)
def test_sync_changes_nothing_when_a_schedule_is_invalid(shell: Shell, synced: Synced, text: str, error: str) -> None:
    for words in ([], ["--dry-run"]):
        code, out, errors = synced.run(text, *words)
        assert (code, out) == (USAGE, ""), errors
        assert errors.startswith("deferd: ")
        assert error in errors
        assert len(errors.splitlines()) == 1
    assert shell.good("schedules", "list") == ""


def test_sync_needs_a_readable_file(shell: Shell, tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert f"{missing} cannot be read: No such file" in shell.refused(USAGE, "schedules", "sync", str(missing))


def test_the_help_has_each_action() -> None:
    done = run_in_process("schedules", "--help")
    assert done.returncode == DONE
    for action in ("list", "get", "put", "delete", "pause", "resume", "run", "preview", "sync"):
        assert f"\n  {action} " in done.stdout
        assert "examples:" in run_in_process("schedules", action, "--help").stdout
