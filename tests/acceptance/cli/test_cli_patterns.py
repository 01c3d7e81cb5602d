"""`deferd pop` of patterns."""

from __future__ import annotations

import pytest

from tests.acceptance.cli.command_line import Shell
from tests.acceptance.service_process import ServiceProcess


@pytest.fixture
def shell(shared_service: ServiceProcess) -> Shell:
    return Shell(shared_service.url)


def test_pop_takes_names_and_patterns(shell: Shell, topic: str) -> None:
    for name in ("a", "b", "urgent"):
        shell.good("put", f"{topic}.{name}", "1", "--id", "j")

    popped = shell.json("pop", f"{topic}.urgent,{topic}.*", "--count", "3")

    assert [f"{topic}.{name}" for name in ("urgent", "a", "b")] == [job["topic"] for job in popped]
    nothing = shell.run("pop", f"{topic}.*", "--wait", "0")
    assert 4 == nothing.returncode
