"""Clients of Redis as people use them: asyncio in Python, redis-cli, and go-redis."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from tests.acceptance.resp_calls import Version, resp_port
from tests.acceptance.service_process import ServiceProcess
from tests.go_toolchain import go
from tests.programs import require_program

BUILD_S = 280.0
COMMAND_S = 60
GO = Path(__file__).with_name("resp_go")


@pytest.mark.parametrize("version", [2, 3])
async def test_asyncio_clients_share_a_topic(resp_service: ServiceProcess, topic: str, version: Version) -> None:
    async with redis.asyncio.Redis(port=resp_port(resp_service), protocol=version) as client:
        bodies = [f"b{number}" for number in range(80)]
        await asyncio.gather(*(client.sadd(topic, body, 0) for body in bodies))
        popped: Any = await asyncio.gather(*(client.spop(topic, 10) for _ in range(10)))
        assert sorted(body for some in popped for body in some) == sorted(body.encode() for body in bodies)
        waiting = asyncio.create_task(client.execute_command("DEFERD.POP", topic, "WAIT", 20_000))
        await asyncio.to_thread(resp_service.wait_for_waiting_pops, 1)
        await client.sadd(topic, "late", 0)
        assert len(await waiting) == 1


@pytest.mark.parametrize("version", ["-2", "-3"])
def test_redis_cli(resp_service: ServiceProcess, topic: str, version: str) -> None:
    program = require_program("redis-cli", "valkey-cli")

    def cli(*words: str, given: str | None = None) -> list[str]:
        command = [program, version, "-p", str(resp_port(resp_service)), *words]
        found = subprocess.run(command, input=given, capture_output=True, text=True, timeout=COMMAND_S, check=True)
        assert found.stderr == ""
        return found.stdout.splitlines()

    assert cli("SADD", topic, "one", "0", "two words", "0") == ["2"]
    assert cli("SCARD", topic) == ["2"]
    assert cli("SPOP", topic) == ["one"]
    assert cli("KEYS", f"{topic}*") == [topic]
    assert cli("DEFERD.PUT", topic, "a", "x", "SOON")[0].startswith("VALIDATION 'SOON'")
    assert cli(given=f"SPOP {topic}\nSPOP {topic}\nPING\n") == ["two words", "", "PONG"]
    assert cli("--raw", "DEFERD.PUT", topic, "a", "x")[:2] == [f"topic {topic}", "id a"] or version == "-2"


@pytest.mark.slow
@pytest.mark.needs("go")
def test_go_redis(resp_service: ServiceProcess, topic: str, tmp_path: Path) -> None:
    program = tmp_path / "program"
    go(GO, "build", "-o", str(program), ".", timeout_s=BUILD_S)
    for version in (2, 3):
        arguments = [str(program), f"127.0.0.1:{resp_port(resp_service)}", f"{topic}.{version}", str(version)]
        found = subprocess.run(arguments, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        assert found.returncode == 0, found.stderr
        assert json.loads(found.stdout) == {
            "added": 2,
            "live": 2,
            "popped": ["one", "two"],
            "pipelined": 100,
            "empty": True,
            "job": "body",
            "finished": "finished",
            "stale": "JOB_NOT_FOUND",
            "topics": [f"{topic}.{version}"],
        }
