"""The README is true: its snippets run as they stand, and it names every setting and code."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import deferd
import deferd.testing
from deferd import AsyncClient, Client, FixedBackoff, Worker
from deferd.settings import Settings, flag, variable
from deferd.testing import EagerJobs, ServiceForTests
from tests.acceptance.orders_run import run
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker_runs import in_state, serving
from tests.mypy_check import mypy_errors

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


ORDER = "from pydantic import BaseModel\nclass Order(BaseModel):\n    number: int\n"
NAMES: dict[Any, str] = {
    deferd: "",
    deferd.testing: "",
    deferd.job: "from datetime import timedelta\nfrom pydantic import BaseModel\n"
    "from deferd import Client, Worker, job\nclient, worker = Client(), Worker()\n",
    Worker: f"{ORDER}from deferd import Worker\n",
    EagerJobs: f"{ORDER}from datetime import timedelta\nfrom deferd import Worker, job\n"
    "from deferd.testing import EagerJobs\nworker, close = Worker(), job('orders.close', Order)\n",
}
"""Documented objects with an example each, and what the example takes as known."""


def module_of(source: str) -> dict[str, Any]:
    """The names of a program, run as a module."""
    names: dict[str, Any] = {"__name__": "readme"}
    exec(source, names)  # noqa: S102 (it is the README's)
    return names


def test_the_first_block_starts_the_service_and_the_second_runs_the_tests() -> None:
    fences = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert [language for language, _ in fences[:2]] == ["sh", "sh"]
    assert fences[0][1].strip().endswith("deferd serve")
    assert fences[1][1].strip().endswith("-m pytest -n 2")


def test_the_snippets_put_cancel_pop_and_finish(shared_service: ServiceProcess) -> None:
    script = "\n".join(blocks("bash")).replace("localhost:8000", shared_service.url.removeprefix("http://"))
    # An older curl has no --json; its long form is what the README tells such users.
    script = script.replace("--json", "--fail-with-body -H 'Content-Type: application/json' -d")
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=40, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert '"was":"delayed"' in ran.stdout
    assert '"state":"finished"' in ran.stdout


def test_the_producer_of_the_readme_puts_and_cancels(shared_service: ServiceProcess) -> None:
    module_of(blocks("python")[0].replace("http://localhost:8000", shared_service.url))


async def test_the_consumer_of_the_readme_closes_an_order(
    shared_service: ServiceProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    consumer = module_of(blocks("python")[1].replace("http://localhost:8000", shared_service.url))
    serving = asyncio.create_task(consumer["worker"].serve())
    async with AsyncClient(shared_service.url) as client:
        await client.put("orders.close", {"order": 1042}, id="order-of-the-readme", retain=60)
        await in_state(client, "orders.close", "order-of-the-readme", "finished")
    consumer["worker"].stop()
    await serving
    assert "closing order 1042" in capsys.readouterr().out


async def test_the_definition_of_the_readme_is_put_and_handled(
    shared_service: ServiceProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    program = module_of(blocks("python")[2].replace("http://localhost:8000", shared_service.url))
    with Client(shared_service.url) as client:
        await asyncio.to_thread(program["place"], client, program["Order"](number=1043))
    async with AsyncClient(shared_service.url) as asynchronous:
        put = await asynchronous.change("orders.close", "order-1043", delay=0, retain=60)
        assert (put.max_attempts, put.backoff) == (5, FixedBackoff(seconds=10))
        async with serving(program["worker"]):
            await in_state(asynchronous, "orders.close", "order-1043", "finished")
    assert "closing order 1043" in capsys.readouterr().out


def test_the_tests_of_the_readme_pass(deferd_service: ServiceForTests) -> None:
    module_of(blocks("python")[3])["test_trash_is_emptied_after_a_day"](deferd_service)
    module_of(blocks("python")[4])["test_a_customer_is_reminded"]()


def test_the_programs_of_the_readme_the_docstrings_and_the_examples_are_strictly_typed(tmp_path: Path) -> None:
    programs = {f"readme_{number}": block for number, block in enumerate(blocks("python"))}
    assert len(programs) == 5, "each has a test here that runs it"
    programs |= {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "tests/examples").glob("*.py")}
    for documented, names in NAMES.items():
        [example] = re.findall(r"::\n\n((?:    .*\n|\n)+)", f"{inspect.getdoc(documented)}\n")
        programs[f"docstring_of_{documented.__name__.replace('.', '_')}"] = names + dedent(example)
    assert mypy_errors(programs, tmp_path) == []


@pytest.mark.slow
async def test_a_thousand_orders_add_up(shared_service: ServiceProcess, topic: str) -> None:
    assert "250 + 750 = 1000" in await run(shared_service.url, topic)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_told(name: str) -> None:
    assert f"`{flag(name)}`" in README
    assert f"`{variable(name)}`" in README


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", README))))
def test_every_test_it_names_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m (tests\.[\w.]+)", README))))
def test_every_program_it_names_exists(module: str) -> None:
    path = ROOT / module.replace(".", "/")
    assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()
