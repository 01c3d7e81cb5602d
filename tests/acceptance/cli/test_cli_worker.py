"""`deferd worker MODULE:WORKER` runs a program's worker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.cli.command_line import Shell, environment
from tests.preloaded import run_preloaded
from tests.waiting import wait_until

PROGRAM = """
import os
from deferd import Worker

worker = Worker(os.environ["DEFERD_URL"] or None)
elsewhere = Worker("http://127.0.0.1:9", key="in-the-program")
no_worker = 5
idle = Worker()

@elsewhere.handler("{topic}")
@worker.handler("{topic}")
async def double(n: int) -> int:
    return 2 * n
"""


@pytest.fixture
def program(tmp_path: Path, topic: str) -> Path:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "jobs.py").write_text(PROGRAM.replace("{topic}", topic))
    (package / "broken.py").write_text("import deferd\n\nraise RuntimeError('no database')\n")
    (package / "needs.py").write_text("import not_installed\n")
    return tmp_path


def started(folder: Path, *words: str, url: str) -> subprocess.Popen[str]:
    # As the installed script does, which unlike `python -m` does not put the current folder on the path.
    script = "import sys; sys.path.remove(''); from deferd.cli.main import main; sys.exit(main())"
    root = Path(__file__).resolve().parents[3]
    return subprocess.Popen(
        [sys.executable, "-c", script, "worker", *words],
        cwd=folder,
        env={**environment(url), "PYTHONPATH": str(root / "app")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_worker_runs_from_the_current_folder_until_sigterm(shell: Shell, program: Path, topic: str) -> None:
    shell.json("put", topic, "21", "--id", "a", "--retain", "1h")
    # The flag wins over the variable, also for the program.
    worker = started(program, "shop.jobs:worker", "--url", shell.url, "--log-format", "json", url="http://127.0.0.1:9")
    try:
        assert worker.stderr is not None
        begun = json.loads(worker.stderr.readline())
        assert [topic] == begun["topics"]
        wait_until(lambda: shell.json("get", topic, "a")[0]["state"] == "finished", 20, "the job is finished")
        [job] = shell.json("get", topic, "a")
        worker.send_signal(signal.SIGTERM)
        rest = worker.communicate(timeout=20)[1]
    finally:
        worker.kill()
        worker.communicate()

    assert ("finished", 42) == (job["state"], job.get("result"))
    assert 0 == worker.returncode
    assert {"info"} == {json.loads(line)["level"] for line in rest.splitlines()}


@pytest.mark.slow
def test_the_variable_wins_over_the_url_in_the_program(shell: Shell, program: Path, topic: str) -> None:
    shell.json("put", topic, "21", "--id", "a", "--retain", "1h")
    worker = started(program, "shop.jobs:elsewhere", "--log-format", "json", url=shell.url)
    try:
        assert worker.stderr is not None
        assert shell.url == json.loads(worker.stderr.readline())["url"]
        wait_until(lambda: shell.json("get", topic, "a")[0]["state"] == "finished", 20, "the job is finished")
        worker.send_signal(signal.SIGTERM)
        assert 0 == worker.wait(20)
    finally:
        worker.kill()
        worker.communicate()


def test_without_flag_and_variable_the_url_of_the_program_counts(shell: Shell, program: Path) -> None:
    worker = started(program, "shop.jobs:elsewhere", "--log-format", "json", url="")
    try:
        assert worker.stderr is not None
        assert "http://127.0.0.1:9" == json.loads(worker.stderr.readline())["url"]
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.parametrize(
    ("words", "code", "line"),
    [
        (
            ["shop.jobs"],
            2,
            "MODULE:WORKER is 'shop.jobs', but must be a module and a name in it, such as shop.jobs:worker",
        ),
        (["shop/jobs.py"], 2, "did you mean shop.jobs:worker?"),
        (["shop.nothing:worker"], 2, "there is no module 'shop.nothing', neither in "),
        (["nothing.jobs:worker"], 2, "there is no module 'nothing', neither in "),
        (["shop.jobs:wroker"], 2, "module shop.jobs has no 'wroker'; it has worker, elsewhere, idle"),
        (["shop.jobs:no_worker"], 2, "shop.jobs:no_worker is of type int, but must be a deferd.Worker"),
        (["shop.jobs:idle"], 2, "shop.jobs:idle has no handler: declare one with @idle.handler(TOPIC)"),
        (["shop.jobs:worker", "--url", "ftp://a"], 2, "--url: is 'ftp://a', but must be an http:// or https:// URL"),
        (["shop.jobs:worker", "--ca-file", "no.pem"], 2, "--ca-file: 'no.pem' cannot be used: "),
        (["shop.broken:worker"], 1, "module shop.broken cannot be imported: RuntimeError: no database"),
        (["shop.needs:worker"], 1, "module shop.needs cannot be imported: ModuleNotFoundError: No module named 'not_"),
    ],
)
def test_an_invalid_worker_is_reported_in_one_line(
    shell: Shell, program: Path, words: list[str], code: int, line: str
) -> None:
    ran = run_preloaded("worker", *words, environment=environment(shell.url), folder=program)

    assert (code, "") == (ran.returncode, ran.stdout)
    *before, last = ran.stderr.splitlines()
    assert last.startswith("deferd: ")
    assert line in last
    if code == 2:
        assert [] == before
    else:  # it names the place in the program
        assert "Traceback (most recent call last):" == before[0]
        assert "deferd/commands" not in ran.stderr
        assert f"{words[0].partition(':')[0].replace('.', '/')}.py" in before[1]
