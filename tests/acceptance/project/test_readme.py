"""The README and the pages of docs/ are correct: their snippets run unchanged, and their commands exist."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import pytest

from deferd import AsyncClient, Client, FixedBackoff
from deferd.testing import ServiceForTests
from tests.acceptance.cli.command_line import run_in_process
from tests.acceptance.project.orders_run import run
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_runs import in_state, serving
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = {
    path.stem.lower(): path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))
}


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of a document in a language; those within a list lose their indent."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", DOCUMENTS[document], re.MULTILINE | re.DOTALL)
    return [dedent(block) for _, block in found]


def block_with(text: str, document: str) -> str:
    """The only Python block of a document that contains the text."""
    [block] = [block for block in blocks(document, "python") if text in block]
    return block


WITH_BASH = sorted(document for document in DOCUMENTS if blocks(document, "bash") and document != "tutorial")
"""Those whose shell snippets need nothing but a service; test_tutorial.py runs those of the tutorial."""


PRINTED = {
    "durability": ['"was":"delayed","durability":"fsync"'],
    "events": ['"events":1000', "retry: 1000"],
    "http-consumers": ['"attempts":1', '"id":"a","status":200'],
    "http-operators": ['"code":"not_due"', '"kind":"redrive"'],
    "http-producers": ['"was":"delayed"', '"status":200', '"sealed":true,"joined":2'],
    "index": ['"was":"delayed"'],
    "outcomes": ['"outcome":"cancelled","attempts":0,"tags":["shop-7"],"headers":{},"body":{"total":90}'],
    "other-languages": ['"attempts":1', '"state":"finished"'],
    "readme": ['"was":"delayed"', '"state":"finished"'],
    "ten-calls": ['"was":"delayed"', '"state":"finished"'],
    "windows": ['"asked_for":"2030-01-30T23:00:00.000Z"', '"deleted":true'],
}
"""What the snippets of a document print, among other things."""


def documented_flags() -> dict[str, set[str]]:
    """The commands in the shell blocks of all documents that no test runs, with their flags."""
    flags: dict[str, set[str]] = {}
    for document in DOCUMENTS:
        for line in "\n".join(blocks(document, "sh")).splitlines():
            if line.startswith("deferd "):
                _, command, *arguments = shlex.split(line)
                if command in ("cipher", "key", "outbox", "push", "schedules") or arguments[:1] == ["plan"]:
                    command = f"{command} {arguments[0]}"
                flags.setdefault(command, set()).update(word for word in arguments if word.startswith("--"))
    return flags


def module_of(source: str, service: ServiceProcess | ServiceForTests | None = None) -> dict[str, Any]:
    """The names of a program, run as a module against `service`."""
    names: dict[str, Any] = {"__name__": "readme"}
    if service is not None:
        source = source.replace("http://localhost:8000", service.url)
    exec(compile(source, "readme", "exec", dont_inherit=True), names)  # noqa: S102 (it is from the documents)
    return names


@pytest.mark.parametrize(
    "document", [pytest.param(one, marks=() if one == "readme" else pytest.mark.slow) for one in WITH_BASH]
)
def test_the_shell_snippets_of_a_document_run(document: str, service: ServiceForTests, tmp_path: Path) -> None:
    script = "\n".join(blocks(document, "bash")).replace("localhost:8000", service.url.removeprefix("http://"))
    # An older curl has no --json; the documents name the long form for it.
    script = script.replace("--json", "-H 'Content-Type: application/json' -d").replace(
        "curl -sS", "curl -sS --fail-with-body"
    )
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [text for text in PRINTED[document] if text not in ran.stdout] == []
    assert '"status":4' not in ran.stdout


@pytest.mark.parametrize(("command", "flags"), documented_flags().items())
def test_a_command_of_the_documents_exists_with_its_flags(command: str, flags: set[str]) -> None:
    ran = run_in_process(*command.split(), "--help")
    assert ran.returncode == 0, ran.stderr
    assert [flag for flag in flags if flag not in ran.stdout] == []


def test_the_producer_of_the_readme_puts_and_cancels(service: ServiceForTests) -> None:
    module_of(blocks("readme", "python")[0], service)


async def test_the_worker_of_the_readme_closes_an_order(
    service: ServiceForTests, capsys: pytest.CaptureFixture[str]
) -> None:
    program = module_of(blocks("readme", "python")[1], service)
    async with AsyncClient(service.url) as client, serving(program["worker"]):
        await client.put("orders.close", {"order": 1042}, id="order-of-the-readme", retain=60)
        await in_state(client, "orders.close", "order-of-the-readme", "finished")
    assert "closing order 1042" in capsys.readouterr().out


def test_the_client_page_puts_pops_and_cancels(service: ServiceForTests, capsys: pytest.CaptureFixture[str]) -> None:
    for program in [*blocks("client", "python")[:2], block_with("put_many(", "client")]:
        module_of(program, service)
    printed = capsys.readouterr().out
    assert "carts.expire/cart-7 is there already" in printed
    assert "expired" in printed
    assert "no such job" in printed
    assert "delayed" in printed
    assert "2500 stored, 2500 removed" in printed


async def test_the_definition_of_the_client_page_is_put_and_handled(
    service: ServiceForTests, capsys: pytest.CaptureFixture[str]
) -> None:
    program = module_of(block_with("@worker.handler", "client"), service)
    with Client(service.url) as client:
        await asyncio.to_thread(program["place"], client, program["Order"](number=1043))
    async with AsyncClient(service.url) as asynchronous:
        put = await asynchronous.change("orders.close", "order-1043", delay=0, retain=60)
        assert (put.max_attempts, put.backoff) == (5, FixedBackoff(seconds=10))
        async with serving(program["worker"]):
            await in_state(asynchronous, "orders.close", "order-1043", "finished")
    assert "closing order 1043" in capsys.readouterr().out


async def test_the_web_handler_of_the_client_page_puts_and_fails_fast(service: ServiceForTests) -> None:
    program = block_with("FastAPI", "client")
    for down in (False, True):
        program = program.replace("http://localhost:8000", "http://127.0.0.1:9") if down else program
        web = module_of(program, service)
        transport = httpx.ASGITransport(web["app"])
        async with httpx.AsyncClient(transport=transport, base_url="http://web") as browser, web["jobs"]:
            first, second = [await browser.post("/orders/1044") for _ in range(2)]
        assert (first.status_code, second.status_code) == ((503, 503) if down else (200, 200))
        assert first.json() == ({"detail": "please try again"} if down else {"job": "order-1044"})


def test_the_program_of_the_events_page_prints_an_event(
    service: ServiceForTests, capsys: pytest.CaptureFixture[str]
) -> None:
    module_of(blocks("events", "python")[0], service)
    assert re.search(r" orders\.close \S+ \w+\n$", capsys.readouterr().out)


async def test_the_worker_page_retries_and_rejects(
    service: ServiceForTests, capsys: pytest.CaptureFixture[str]
) -> None:
    program = module_of(blocks("worker", "python")[0], service)
    async with AsyncClient(service.url) as client, serving(program["worker"]):
        await client.put("mail.urgent", {"to": "nobody"}, id="rejected")
        await client.put("mail.urgent", {"to": "ada@example.com"}, id="retried")
        await client.put("mail.bulk", {"to": "bob@example.com"}, id="sent", retain=60)
        rejected = await in_state(client, "mail.urgent", "rejected", "dead")
        assert rejected.last_error == "not an address"
        retried = await in_state(client, "mail.urgent", "retried", "delayed")
        assert retried.attempts == 1
        await in_state(client, "mail.bulk", "sent", "finished")
    assert "sending to bob@example.com" in capsys.readouterr().out


def test_the_recipes_of_the_flow_control_page_hand_out_what_they_say(
    service: ServiceForTests, capsys: pytest.CaptureFixture[str]
) -> None:
    for program in blocks("flow-control", "python")[1:]:
        module_of(program, service)
    assert capsys.readouterr().out.splitlines() == [
        "{'flood': 33, 'quiet': 3, 'gold': 64}",
        "open other",
        "[]",
        "close",
        "['preview', 'paid', 'bulk-0', 'bulk-1', 'bulk-2']",
    ]


async def test_the_worker_of_the_flow_control_page_stays_within_the_limits_of_its_topic(
    service: ServiceForTests, capsys: pytest.CaptureFixture[str]
) -> None:
    program = await asyncio.to_thread(module_of, blocks("flow-control", "python")[0], service)
    printed: list[str] = []

    def all_are_sent() -> bool:
        printed.extend(capsys.readouterr().out.splitlines())
        return len(printed) == 31

    began_s = time.monotonic()
    async with serving(program["worker"]):
        await until(all_are_sent, "30 mails are sent")
    assert time.monotonic() - began_s >= 1
    assert printed[0] == "30 put"
    assert max(int(line.split()[-4]) for line in printed[1:]) == 4


async def test_the_shop_of_the_outcomes_page_is_told_of_orders_that_could_not_be_closed(
    service: ServiceForTests, capsys: pytest.CaptureFixture[str]
) -> None:
    program = await asyncio.to_thread(module_of, blocks("outcomes", "python")[0], service)
    printed: list[str] = []

    def told(number: int) -> bool:
        printed.extend(capsys.readouterr().out.splitlines())
        return len(printed) == number

    async with AsyncClient(service.url) as client, serving(program["worker"]):
        await client.put("orders.close", {"total": -5}, id="rejected")
        await until(lambda: told(1), "the shop knows of the rejected order")
        await client.put("orders.close", {"total": 90}, id="tried")
        for _ in range(2):
            await in_state(client, "orders.close", "tried", "delayed")
            await asyncio.to_thread(service.clock.advance, seconds=60)
        await until(lambda: told(2), "the shop knows of the order that was tried")
    assert printed == [
        "rejected -5 buried 1 a negative total",
        "tried 90 attempts_exhausted 3 ConnectionError: the bank does not respond",
    ]


@pytest.mark.slow
def test_the_tests_of_the_testing_page_pass(deferd_service: ServiceForTests) -> None:
    with_service, eager = blocks("testing", "python")
    module_of(with_service)["test_trash_is_emptied_after_a_day"](deferd_service)
    module_of(eager)["test_a_customer_is_reminded"]()


@pytest.mark.slow
async def test_a_thousand_orders_add_up(service: ServiceForTests, topic: str) -> None:
    assert "250 + 750 = 1000" in await run(service.url, topic, lambda delay_s: service.clock.advance(seconds=delay_s))
