"""The client: talks to a deferd service over HTTP. It needs httpx and pydantic and nothing of the service."""

from __future__ import annotations

from deferd.client.asynchronous import AsyncClient
from deferd.client.failures import CallFailed, CallRefused, NoAnswer
from deferd.client.jobs import Delivery, FinishResult, Job, PutResult

__all__ = ["AsyncClient", "CallFailed", "CallRefused", "Delivery", "FinishResult", "Job", "NoAnswer", "PutResult"]
