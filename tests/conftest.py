"""What all tests share: async ones run on asyncio, the only event loop of deferd, and Ctrl-C ends what they start."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import re
import signal
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import is_hypothesis_test, settings

from tests.drawn_input import FULL
from tests.preloaded import start_preloader
from tests.private_network import require_private_network
from tests.programs import require_program

if TYPE_CHECKING:
    from tests.postgresql import PostgresServer

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


_ALL_SLOW = re.compile(rb"^pytestmark = pytest\.mark\.slow", re.MULTILINE)
_GC_THRESHOLD = 20_000
"""With Python 3.11's own of 700 the collector takes a twentieth of the tests' time."""
_SLOW_OR_DRAWN = ("slow", "hypothesis", "slow or hypothesis")
"""Values of `-m` by which no test is to run that is neither slow nor drawn."""


def pytest_configure(config: pytest.Config) -> None:
    """Start the preloader, one for all processes of xdist, and load what only slow tests need where they can run."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        with contextlib.suppress(OSError):  # each process then tries it by itself, and only tests that need it fail
            start_preloader()
    if not _leaves_out_slow_ones(config):
        config.pluginmanager.import_plugin("schemathesis.pytest.plugin")  # takes a second in each process


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import modules of which no test is to run: most of them, where only slow and drawn ones are."""
    if collection_path.suffix != ".py":
        return None
    if _leaves_out_slow_ones(config):
        return True if _ALL_SLOW.search(collection_path.read_bytes()) else None
    if config.option.markexpr in _SLOW_OR_DRAWN:
        return None if _may_have_slow_or_drawn(collection_path) else True
    return None


def _may_have_slow_or_drawn(module: Path) -> bool:
    marking = [path for path in (module, module.with_name("conftest.py")) if path.exists()]
    return any(word in path.read_bytes() for path in marking for word in (b"slow", b"hypothesis"))


def _leaves_out_slow_ones(config: pytest.Config) -> bool:
    return "not slow" in config.option.markexpr


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the garbage collector from looking at the tests themselves, which exist to the end, again and again."""
    gc.disable()
    try:
        if session.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            _import_test_modules(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        gc.enable()


def _import_test_modules(config: pytest.Config) -> None:
    """Import all test modules, in each process of xdist beginning with others.

    All processes collect in the same order. Before the first run, each of them would compile each module.
    """
    paths = sorted((config.rootpath / "tests").rglob("test_*.py"))
    worker: dict[str, object] = getattr(config, "workerinput", {})
    number = int(str(worker.get("workerid", "gw0")).removeprefix("gw"))
    first = len(paths) * number // int(str(worker.get("workercount", 1)))
    for path in paths[first:] + paths[:first]:
        if not pytest_ignore_collect(path, config):
            name = ".".join(path.relative_to(config.rootpath).with_suffix("").parts)
            with contextlib.suppress(Exception, pytest.skip.Exception):  # collection imports it again and reports it
                importlib.import_module(name)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest tests, so that none of them runs alone at the end.

    Where no test of Hypothesis is to run, it must not find any: it would read all modules for constants to draw.
    """
    items.sort(key=_seconds_of, reverse=True)
    if "not hypothesis" in config.option.markexpr:
        drawn = {item for item in items if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)}
        _require_names(item.path for item in items if item in drawn or item.get_closest_marker("slow"))
        config.hook.pytest_deselected(items=list(drawn))
        items[:] = [item for item in items if item not in drawn]


def _require_names(paths: Iterable[Path]) -> None:
    """Refuse modules that `pytest_ignore_collect` would leave out: no run would have their slow and drawn tests."""
    unnamed = [str(path) for path in set(paths) if not _may_have_slow_or_drawn(path)]
    if unnamed:
        raise pytest.UsageError(f"these have slow or drawn tests, and no word in them says so: {', '.join(unnamed)}")


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
    monkeypatch.setattr("tests.integration.store.store_servers.valkey_binary", lambda: binary)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for all tests of this process."""
    from tests.postgresql import PostgresServer  # noqa: PLC0415 (most runs need none of it)

    with PostgresServer() as server:
        yield server


@pytest.fixture
def outbox_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database of its own, with the schema of the outbox."""
    from deferd.outbox.schema import schema_sql  # noqa: PLC0415

    url = postgres.database(schema_sql())
    yield url
    postgres.drop(url)


@pytest.fixture
def private_network() -> None:
    """For tests that run in a network of their own."""
    require_private_network()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
