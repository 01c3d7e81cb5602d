"""The worker: takes jobs from a deferd service, runs the handlers of a program on them, and reports how they went."""

from __future__ import annotations

from deferd.worker.context import Context
from deferd.worker.outcomes import Reject, Retry
from deferd.worker.worker import Worker

__all__ = ["Context", "Reject", "Retry", "Worker"]
