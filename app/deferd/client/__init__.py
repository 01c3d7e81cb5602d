"""The client of the HTTP API. It needs only certifi, httptools, msgspec and pydantic, and imports no server code."""

from __future__ import annotations

from deferd.client.async_client import AsyncClient
from deferd.client.blocking_client import Client
from deferd.client.errors import CallFailed, NoAnswer, UnexpectedAnswer, Unreachable
from deferd.client.job_definition import AsyncJob, BlockingJob, BoundJob, JobDefinition, job
from deferd.client.jobs import JobRef
from deferd.client.policy_types import Backoff, OpeningHours, WindowDict
from deferd.client.put_options import PutDefaults, PutOptions
from deferd.client.schedules import ScheduledJobOptions, ScheduleOptions
from deferd.contract.responses.activity import Change
from deferd.contract.responses.audits import StoreAudit, TopicAudit
from deferd.contract.responses.bulk import BulkResult, SampleJob
from deferd.contract.responses.bulk import DryRun as Preview
from deferd.contract.responses.calendars import Calendar
from deferd.contract.responses.events import JobEvent
from deferd.contract.responses.history import History
from deferd.contract.responses.inspection import (
    Consumer,
    DeadErrors,
    DeadGroup,
    Explanation,
    Forecast,
    TopicForecast,
    WhyReason,
)
from deferd.contract.responses.job_calls import Cancelled, CancelResult, FinishResult, PutResult, Released
from deferd.contract.responses.jobs import Delivery, EndedAttempt, Job
from deferd.contract.responses.now import Alert, Now
from deferd.contract.responses.push import Push, PushTarget
from deferd.contract.responses.push import TestedPush as PushTest
from deferd.contract.responses.schedules import PreviewedRun as Run
from deferd.contract.responses.schedules import Schedule
from deferd.contract.responses.system import Overview, OwnKey, System
from deferd.contract.responses.tasks import Task
from deferd.contract.responses.topics import TopicPage, TopicView

__all__ = [
    "Alert",
    "AsyncClient",
    "AsyncJob",
    "Backoff",
    "BlockingJob",
    "BoundJob",
    "BulkResult",
    "Calendar",
    "CallFailed",
    "CancelResult",
    "Cancelled",
    "Change",
    "Client",
    "Consumer",
    "DeadErrors",
    "DeadGroup",
    "Delivery",
    "EndedAttempt",
    "Explanation",
    "FinishResult",
    "Forecast",
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
    "UnexpectedAnswer",
    "Unreachable",
    "WhyReason",
    "WindowDict",
    "job",
]
