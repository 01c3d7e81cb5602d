"""What all tests share: async ones run on asyncio, the only event loop of deferd, and Ctrl-C ends what they start."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator

import pytest
from hypothesis import is_hypothesis_test, settings

from tests.drawn_input import FULL
from tests.private_network import require_private_network
from tests.programs import require_program

default = settings.get_profile("default")  # not Hypothesis' own for CI: there it draws as everywhere
settings.register_profile(FULL, default, deadline=None)  # others use the machine
settings.register_profile("plain", default, deadline=None)
settings.load_profile("plain")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # the tests start deferd hundreds of times: compile it once
sys.dont_write_bytecode = False

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells do for background jobs and their children
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup; child processes of tests must not inherit that
    signal.signal(signal.SIGHUP, lambda _number, _frame: None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from looking at the tests themselves, which exist to the end, again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest tests, so that none of them runs alone at the end.

    Where no test of Hypothesis is to run, it must not find any: it would read all modules for constants to draw.
    """
    items.sort(key=_seconds_of, reverse=True)
    if "not hypothesis" in config.option.markexpr:
        drawn = {item for item in items if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)}
        config.hook.pytest_deselected(items=list(drawn))
        items[:] = [item for item in items if item not in drawn]


def _seconds_of(item: pytest.Item) -> int:
    slow = item.get_closest_marker("slow")
    return 0 if slow is None else int(slow.kwargs.get("seconds", 0))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """End a test here that has the marker `needs` if a program that it names is missing."""
    for marker in item.iter_markers("needs"):
        for program in marker.args:
            require_program(program)


@pytest.fixture
def older_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stores that a test starts be the Redis of the system, in place of Valkey."""
    binary = require_program("redis-server")
    monkeypatch.setattr("tests.integration.store.store_servers.get_binary_path", lambda: binary)


@pytest.fixture
def private_network() -> None:
    """For tests that run in a network of their own."""
    require_private_network()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
