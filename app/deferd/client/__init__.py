"""The client of the HTTP API. It needs only certifi, httptools, msgspec and pydantic, and imports no server code."""

from __future__ import annotations

from deferd.client.async_client import AsyncClient
from deferd.client.blocking_client import Client
from deferd.client.cipher import Cipher
from deferd.client.errors import CallFailed, NoAnswer, Undecryptable, UnexpectedAnswer, Unreachable
from deferd.client.job_definition import AsyncJob, BlockingJob, BoundJob, JobDefinition, job
from deferd.client.put_options import PutDefaults, PutOptions
from deferd.client.request_body import Backoff, JobRef, OpeningHours, WindowDict
from deferd.client.scheduling import ScheduledJobOptions, ScheduleOptions
from deferd.contract.operations.audits import StoreAudit, TopicAudit
from deferd.contract.operations.batches import Batch
from deferd.contract.operations.bulk import Became, BulkResult, CancelUndone, RepeatedError, SampleJob, Task
from deferd.contract.operations.bulk import DryRun as Preview
from deferd.contract.operations.events import Change, FieldChange, JobEvent
from deferd.contract.operations.history import History
from deferd.contract.operations.inspection import (
    Consumer,
    DeadErrors,
    DeadGroup,
    DeadOriginal,
    Explanation,
    Forecast,
    TopicForecast,
    WhyReason,
)
from deferd.contract.operations.jobs import (
    Cancelled,
    CancelResult,
    Delivery,
    EndedAttempt,
    FinishResult,
    Job,
    PutResult,
    Released,
)
from deferd.contract.operations.now import Alert, Now
from deferd.contract.operations.push import Push, PushTarget
from deferd.contract.operations.push import TestedPush as PushTest
from deferd.contract.operations.schedules_and_calendars import Calendar, Schedule
from deferd.contract.operations.schedules_and_calendars import PreviewedRun as Run
from deferd.contract.operations.system import Overview, OwnKey, System, Upgrade
from deferd.contract.operations.topics import GroupView, TopicPage, TopicView

__all__ = [
    "Alert",
    "AsyncClient",
    "AsyncJob",
    "Backoff",
    "Batch",
    "Became",
    "BlockingJob",
    "BoundJob",
    "BulkResult",
    "Calendar",
    "CallFailed",
    "CancelResult",
    "CancelUndone",
    "Cancelled",
    "Change",
    "Cipher",
    "Client",
    "Consumer",
    "DeadErrors",
    "DeadGroup",
    "DeadOriginal",
    "Delivery",
    "EndedAttempt",
    "Explanation",
    "FieldChange",
    "FinishResult",
    "Forecast",
    "GroupView",
    "History",
    "Job",
    "JobDefinition",
    "JobEvent",
    "JobRef",
    "NoAnswer",
    "Now",
    "OpeningHours",
    "Overview",
    "OwnKey",
    "Preview",
    "Push",
    "PushTarget",
    "PushTest",
    "PutDefaults",
    "PutOptions",
    "PutResult",
    "Released",
    "RepeatedError",
    "Run",
    "SampleJob",
    "Schedule",
    "ScheduleOptions",
    "ScheduledJobOptions",
    "StoreAudit",
    "System",
    "Task",
    "TopicAudit",
    "TopicForecast",
    "TopicPage",
    "TopicView",
    "Undecryptable",
    "UnexpectedAnswer",
    "Unreachable",
    "Upgrade",
    "WhyReason",
    "WindowDict",
    "job",
]
