"""The methods of both clients, as coroutines: one for each operation of the HTTP API, in groups by what people do.

A group is a class in a module of its own. There a method makes its request, or uses a function beside it, if others
make the same request.
"""

from __future__ import annotations

from deferd.client.batching import Batching
from deferd.client.bulk import BulkMethods
from deferd.client.calendars import CalendarMethods
from deferd.client.consuming import ConsumerMethods
from deferd.client.events import EventMethods
from deferd.client.health import HealthMethods
from deferd.client.inspection import InspectionMethods
from deferd.client.joined_calls import JoinedCalls
from deferd.client.producing import ProducerMethods
from deferd.client.push import PushMethods
from deferd.client.requests import ApiRequest, Result
from deferd.client.schedules import ScheduleMethods
from deferd.client.sender import Sender
from deferd.client.spans import NO_SPANS, Spans
from deferd.client.tasks import TaskMethods
from deferd.client.topics import TopicMethods
from deferd.client.transport import StreamingTransport


class ApiMethods(
    ProducerMethods,
    ConsumerMethods,
    TopicMethods,
    BulkMethods,
    TaskMethods,
    ScheduleMethods,
    CalendarMethods,
    PushMethods,
    EventMethods,
    InspectionMethods,
    HealthMethods,
):
    """The operations of the HTTP API. Each raises the error that the service names, or CallFailed.

    The base class of AsyncClient; `Client` runs the same coroutines over a blocking transport.
    """

    def __init__(
        self, transport: StreamingTransport, sender: Sender, batching: Batching | None = None, spans: Spans = NO_SPANS
    ) -> None:
        self._transport = transport
        self._sender = sender
        self._calls = JoinedCalls(sender, batching)
        self.spans = spans

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URL of the service, or those of its replicas."""
        return self._sender.urls

    async def send(self, call: ApiRequest[Result], *, retry_for: float | None = None) -> Result:
        """Send a request made by `deferd.client.requests.request_for`, for operations that have no method.

        `retry_for` overrides that of the client.
        """
        return await self._sender.send(call, retry_for_s=retry_for)
