"""Whether the service and its store are well: audits, repairs, readiness and metrics. The methods of both clients."""

from __future__ import annotations

from deferd.client.requests import ready, request_for
from deferd.client.sender import Sender
from deferd.client.topics import MANY_JOBS_S
from deferd.contract.errors import DeferdError
from deferd.contract.operations import health
from deferd.contract.operations.topics import AUDIT_TOPIC, REPAIR_TOPIC
from deferd.contract.responses.audits import StoreAudit, TopicAudit


class HealthMethods:
    """The checks of a service, a part of ApiMethods."""

    _sender: Sender

    async def audit(self, topic: str) -> TopicAudit:
        """Check the consistency of everything that the store holds of a topic, without changing it.

        The time it takes grows with the number of jobs. Load on the topic causes no false findings. Raises
        TopicNotFound if the store holds nothing of the topic.
        """
        return await self._sender.send(request_for(AUDIT_TOPIC, topic, wait_s=MANY_JOBS_S))

    async def repair(self, topic: str) -> TopicAudit:
        """Check a topic like `audit` and repair the findings. Returns what was repaired."""
        # Not repeatable: the second response would not say what the first repaired.
        return await self._sender.send(request_for(REPAIR_TOPIC, topic, wait_s=MANY_JOBS_S))

    async def audit_store(self) -> StoreAudit:
        """Check the store outside single topics, and look for topics that are missing from the list of topics."""
        return await self._sender.send(request_for(health.AUDIT_STORE, wait_s=MANY_JOBS_S))

    async def repair_store(self) -> StoreAudit:
        """Check like `audit_store` and repair the findings. Unlisted topics are repaired by `repair` of each."""
        # Not repeatable, as the repair of a topic.
        return await self._sender.send(request_for(health.REPAIR_STORE, wait_s=MANY_JOBS_S))

    async def is_ready(self) -> bool:
        """Whether the service responds and is ready to work. Not retried."""
        try:
            await self._sender.send(ready(), retry_for_s=0)
        except DeferdError:
            return False
        return True

    async def metrics(self) -> str:
        """The service's metrics in the text format of Prometheus."""
        return await self._sender.send(request_for(health.GET_METRICS).reading(bytes.decode))
