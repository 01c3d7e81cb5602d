"""`deferd now`: what needs a person, with an exit code."""

from __future__ import annotations

import json
import time

from deferd import Client
from tests.acceptance.cli.command_line import Shell

KEPT_S = 10.0


def until(shell: Shell, *arguments: str, code: int, text: str) -> str:
    """The output, once it has this text: what was read is kept for some seconds."""
    end_s = time.monotonic() + KEPT_S
    while True:
        result = shell.run("now", *arguments)
        if text in result.stdout:
            assert result.returncode == code, result
            return result.stdout
        assert time.monotonic() < end_s, result
        time.sleep(0.2)


def test_quiet_and_not(shell: Shell, topic: str) -> None:
    shell.json("put", topic, "1", "--delay", "2h")
    assert until(shell, topic, code=0, text="1 job.").startswith("All quiet. Next: ")

    shell.json("put", topic, "1")
    lines = until(shell, topic, code=6, text="1 job has").splitlines()
    assert lines[0] == "1 thing needs you:"
    assert lines[1].startswith(f"  warning   {topic}: 1 job has been ready for ")
    assert lines[2].startswith("Next: ")

    assert shell.good("now", topic, "--critical").startswith("Nothing is critical.")
    view = json.loads(shell.run("now", f"{topic}*", "--json").stdout)
    assert [(one["code"], one["topic"]) for one in view["alerts"]] == [("no_consumer", topic)]
    assert shell.good("now", f"other.{topic}").startswith("All quiet. No job is delayed.")
    with Client(shell.url) as client:
        [alert] = client.now(topics=[topic], limit=5).alerts
        assert (alert.code, alert.severity, alert.topic) == ("no_consumer", "warning", topic)
        assert alert.text in lines[1] or "ready" in alert.text


def test_more_than_the_limit(shell: Shell, topic: str) -> None:
    for number in range(3):
        shell.json("put", f"{topic}.{number}", "1")
    until(shell, f"{topic}.*", code=6, text="3 things need you:")
    shown = until(shell, f"{topic}.*", "--limit", "1", code=6, text="3 things need you:")
    assert "  and 2 more; --limit shows them\n" in shown
