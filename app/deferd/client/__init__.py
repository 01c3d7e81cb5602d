"""The client: talks to a deferd service over HTTP. It needs httpx and pydantic and nothing of the service."""

from __future__ import annotations

from deferd.client.asynchronous import AsyncClient
from deferd.client.blocking import Client
from deferd.client.errors import CallFailed, NoAnswer, UnexpectedAnswer, Unreachable
from deferd.client.job_definition import AsyncJob, BlockingJob, BoundJob, JobDefinition, job
from deferd.client.jobs import (
    Cancelled,
    Delivery,
    FinishResult,
    Job,
    JobRef,
    PutResult,
    Released,
    StoreAudit,
    TopicAudit,
    TopicPage,
    TopicView,
)
from deferd.client.put_options import Backoff, PutDefaults, PutOptions

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "Backoff",
    "BlockingJob",
    "BoundJob",
    "CallFailed",
    "Cancelled",
    "Client",
    "Delivery",
    "FinishResult",
    "Job",
    "JobDefinition",
    "JobRef",
    "NoAnswer",
    "PutDefaults",
    "PutOptions",
    "PutResult",
    "Released",
    "StoreAudit",
    "TopicAudit",
    "TopicPage",
    "TopicView",
    "UnexpectedAnswer",
    "Unreachable",
    "job",
]
