"""`deferd completion`: shells complete commands, flags and choices."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.command_line import Shell


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "deferd.bash"
    path.write_text(Shell("").good("completion", "bash"))
    return path


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last word of a line."""
    ask = (
        f'source "{script}"\n'
        "function_name=$(complete -p deferd | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n"
        'COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}\n'
        '"$function_name" deferd "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"\n'
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", ask, "bash", "deferd", *words], capture_output=True, text=True, timeout=20, check=True
    )
    assert "" == done.stderr
    return set(done.stdout.split())


def test_the_script_for_bash_is_sound(bash_script: Path) -> None:
    subprocess.run(["bash", "-n", bash_script], check=True, timeout=20)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["re"], {"release", "redrive", "restore", "resume"}),
        (["put", "orders", "--de"], {"--delay"}),
        (["jobs", "orders", "--state", "de"], {"delayed", "dead"}),
        (["put", "orders", "--on-conflict", ""], {"reject", "keep", "replace"}),
        (["serve", "--da"], {"--data-dir"}),
        (["bench", "--hist"], {"--histogram"}),
        (["key", "re"], {"revoke"}),
        (["completion", "z"], {"zsh"}),
    ],
)
def test_bash_completes_commands_flags_and_choices(bash_script: Path, words: list[str], offered: set[str]) -> None:
    assert offered == completed(bash_script, *words)


def test_the_script_for_zsh_is_for_deferd() -> None:
    script = Shell("").good("completion", "zsh")

    assert script.startswith("#compdef deferd\n")
    assert "redrive" in script
    if zsh := shutil.which("zsh"):
        subprocess.run([zsh, "-n"], input=script, text=True, check=True, timeout=20)
