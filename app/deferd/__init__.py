"""deferd: delayed jobs that can be cancelled. This package exports the client, the worker and their errors.

::

    from datetime import timedelta

    from deferd import Client

    with Client("http://127.0.0.1:8000") as client:
        client.put("orders.close", {"order": 1042}, id="order-1042", delay=timedelta(minutes=30))
        client.cancel("orders.close", "order-1042")

Names are imported on first use, so that `import deferd` is fast. `__version__` is the version of the installed package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deferd.client import (
        AsyncClient,
        AsyncJob,
        Backoff,
        Batch,
        BlockingJob,
        BoundJob,
        BulkResult,
        Calendar,
        CallFailed,
        Cancelled,
        CancelResult,
        CancelUndone,
        Cipher,
        Client,
        Delivery,
        EndedAttempt,
        FinishResult,
        GroupView,
        Job,
        JobDefinition,
        JobRef,
        NoAnswer,
        OpeningHours,
        PutDefaults,
        PutOptions,
        PutResult,
        Released,
        Run,
        Schedule,
        ScheduledJobOptions,
        ScheduleOptions,
        StoreAudit,
        TopicAudit,
        TopicPage,
        TopicView,
        Undecryptable,
        UnexpectedAnswer,
        Unreachable,
        Upgrade,
        WindowDict,
        job,
    )
    from deferd.contract.backoff import ExponentialBackoff, FixedBackoff, ScheduleBackoff
    from deferd.contract.ends import OnEnd
    from deferd.contract.errors import (
        BatchNotFound,
        BatchSealed,
        CalendarNotFound,
        DeferdError,
        DifferentShard,
        DurabilityUnavailable,
        Forbidden,
        InvalidInput,
        JobCancelled,
        JobExists,
        JobNotFound,
        JobReserved,
        PayloadTooLarge,
        PushNotFound,
        RateLimited,
        ReceiptStale,
        ScheduleExists,
        ScheduleNotFound,
        StoreUnavailable,
        TaskNotFound,
        TopicFull,
        TopicNotFound,
        TopicPushed,
        Unauthorized,
    )
    from deferd.contract.model import DurabilityLevel, JobState, PutJob, TopicSettings
    from deferd.contract.windows import Window
    from deferd.worker import BatchContext, Context, Reject, Retry, Snooze, Then, Worker

    __version__: str

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "Backoff",
    "Batch",
    "BatchContext",
    "BatchNotFound",
    "BatchSealed",
    "BlockingJob",
    "BoundJob",
    "BulkResult",
    "Calendar",
    "CalendarNotFound",
    "CallFailed",
    "CancelResult",
    "CancelUndone",
    "Cancelled",
    "Cipher",
    "Client",
    "Context",
    "DeferdError",
    "Delivery",
    "DifferentShard",
    "DurabilityLevel",
    "DurabilityUnavailable",
    "EndedAttempt",
    "ExponentialBackoff",
    "FinishResult",
    "FixedBackoff",
    "Forbidden",
    "GroupView",
    "InvalidInput",
    "Job",
    "JobCancelled",
    "JobDefinition",
    "JobExists",
    "JobNotFound",
    "JobRef",
    "JobReserved",
    "JobState",
    "NoAnswer",
    "OnEnd",
    "OpeningHours",
    "PayloadTooLarge",
    "PushNotFound",
    "PutDefaults",
    "PutJob",
    "PutOptions",
    "PutResult",
    "RateLimited",
    "ReceiptStale",
    "Reject",
    "Released",
    "Retry",
    "Run",
    "Schedule",
    "ScheduleBackoff",
    "ScheduleExists",
    "ScheduleNotFound",
    "ScheduleOptions",
    "ScheduledJobOptions",
    "Snooze",
    "StoreAudit",
    "StoreUnavailable",
    "TaskNotFound",
    "Then",
    "TopicAudit",
    "TopicFull",
    "TopicNotFound",
    "TopicPage",
    "TopicPushed",
    "TopicSettings",
    "TopicView",
    "Unauthorized",
    "Undecryptable",
    "UnexpectedAnswer",
    "Unreachable",
    "Upgrade",
    "Window",
    "WindowDict",
    "Worker",
    "__version__",
    "job",
]
_HOMES = (
    "deferd.contract.errors",
    "deferd.client",
    "deferd.contract.backoff",
    "deferd.contract.ends",
    "deferd.contract.model",
    "deferd.contract.windows",
    "deferd.worker",
)
"""The modules that define the names, searched in this order: the public `Job` is the one of `deferd.client`."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from deferd.version import VERSION  # noqa: PLC0415 (costs more than the rest of `import deferd`)

        return VERSION
    if name in __all__:
        for home in _HOMES:
            module = importlib.import_module(home)
            if hasattr(module, name):
                value = globals()[name] = getattr(module, name)
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
