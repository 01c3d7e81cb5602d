"""The README is true: its snippets run as they stand, and it names every setting and code."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deferd import AsyncClient
from deferd.settings import Settings, flag, variable
from tests.acceptance.orders_run import run
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker_runs import in_state

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


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
    producer = blocks("python")[0].replace("http://localhost:8000", shared_service.url)
    exec(producer, {})  # noqa: S102 (it is the README's)


async def test_the_consumer_of_the_readme_closes_an_order(
    shared_service: ServiceProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    consumer: dict[str, Any] = {}
    exec(blocks("python")[1].replace("http://localhost:8000", shared_service.url), consumer)  # noqa: S102
    serving = asyncio.create_task(consumer["worker"].serve())
    async with AsyncClient(shared_service.url) as client:
        await client.put("orders.close", {"order": 1042}, id="order-of-the-readme", retain=60)
        await in_state(client, "orders.close", "order-of-the-readme", "finished")
    consumer["worker"].stop()
    await serving
    assert "closing order 1042" in capsys.readouterr().out


async def test_a_thousand_orders_add_up(shared_service: ServiceProcess, topic: str) -> None:
    assert "250 + 750 = 1000" in await run(shared_service.url, topic)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_told(name: str) -> None:
    assert f"`{flag(name)}`" in README
    assert f"`{variable(name)}`" in README


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(tests/[\w/]+\.py)`", README))))
def test_every_test_it_names_exists(path: str) -> None:
    assert (Path(__file__).resolve().parents[2] / path).exists()


@pytest.mark.parametrize("module", sorted(set(re.findall(r"python -m (tests\.[\w.]+)", README))))
def test_every_program_it_names_exists(module: str) -> None:
    path = Path(__file__).resolve().parents[2] / module.replace(".", "/")
    assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()
