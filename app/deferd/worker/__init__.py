"""The worker: pops jobs from a deferd service, runs a program's handlers on them and reports the outcomes."""

from __future__ import annotations

from deferd.worker.handlers import BatchContext, Context
from deferd.worker.outcomes import Reject, Retry, Snooze, Then
from deferd.worker.worker import Worker

__all__ = ["BatchContext", "Context", "Reject", "Retry", "Snooze", "Then", "Worker"]
