"""The pytest plugin `deferd`: fixtures with a service for tests.

pytest loads this module in every run where deferd is installed, so it imports nothing until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from deferd.testing.service import ServiceForTests

_LOG_OF_TEST = pytest.StashKey[Callable[[], str]]()


@pytest.fixture(scope="session")
def deferd_shared_service() -> Iterator[ServiceForTests]:
    """One service for all tests of the run (with pytest-xdist: of a worker), in the state that they left."""
    from deferd.testing.service import start_service  # noqa: PLC0415 (see the module's docstring)

    with start_service() as service:
        yield service


@pytest.fixture
def deferd_service(request: pytest.FixtureRequest, deferd_shared_service: ServiceForTests) -> ServiceForTests:
    """The shared service without jobs, topics, schedules, calendars, pushes, tasks and activity.

    Its clock is not set back after a test, so it may be ahead of real time: compute instants from
    `deferd_service.clock.now()`. To run a worker: `deferd_service.run_until_idle(worker)`.
    """
    began = len(deferd_shared_service.log)
    request.node.stash[_LOG_OF_TEST] = lambda: deferd_shared_service.log[began:]
    deferd_shared_service.purge()
    return deferd_shared_service


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the service logged during a test that failed."""
    report = yield
    if report.failed and _LOG_OF_TEST in item.stash:
        report.sections.append(("deferd service log", item.stash[_LOG_OF_TEST]() or "(nothing during this test)"))
    return report
