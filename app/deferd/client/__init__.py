"""The client: talks to a deferd service over HTTP. It needs httpx and pydantic and nothing of the service."""

from __future__ import annotations

from deferd.client.asynchronous import AsyncClient
from deferd.client.blocking import Client
from deferd.client.failures import CallFailed, NoAnswer, UnexpectedAnswer, Unreachable
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

__all__ = [
    "AsyncClient",
    "CallFailed",
    "Cancelled",
    "Client",
    "Delivery",
    "FinishResult",
    "Job",
    "JobRef",
    "NoAnswer",
    "PutResult",
    "Released",
    "StoreAudit",
    "TopicAudit",
    "TopicPage",
    "TopicView",
    "UnexpectedAnswer",
    "Unreachable",
]
