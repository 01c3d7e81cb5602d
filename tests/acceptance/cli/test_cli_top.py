"""`deferd top`: one snapshot without a terminal, a live view on one."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli.command_line import Shell, terminal
from tests.acceptance.service_process import ServiceProcess, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service with few topics: beyond the first 100 they have no rates of their own."""
    with running_service(data_dir=tmp_path_factory.mktemp("top")) as service:
        yield service


@pytest.fixture
def shell(service: ServiceProcess) -> Shell:
    return Shell(service.url)


def test_without_a_terminal_it_is_a_table_with_rates(shell: Shell, topic: str) -> None:
    shell.good("put", topic, "-", "--jobs", stdin='{"id": "a"}\n{"id": "b", "delay": 3600}\n')

    table = shell.good("top", "--interval", "0.2", "--sort", "topic").splitlines()

    assert re.match(
        r"TOPIC +DELAYED +READY +RESERVED +DEAD +FINISHED +PUT/S +FINISH/S +OLDEST READY +NEXT DUE$", table[0]
    )
    [row] = [line.split() for line in table if line.startswith(topic)]
    assert [topic, "1", "1", "0", "0", "0", "0", "0"] == row[:8]


@pytest.mark.slow
def test_as_json_it_has_the_rates_of_the_interval(shell: Shell, topic: str) -> None:
    with terminal(shell.url, "put", topic, "-", "--delay", "1h") as putting:
        putting.wait_for("Ctrl-D ends")
        putting.press("1\n")
        with terminal(shell.url, "top", "--json", "--interval", "3") as top:
            while not top.read(0.05):  # during the whole interval
                putting.press("1\n")
                putting.read(0.0)
            text = top.wait_for(r"\}\r\n")
        view = json.loads(text)
    [found] = [one for one in view["topics"] if one["topic"] == topic]

    assert ([shell.url], []) == (view["urls"], view["silent"])
    assert found["counts"]["delayed"] > 0
    assert found["put_rate"] > 0
    assert 0 == found["finish_rate"]
    assert "settings" not in found


def test_the_live_view_shows_topics_sorts_and_quits(tmp_path: Path) -> None:
    with running_service(data_dir=tmp_path) as service:  # the shared one has more topics than the view has room for
        shell = Shell(service.url)
        shell.json("put", "orders", "1", "--delay", "1h")
        with terminal(shell.url, "top", "--interval", "0.2", "--sort", "delayed", size=(40, 200)) as view:
            before = view.settings()
            shown = view.wait_for("orders")
            assert "\x1b[?1049h" in shown  # on a screen of its own
            view.wait_for("sorts by: delayed")
            view.press("s")
            view.wait_for("sorts by: ready")
            shell.json("put", "orders", "1", "--delay", "1h")
            view.wait_for(r"orders\S* +\S*2\b")
            view.press("q")
            assert 0 == view.end()
            assert "\x1b[?1049l" in view.text
            assert before == view.settings()


@pytest.mark.parametrize("columns", [80, 120])
def test_the_live_view_fits_the_terminal(shell: Shell, topic: str, columns: int) -> None:
    shell.good("put", "-", "--jobs", stdin="".join(f'{{"topic": "{topic}.{n}", "delay": 3600}}\n' for n in range(40)))
    with terminal(shell.url, "top", size=(20, columns)) as view:
        screen = view.wait_for(r"and \d+ more")
        view.press("\x03")
        assert 0 == view.end()

    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+|\x1b\[H", screen)]
    assert max(map(len, lines)) <= columns
    assert any(line.startswith("TOPIC") and "DELAYED" in line and "DUE" in line for line in lines)


@pytest.mark.slow
def test_the_live_view_goes_on_when_the_service_goes_away_and_comes_back(tmp_path: Path) -> None:
    with running_service(data_dir=tmp_path) as service:
        Shell(service.url).json("put", "orders", "1")
        with terminal(service.url, "top", "--interval", "0.2") as view:
            view.wait_for("orders")
            service.stop()
            view.wait_for("no response: since ")
            view.wait_for("orders")  # the terminal is restored
            service.start()
            view.wait_for(r"deferd top [^\n]*\r?\n(?:(?![^\n]*no response)[^\n]*\r?\n)?[^\n]*TOPIC")
            view.process.send_signal(signal.SIGTERM)
            assert 143 == view.end()
            assert "\x1b[?1049l" in view.text


def test_an_unreachable_service_ends_with_1() -> None:
    line = Shell("http://127.0.0.1:9").refused(1, "top", "--json")

    assert "the service cannot be reached" in line
