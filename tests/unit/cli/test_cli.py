"""The command line: its flags are the settings, and it reports an error in one line."""

from __future__ import annotations

import os
import sys

import pytest

from deferd import __version__
from deferd.cli import main as cli
from deferd.cli.framework import output
from deferd.settings import Settings, flag, variable


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("DEFERD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")


def test_the_help_of_serve_has_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["serve", "--help"])

    text = "".join(capsys.readouterr().out.split())  # lines may break at a hyphen
    assert code == 0
    for name, field in Settings.model_fields.items():
        assert flag(name) in text
        assert f"[{variable(name)}]" in text
        assert "".join((field.description or "missing").split()) in text
    assert "Default:8000." in text
    assert "DEFERD_REDIS_URL=redis://" in text


def test_version_and_help_are_commands_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of(["--version"], capsys) == output_of(["version"], capsys) == f"deferd {__version__}\n"
    assert output_of(["--help"], capsys) == output_of(["help"], capsys) == output_of(["help", "help"], capsys)
    for command in ("put", "serve", "bench", "key"):
        assert output_of([command, "--help"], capsys) == output_of(["help", command], capsys)


def output_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = cli.main(words)
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    return captured.out


def test_without_a_command_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "serve" in capsys.readouterr().out


def test_a_wrong_setting_ends_it_with_2_and_one_line_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFERD_WORKERS", "many")

    assert cli.main(["serve", "--port", "70000"]) == 2

    assert capsys.readouterr().err.splitlines() == [
        "deferd: --port (DEFERD_PORT) is '70000', but must be a whole number from 0 to 65535",
        "deferd: --workers (DEFERD_WORKERS) is 'many', but must be a whole number from 1 to 256",
    ]


@pytest.mark.parametrize("url", ["http://sesame@db", "redis://:sesame@", "sesame", "redis+sentinel://:sesame@h:1", ""])
def test_a_wrong_store_url_ends_it_with_2_and_is_not_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--redis-url", url]) == 2

    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("deferd: --redis-url (DEFERD_REDIS_URL) has a value that is not shown, but must be a ")
    assert "sesame" not in line


def test_an_unknown_flag_is_not_guessed_at(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["serve", "--por", "1"])

    assert code == 2
    assert "--por" in capsys.readouterr().err


def test_a_flag_with_many_values_is_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["--allowed-host", "a.example", "--allowed-host", "b c", "--allowed-host", "d:1"]

    assert cli.main(["serve", *wrong]) == 2

    assert (
        "--allowed-host (DEFERD_ALLOWED_HOST) is 'a.example,b c,d:1', but must be host names" in capsys.readouterr().err
    )


def test_without_rich_a_table_is_plain_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [output.Column("TOPIC", cut=True), output.Column("READY", right=True), output.Column("NOTE")]
    rows = [["orders.close", "7", "-"], ["mail", "12,345", "a\nb"]]
    output.show_table(columns, rows)
    with_rich = capsys.readouterr().out
    monkeypatch.setitem(sys.modules, "rich.console", None)
    output.show_table(columns, rows)
    assert capsys.readouterr().out == with_rich
    assert with_rich.splitlines()[1:] == ["orders.close       7  -", r"mail          12,345  a\nb"]
    output.show_table(columns, rows[:1], headed=False)
    assert capsys.readouterr().out == "orders.close  7  -\n"
