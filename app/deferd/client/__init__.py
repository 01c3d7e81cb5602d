"""The client of the HTTP API. It needs only certifi, httptools, msgspec and pydantic, and imports no server code."""

from __future__ import annotations

from deferd.client.activity import Change
from deferd.client.async_client import AsyncClient
from deferd.client.attention import Alert, Now
from deferd.client.blocking_client import Client
from deferd.client.calendars import Calendar
from deferd.client.errors import CallFailed, NoAnswer, UnexpectedAnswer, Unreachable
from deferd.client.events import JobEvent
from deferd.client.history import History
from deferd.client.inspection import Consumer, DeadErrors, DeadGroup, Explanation, Forecast, TopicForecast, WhyReason
from deferd.client.job_definition import AsyncJob, BlockingJob, BoundJob, JobDefinition, job
from deferd.client.jobs import JobRef
from deferd.client.push import Push, PushTest
from deferd.client.put_options import Backoff, OpeningHours, PutDefaults, PutOptions, WindowDict
from deferd.client.results import BulkResult, Preview, SampleJob
from deferd.client.schedules import Run, Schedule, ScheduledJobOptions, ScheduleOptions
from deferd.client.topics import PushTarget, StoreAudit, TopicAudit, TopicPage, TopicView
from deferd.contract.responses.job_calls import Cancelled, CancelResult, FinishResult, PutResult, Released
from deferd.contract.responses.jobs import Delivery, EndedAttempt, Job
from deferd.contract.responses.tasks import Task

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
