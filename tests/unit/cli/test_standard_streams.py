"""Commands whose standard streams are closed, full, or in another encoding than UTF-8: one line, and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

START_S = 20.0
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NO_DEVICE = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


def run(words: str, redirection: str = "", **environment: str) -> tuple[int, bytes, str]:
    """Exit code, output and errors of `deferd` with these words for the shell."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -m deferd {words} {redirection}'],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=START_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.mark.parametrize(
    ("words", "redirection", "reason"),
    [
        ("config", ">&-", "Bad file descriptor"),
        pytest.param("put --help", ">/dev/full", "No space left on device", marks=NO_DEVICE),
    ],
)
def test_output_that_cannot_be_written_is_an_error(words: str, redirection: str, reason: str) -> None:
    assert run(words, redirection) == (1, b"", f"deferd: the output cannot be written: {reason}\n")


@NO_DEVICE
@pytest.mark.parametrize("redirection", ["2>/dev/full", "<&- >&- 2>&-"])
def test_an_error_that_cannot_be_written_keeps_its_exit_code(redirection: str) -> None:
    assert run("nothing", redirection) == (2, b"", "")


def test_the_token_of_a_key_is_not_lost_unnoticed() -> None:
    code, entry, _ = run("key new --name a --scope put", "2>&-")
    assert (code, b"[[key]]" in entry) == (1, True)


@pytest.mark.parametrize(
    ("words", "environment", "encoding"),
    [
        ("put t 1 --tag", C_LOCALE, "ASCII; set LC_ALL=C.UTF-8"),
        ("get t", {"PYTHONUTF8": "1"}, "UTF-8 (see"),
    ],
)
def test_an_argument_that_is_not_text_is_refused_in_one_line(
    words: str, environment: dict[str, str], encoding: str
) -> None:
    code, _, error = run(words, r'"$(printf "\377")"', **environment)
    assert (code, error.count("\n"), f"it is not text in {encoding}" in error) == (2, 1, True), error


def test_a_body_in_an_argument_is_utf_8_in_every_locale() -> None:
    script = (
        "import sys; from deferd.cli.framework import values, output;"
        "output.json_line(values.json_value(sys.argv[1]));"
        "from deferd.engine.scripts import library; library(False)"
    )
    body = {"name": "ä→😀"}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(body, ensure_ascii=False)],
        env={**os.environ, **C_LOCALE},
        capture_output=True,
        timeout=START_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()
    assert json.loads(done.stdout) == body
