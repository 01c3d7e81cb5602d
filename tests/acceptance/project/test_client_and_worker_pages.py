"""The snippets of the client's and the worker's page on tags, puts that collapse, patterns, chains and snoozes run."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from deferd import AsyncClient, Cipher, Client
from deferd.testing import ServiceForTests
from tests.acceptance.project.test_readme import block_with, blocks, module_of
from tests.acceptance.worker.worker_runs import in_state, serving


def printed_by(text: str, service: ServiceForTests, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that the only program of the client's page with this text prints."""
    module_of(block_with(text, "client"), service)
    return capsys.readouterr().out.splitlines()


def test_tagged_jobs_are_moved_and_cancelled_together(
    service: ServiceForTests, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed_by("cancel_all(", service, capsys) == [
        "2 jobs a day later",
        "2 jobs would be cancelled",
        "2 jobs cancelled, 2 of them were delayed",
    ]


def test_puts_of_one_id_become_one_job(service: ServiceForTests, capsys: pytest.CaptureFixture[str]) -> None:
    *lines, taken = printed_by('on_conflict="append"', service, capsys)
    assert lines == ["['login', 'upload', 'logout'] 3", "delayed True", "['login']", "{'revision': 2}"]
    assert taken.startswith("finished and taken until 2")


def test_a_program_pops_by_a_pattern_and_chains(service: ServiceForTests, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed_by("count=False", service, capsys) == ["orders.eu snoozed after 0 attempts", "snoozes: 1", "delayed"]


def test_a_program_waits_for_the_result_of_a_job(service: ServiceForTests, capsys: pytest.CaptureFixture[str]) -> None:
    def consume() -> None:
        with Client(service.url) as client:
            [job] = client.pop("pdf", wait=20)
            client.finish(job, f"{job.body['order']}.pdf")

    with ThreadPoolExecutor(1) as pool:
        consumer = pool.submit(consume)
        assert printed_by("client.wait(", service, capsys) == ["finished 1042.pdf"]
        consumer.result()


@pytest.fixture
def key_folder(tmp_path: Path) -> Path:
    """A folder with a file of keys."""
    (tmp_path / "cipher-keys").write_text(Cipher.new_key("k1"))
    return tmp_path


async def test_the_program_of_the_page_on_encryption_runs(
    service: ServiceForTests, key_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(key_folder)
    putting, handling = (module_of(program, service) for program in blocks("encryption", "python"))
    async with AsyncClient(service.url, cipher=Cipher.from_file("cipher-keys")) as client, serving(handling["worker"]):
        sent = await in_state(client, "mail.welcome", "welcome-7", "finished")
    assert sent.result == "sent to ada@example.com"
    putting["client"].close()


@pytest.mark.slow
async def test_the_worker_of_the_page_snoozes_and_chains(
    service: ServiceForTests, capsys: pytest.CaptureFixture[str]
) -> None:
    [program] = [block for block in blocks("worker", "python") if "Snooze" in block]
    worker = module_of(program, service)["worker"]
    async with AsyncClient(service.url) as client, serving(worker):
        await client.put("orders.eu", 17, id="o", retain=60)
        await client.put("stock", "nails", id="s")
        invoiced = await in_state(client, "orders.eu", "o", "finished")
        assert (invoiced.result, invoiced.snoozes, invoiced.attempts) == ("invoiced", 1, 1)
        archived = await client.get("archive", "order-17")
        assert (archived.body, archived.state) == (17, "delayed")
        unreachable = await in_state(client, "stock", "s", "delayed")
        assert (unreachable.attempts, unreachable.last_error) == (0, "Unreachable: the warehouse of nails")
        async with asyncio.timeout(10):
            while sum((await client.topic("mail")).counts.values()):
                await asyncio.sleep(0.05)
    assert "sending orders.eu: invoice 17" in capsys.readouterr().out


async def test_the_recipe_of_a_bulk_insert_keeps_what_fits(
    service: ServiceForTests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [program] = [block for block in blocks("worker", "python") if "executemany" in block]
    worker = module_of(program, service)["worker"]
    with closing(sqlite3.connect("shop.db")) as database:
        database.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY, total REAL CHECK (total >= 0))")
        async with AsyncClient(service.url) as client, serving(worker):
            bodies = {"a": 5.0, "b": -1.0, "c": 7.0}
            jobs = [
                {"topic": f"orders.{name}", "id": name, "body": {"number": number, "total": total}, "retain": 60}
                for number, (name, total) in enumerate(bodies.items())
            ]
            await client.put_batch(jobs)
            for name in ("a", "c"):
                await in_state(client, f"orders.{name}", name, "finished")
            wrong = await in_state(client, "orders.b", "b", "dead")
        assert str(wrong.last_error).startswith("CHECK constraint failed")
        assert database.execute("SELECT number, total FROM orders ORDER BY number").fetchall() == [(0, 5.0), (2, 7.0)]
