"""The page of the Redis protocol: its program runs, and its tables name all commands and options."""

from __future__ import annotations

import re
import subprocess
import sys

from deferd.api.resp.command_table import COMMANDS
from deferd.api.resp.job_commands import PUT_OPTIONS
from tests.acceptance.project.test_readme import DOCUMENTS, blocks
from tests.acceptance.resp_calls import resp_port
from tests.acceptance.service_process import ServiceProcess


def test_the_program_runs(resp_service: ServiceProcess) -> None:
    [program] = blocks("redis-protocol", "python")
    program = program.replace("port=6380", f"port={resp_port(resp_service)}")
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=40, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["hello ada ['hello grace']", 'closing {"order":1042}']


def test_all_commands_and_options_are_documented() -> None:
    words = set(re.findall(r"[A-Z][A-Z.]+", DOCUMENTS["redis-protocol"]))
    assert {name.decode() for name in (*COMMANDS, *PUT_OPTIONS)} - words == set()
