"""deferd: delayed jobs that can be taken back. Here are the client, the worker, and the errors they raise.

::

    from deferd import Client

    with Client("http://127.0.0.1:8000") as client:
        client.put("orders.close", {"order": 1042}, id="order-1042", delay=timedelta(minutes=30))
        client.cancel("orders.close", "order-1042")

A name is imported when it is first asked for, so that `import deferd` costs nothing that is not used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deferd.client import (
        AsyncClient,
        CallFailed,
        Cancelled,
        Client,
        Delivery,
        FinishResult,
        Job,
        JobRef,
        NoAnswer,
        PutResult,
        Released,
        StoreAudit,
        TopicAudit,
        TopicPage,
        TopicView,
        UnexpectedAnswer,
        Unreachable,
    )
    from deferd.errors import (
        DeferdError,
        DurabilityUnavailable,
        Forbidden,
        InvalidInput,
        JobCancelled,
        JobExists,
        JobNotFound,
        JobReserved,
        PayloadTooLarge,
        RateLimited,
        ReceiptStale,
        StoreUnavailable,
        TopicFull,
        TopicNotFound,
        Unauthorized,
    )
    from deferd.model import JobState, PutJob, TopicSettings
    from deferd.worker import Context, Reject, Retry, Worker

__all__ = [
    "AsyncClient",
    "CallFailed",
    "Cancelled",
    "Client",
    "Context",
    "DeferdError",
    "Delivery",
    "DurabilityUnavailable",
    "FinishResult",
    "Forbidden",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobExists",
    "JobNotFound",
    "JobRef",
    "JobReserved",
    "JobState",
    "NoAnswer",
    "PayloadTooLarge",
    "PutJob",
    "PutResult",
    "RateLimited",
    "ReceiptStale",
    "Reject",
    "Released",
    "Retry",
    "StoreAudit",
    "StoreUnavailable",
    "TopicAudit",
    "TopicFull",
    "TopicNotFound",
    "TopicPage",
    "TopicSettings",
    "TopicView",
    "Unauthorized",
    "UnexpectedAnswer",
    "Unreachable",
    "Worker",
]
_HOMES = ("deferd.errors", "deferd.client", "deferd.model", "deferd.worker")
"""Where the names are, the first that is found counting: `deferd.client.Job` is the public one."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(home)
            if hasattr(module, name):
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
