"""The tutorial is true: its shop is built block by block, as a reader does it, and does what the page says."""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import uvicorn

from deferd.testing import ServiceForTests
from tests.acceptance.project.test_readme import DOCUMENTS, blocks
from tests.postgresql import PostgresServer
from tests.waiting import wait_until

STEPS = re.findall(r"^```(python|bash)\n(.*?)^```", DOCUMENTS["tutorial"], re.MULTILINE | re.DOTALL)

PLUGINS = ["--disable-plugin-autoload", "-p", "deferd.testing.pytest_plugin", "-p", "no:cacheprovider"]


@pytest.fixture(scope="module")
def databases(postgres: PostgresServer) -> Iterator[None]:
    """Those of the reader, made by the commands of the page, in the PostgreSQL of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{postgres.bin}:{os.environ['PATH']}")
        for name, value in (("PGHOST", "127.0.0.1"), ("PGPORT", str(postgres.port)), ("PGUSER", "postgres")):
            patch.setenv(name, value)
        [commands] = [block for block in blocks("tutorial", "sh") if "createdb" in block]
        subprocess.run(["bash", "-euo", "pipefail", "-c", commands], check=True, timeout=40)
        yield
        for database in ("shop", "shop_test"):
            postgres.drop(postgres.url(database))


def name_of(block: str) -> str:
    """The file of a block, which its first line names."""
    return block.splitlines()[0].removeprefix("# ")


def with_block(source: str, block: str) -> str:
    """The file after the reader has added a block: what has a name takes the place of what had it before."""
    statements: dict[str, ast.stmt] = {}
    for statement in [*ast.parse(source).body, *ast.parse(block).body]:
        statements[getattr(statement, "name", ast.unparse(statement))] = statement
    is_import = (ast.Import, ast.ImportFrom)
    body = sorted(statements.values(), key=lambda statement: not isinstance(statement, is_import))
    return "\n".join(map(ast.unparse, body))


def files() -> dict[str, str]:
    """The files that the reader has at the end."""
    written: dict[str, str] = {}
    for language, block in STEPS:
        if language == "python":
            name = name_of(block)
            written[name] = with_block(written.get(name, ""), block)
    return written


class Shop:
    """The directory of the reader, the shop that is served from it, and its worker."""

    def __init__(self, directory: Path, service: ServiceForTests) -> None:
        self._directory = directory
        self._service = service
        self._modules: dict[str, ModuleType] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._modules["shop"].app(scope, receive, send)

    def write(self, block: str) -> None:
        """Write a block into its file, and restart the shop and the worker."""
        file = self._directory / name_of(block)
        file.write_text(with_block(file.read_text() if file.exists() else "", block))
        self.unload()
        for module in ("shop", "work"):
            if (self._directory / f"{module}.py").exists():
                self._modules[module] = importlib.import_module(module)
        self._run_worker()  # it puts its schedules

    def unload(self) -> None:
        """Forget the modules, so that the next import reads their files."""
        if "shop" in self._modules:
            self._modules["shop"].jobs.close()
        for module in self._modules:
            del sys.modules[module]
        self._modules.clear()

    def run(self, block: str, shop_url: str) -> list[Any]:
        """Run the commands of a block; when they have ended, the worker does what is due. Returns their responses."""
        script = block.replace("localhost:8000", self._service.url.removeprefix("http://"))
        script = script.replace("localhost:8001", shop_url)
        # An older curl has no --json.
        script = script.replace("--json", "-H 'Content-Type: application/json' -d")
        script = script.replace("curl -sS", "curl -sS --fail-with-body -w '\\n'")
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, timeout=40, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        self._run_worker()
        return [json.loads(line) for line in ran.stdout.splitlines() if line]

    def _run_worker(self) -> None:
        if "work" in self._modules:
            self._service.run_until_idle(self._modules["work"].worker)


@contextlib.contextmanager
def served(app: Shop) -> Iterator[str]:
    """Serve the shop on a free port, as `uvicorn shop:app` does."""
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            wait_until(lambda: server.started, 20, "the shop serves")
            yield f"127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


@pytest.mark.slow
def test_the_shop_of_the_tutorial_does_what_the_page_says(
    service: ServiceForTests, databases: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFERD_URL", service.url)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    shop = Shop(tmp_path, service)
    responses = []
    with served(shop) as url:
        for language, block in STEPS:
            if language == "python":
                shop.write(block)
            else:
                responses.append(shop.run(block, url))
    shop.unload()
    placed, due_now, closed, reminded, quiet, nights, reports = responses
    assert [placed[0]["state"], placed[1]["state"], placed[2]["state"]] == ["unpaid", "delayed", "paid"]
    assert placed[3]["jobs"] == []
    assert [due_now[0]["state"], due_now[1]["state"]] == ["unpaid", "ready"]
    assert closed == [{"order": "1043", "state": "closed"}]
    assert [len(page["jobs"]) for page in (reminded[1], reminded[3])] == [2, 0]
    assert (quiet[1]["due_at"], quiet[1]["asked_for"]) == ("2035-01-31T07:00:00.000Z", "2035-01-31T01:00:00.000Z")
    assert len(nights[0]["runs"]) == 2
    assert [job["result"] for job in reports[0]["jobs"]] == [{"closed": 1, "paid": 2}]


@pytest.mark.slow
def test_the_tests_of_the_tutorial_pass(databases: None, tmp_path: Path) -> None:
    for name, source in files().items():
        (tmp_path / name).write_text(source)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PLUGINS, "test_shop.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "4 passed" in ran.stdout, ran.stdout + ran.stderr
