"""For tests of programs that use deferd: a private service with a clock that makes 24 hours pass in milliseconds.

::

    from datetime import timedelta
    from deferd.testing import start_service

    with start_service() as service, service.client() as client:
        client.put("trash", {"file": 7}, delay=timedelta(hours=24))
        service.clock.advance(hours=24)
        [job] = client.pop("trash", wait=0)

The service is a real process with the embedded store, so this needs the package's `server` extra, in this environment
or in another one, whose `deferd` the variable DEFERD_TESTING_COMMAND names. In pytest the fixture `deferd_service` is
that service, shared by the tests of a run and empty at the start of each test; it exists wherever deferd is installed
and costs nothing unless a test uses it.

The clock is not set back between tests: it stays where the last `advance` has left it, ahead of real time. Compute
instants for `run_at` from `service.clock.now()`, not from `datetime.now()`, and compare `due_at` with that.

`service.run_until_idle(worker)` runs a program's Worker on the ready jobs. For unit tests without a service,
`EagerJobs(worker)` runs the handlers in the test itself; it needs the base install only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deferd.testing.eager import EagerJob, EagerJobs, EagerUnsupported
    from deferd.testing.service import ServiceClock, ServiceForTests, ServiceNotStarted, start_service

__all__ = [
    "EagerJob",
    "EagerJobs",
    "EagerUnsupported",
    "ServiceClock",
    "ServiceForTests",
    "ServiceNotStarted",
    "start_service",
]

_MODULE_OF = {
    **dict.fromkeys(("EagerJob", "EagerJobs", "EagerUnsupported"), "deferd.testing.eager"),
    **dict.fromkeys(
        ("ServiceClock", "ServiceForTests", "ServiceNotStarted", "start_service"), "deferd.testing.service"
    ),
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use: pytest loads this package in every run."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value
