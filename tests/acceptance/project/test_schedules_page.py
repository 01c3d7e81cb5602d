"""The page on schedules is true: its programs and its file run, and its tables say what happens."""

from __future__ import annotations

import re
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis

from deferd import AsyncClient, Client, Schedule
from deferd.client.scheduling import put_schedule
from deferd.store.data_dir import DataDirectory
from deferd.testing import ServiceForTests
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.project.test_readme import DOCUMENTS, block_with, blocks, module_of
from tests.acceptance.service_process import running_service
from tests.acceptance.worker.worker_runs import in_state, serving
from tests.waiting import wait_until


def test_the_first_program_prints_what_the_page_says(
    service: ServiceForTests, capsys: pytest.CaptureFixture[str]
) -> None:
    module_of(block_with("preview_schedule(", "schedules"), service)
    assert capsys.readouterr().out == blocks("schedules", "text")[0]


async def test_the_worker_reports_on_the_day_before(service: ServiceForTests) -> None:
    worker = module_of(block_with("@worker.schedule", "schedules"), service)["worker"]
    async with AsyncClient(service.url) as client, serving(worker):
        await client.put("reports.nightly", id="reports.nightly:20300331T010000Z", retain=60)
        made = await in_state(client, "reports.nightly", "reports.nightly:20300331T010000Z", "finished")
        assert made.result == "the report on 2030-03-30"
        assert (await client.schedule("reports.nightly")).catch_up == "all"


async def test_the_worker_of_the_page_on_workers_registers_its_schedules(service: ServiceForTests) -> None:
    worker = module_of(block_with("poll-feeds", "worker"), service)["worker"]
    async with AsyncClient(service.url) as client, serving(worker):
        await client.put("feeds", id="f", retain=60)
        await in_state(client, "feeds", "f", "finished")
        schedules = {one.name: (one.topic, one.cron, one.every) async for one in client.schedules()}
    assert schedules == {"cleanup": ("cleanup", "0 3 * * *", None), "poll-feeds": ("feeds", None, 300)}


def test_the_file_is_synced(service: ServiceForTests, tmp_path: Path) -> None:
    [text] = blocks("schedules", "toml")
    file = tmp_path / "schedules.toml"
    file.write_text(text)
    shell = Shell(service.url)
    assert "+ nightly\n" in shell.good("schedules", "sync", str(file))
    assert shell.good("schedules", "sync", str(file)) == ""
    assert {one["name"] for one in shell.json("schedules", "list")} == {"nightly", "feeds.poll"}


def test_the_requests_of_the_page_succeed(service: ServiceForTests) -> None:
    [script] = [block for block in blocks("schedules", "sh") if "curl" in block]
    script = script.replace("localhost:8000", service.url.removeprefix("http://"))
    script = script.replace("--json", "-H 'Content-Type: application/json' -d")  # which an older curl does not have
    script = script.replace("curl -sS", "curl -sS --fail-with-body")
    ran = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=40, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert '"tzdata":"' in ran.stdout


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the table whose first column has this heading."""
    table = DOCUMENTS["schedules"].partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_table_of_changes_of_the_clock_is_true(service: ServiceForTests) -> None:
    rows = rows_of("definition")
    assert len(rows) == 4
    days = [datetime(2030, 3, 31, tzinfo=UTC), datetime(2030, 10, 27, tzinfo=UTC)]
    with service.client() as client:
        for rule, *cells in rows:
            text = rule.strip("`")
            field = {"at": re.findall(r"\d\d:\d\d", text)} if text.startswith("at") else {"cron": text}
            for day, cell in zip(days, cells, strict=True):
                start = day if text.startswith("30 *") else day - timedelta(hours=3)
                definition = {"topic": "t", **field, "zone": "Europe/Berlin", "start_at": start}
                # Only what is said of the hours around the change, which is at 01:00 in UTC.
                runs = [
                    run for run in client.preview_schedule(definition, count=9) if run.utc < day + timedelta(hours=2)
                ]
                expected = re.findall(r"\d\d:\d\d\+\d\d:\d\d", cell)
                shown = [run.at.isoformat()[11:16] + run.at.isoformat()[19:] for run in runs]
                assert shown == expected, (rule, day)


def settled(client: Client, name: str) -> Schedule:
    """The schedule when its three missed runs have been dealt with."""

    def is_settled() -> bool:
        schedule = client.schedule(name)
        return schedule.runs + schedule.skips + schedule.missed == 3

    wait_until(is_settled, 20, f"the missed runs of {name} are dealt with")
    return client.schedule(name)


def test_the_table_of_policies_is_true(tmp_path: Path) -> None:
    outcomes = {}
    with running_service("--test-clock", data_dir=tmp_path) as service, Client(service.url) as client:
        at = datetime.now(UTC) - timedelta(hours=6)
        for cell, *_ in rows_of("`catch_up`"):
            catch_up = cell.split("`")[1]
            for overlap in ("allow", "skip", "replace"):
                name, cron = f"{catch_up}-{overlap}", f"{at.minute} {at.hour} * * *"
                definition = {"topic": name, "cron": cron, "overlap": overlap, "catch_up": catch_up}
                client.send(put_schedule(name, definition))
        with service.frozen(), redis.Redis(unix_socket_path=str(DataDirectory(service.data_dir).socket)) as store:
            store.incrby("deferd:{0}:clock", timedelta(days=3) // timedelta(milliseconds=1))
        for schedule in list(client.schedules()):
            counts = settled(client, schedule.name)
            ready = client.pop(schedule.topic, count=10, wait=0)
            days = [str((datetime.fromisoformat(job.id.rpartition(":")[2]) - at).days + 1) for job in ready]
            outcomes[schedule.name] = ("".join(days), counts.skips, counts.missed)
    # Monday is day 1, Wednesday day 3.
    assert outcomes == {
        **{f"none-{overlap}": ("", 0, 3) for overlap in ("allow", "skip", "replace")},
        **{f"last-{overlap}": ("3", 0, 2) for overlap in ("allow", "skip", "replace")},
        "all-allow": ("123", 0, 0),
        "all-skip": ("1", 2, 0),
        "all-replace": ("3", 0, 0),
    }
