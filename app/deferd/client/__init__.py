"""The client of the HTTP API. It needs only certifi, httptools, msgspec and pydantic, and imports no server code."""

from __future__ import annotations

from deferd.client.async_client import AsyncClient
from deferd.client.blocking_client import Client
from deferd.client.calendars import Calendar
from deferd.client.errors import CallFailed, NoAnswer, UnexpectedAnswer, Unreachable
from deferd.client.job_definition import AsyncJob, BlockingJob, BoundJob, JobDefinition, job
from deferd.client.jobs import Delivery, EndedAttempt, Job, JobRef
from deferd.client.put_options import Backoff, OpeningHours, PutDefaults, PutOptions, WindowDict
from deferd.client.results import BulkResult, Cancelled, CancelResult, FinishResult, PutResult, Released
from deferd.client.schedules import Run, Schedule, ScheduledJobOptions, ScheduleOptions
from deferd.client.topics import StoreAudit, TopicAudit, TopicPage, TopicView

__all__ = [
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
    "Client",
    "Delivery",
    "EndedAttempt",
    "FinishResult",
    "Job",
    "JobDefinition",
    "JobRef",
    "NoAnswer",
    "OpeningHours",
    "PutDefaults",
    "PutOptions",
    "PutResult",
    "Released",
    "Run",
    "Schedule",
    "ScheduleOptions",
    "ScheduledJobOptions",
    "StoreAudit",
    "TopicAudit",
    "TopicPage",
    "TopicView",
    "UnexpectedAnswer",
    "Unreachable",
    "WindowDict",
    "job",
]
