"""`deferd completion`: shells complete commands, options, choices and topics."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deferd import Client
from tests.acceptance.cli.command_line import Shell, environment, run_in_process
from tests.acceptance.service_process import ServiceProcess
from tests.programs import require_program

AWAY = "http://127.0.0.1:9"


def completed(*words: str, url: str = AWAY) -> set[str]:
    """What a shell would offer for the last word of a line."""
    variables = {
        "_DEFERD_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["deferd", *words]),
        "COMP_CWORD": f"{len(words)}",
    }
    done = run_in_process(env=environment(url, **variables))
    assert (0, "") == (done.returncode, done.stderr)
    return {line.partition(",")[2] for line in done.stdout.split()}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["re"], {"relay", "release", "redrive", "reschedule", "restore", "resume"}),
        (["put", "orders", "--de"], {"--delay", "--deadline", "--dead-retain"}),
        (["jobs", "orders", "--state", "de"], {"delayed", "dead"}),
        (["put", "orders", "--on-conflict", ""], {"reject", "keep", "replace", "append"}),
        (["serve", "--da"], {"--data-dir"}),
        (["bench", "--hist"], {"--histogram"}),
        (["key", "re"], {"revoke"}),
        (["completion", "z"], {"zsh"}),
        (["rm", "orders", "--ref"], {"--refuse-reserved"}),
    ],
)
def test_commands_options_and_choices_are_completed(words: list[str], offered: set[str]) -> None:
    assert offered == completed(*words)


def test_topics_are_completed_from_the_service(shared_service: ServiceProcess, topic: str) -> None:
    with Client(shared_service.url) as client:
        for name in ("a", "b"):
            client.put(f"{topic}.{name}")

    both = {f"{topic}.a", f"{topic}.b"}
    assert both == completed("put", topic, url=shared_service.url)
    assert both == completed("jobs", "--state", "dead", "--url", shared_service.url, f"{topic}.")
    assert {f"{topic}.b,{topic}.a"} == completed("pop", f"{topic}.b,{topic}.a", url=shared_service.url)


def test_an_unreachable_service_completes_nothing_silently_and_in_time() -> None:
    began_s = time.monotonic()
    for words in (["put", "ord"], ["put", "--url", "ftp://wrong", "ord"]):
        assert set() == completed(*words)
    assert time.monotonic() - began_s < 20


def test_a_service_that_does_not_respond_completes_nothing_after_a_second() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began_s = time.monotonic()
        assert set() == completed("put", "ord", url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert 0.9 < time.monotonic() - began_s < 10


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_sound(shell: str) -> None:
    script = Shell("").good("completion", shell)

    assert "_DEFERD_COMPLETE" in script
    assert shell != "zsh" or script.startswith("#compdef deferd\n")
    subprocess.run([require_program(shell), "-n"], input=script, text=True, check=True, timeout=20)


def test_bash_completes_with_its_script(tmp_path: Path) -> None:
    script = tmp_path / "deferd.bash"
    script.write_text(Shell("").good("completion", "bash"))
    program = (
        f'source "{script}"\n'
        "function_name=$(complete -p deferd | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n"
        'COMP_WORDS=(deferd put orders --del); COMP_CWORD=3; "$function_name" deferd\n'
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env=environment("", PATH=path),
    )

    assert ("--delay\n", "") == (done.stdout, done.stderr)
