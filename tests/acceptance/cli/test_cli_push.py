"""The commands for pushed topics, and the receiver for development."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.acceptance.cli.command_line import Shell
from tests.acceptance.service_process import ServiceProcess

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + "A" * 32


@pytest.fixture
def shell(pushing_service: ServiceProcess) -> Shell:
    return Shell(pushing_service.url)


class Listening:
    """`deferd push listen` on a free port."""

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "deferd", "push", "listen", "--port", "0", "--json", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        self.url = line.split()[3].rstrip(",").replace("127.0.0.1", "localhost") + "/"

    def requests(self) -> list[dict[str, object]]:
        """What it printed, once it has ended."""
        output, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == 0
        return [json.loads(line) for line in output.splitlines()]


def test_a_push_is_set_shown_tested_and_removed(shell: Shell, topic: str) -> None:
    receiver = Listening("--secret", SECRET, "--count", "2")
    [pushed] = shell.json("push", "set", topic, receiver.url, "--secret", SECRET, "--rate", "5")
    assert (pushed["secret_count"], pushed["rate"]) == (1, 5)
    assert shell.good("push", "test", topic).startswith("status 200 after")
    shell.good("put", topic, '{"order": 1}', "--id", "a")
    tested, job = receiver.requests()
    assert (tested["verified"], tested["body"]) == (True, {"test": True, "topic": topic})
    assert (job["verified"], job["id"], job["body"]) == (True, "a", {"order": 1})
    text = shell.good("push", "get", topic)
    assert "circuit            closed" in text
    assert SECRET not in text
    assert "are pushed" in shell.refused(3, "pop", topic, "--wait", "0")
    assert "is not pushed any more" in shell.good("push", "remove", topic)
    assert "are not pushed" in shell.refused(3, "push", "get", topic)


def test_the_receiver_refuses_what_it_cannot_verify(shell: Shell, topic: str) -> None:
    receiver = Listening("--secret", OTHER, "--count", "1")
    shell.json("push", "set", topic, receiver.url, "--secret", SECRET)
    ran = shell.run("push", "test", topic)
    assert (ran.returncode, ran.stdout[:10]) == (1, "status 401")
    [request] = receiver.requests()
    assert (request["verified"], request["problem"]) == (False, "none of the signatures is right")


def test_wrong_arguments_are_named(shell: Shell, topic: str) -> None:
    assert "it has 5 bytes" in shell.refused(
        2, "push", "set", topic, "http://localhost:1/", "--secret", "whsec_c2hvcnQ="
    )
    assert "deferd: url is not allowed by --push-allow" in shell.refused(
        2, "push", "set", topic, "https://example.net/", "--secret", SECRET
    )
    assert "does not begin with whsec_" in shell.refused(2, "push", "listen", "--secret", "abc")
