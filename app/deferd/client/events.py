"""Events of jobs, as they happen: the methods of both clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from deferd.client.errors import NoAnswer, UnexpectedAnswer
from deferd.client.http1 import MalformedResponse, ServerSentEvent
from deferd.client.request_body import listed, without_none
from deferd.client.requests import ApiRequest, reader_of, request_for
from deferd.client.sender import RetryPolicy, Sender
from deferd.client.transport import ResponseStream, StreamingTransport
from deferd.contract.clocks import monotonic_s
from deferd.contract.errors import DeferdError
from deferd.contract.operations import events as operations
from deferd.contract.operations.events import Dropped, JobEvent

_KEEP_ALIVE_S = 15.0
"""The service sends something at least so often."""
_READ_S = 2 * _KEEP_ALIVE_S
_RETRY = RetryPolicy()
_PAUSE_S = 0.1


def events(topics: Sequence[str] | str | None, last: int | None, last_event_id: str | None) -> ApiRequest[None]:
    """`GET /events`."""
    query = without_none(topics=listed(topics), last=last)
    headers = None if last_event_id is None else {"last-event-id": last_event_id}
    return request_for(operations.STREAM_EVENTS, query=query, headers=headers).reading(_no_stream)


def _no_stream(_content: bytes) -> None:
    raise ValueError("it is no stream of events")


class EventMethods:
    """The methods for events."""

    _sender: Sender
    _transport: StreamingTransport

    async def latest_events(
        self, topics: Sequence[str] | str | None = None, *, limit: int | None = None
    ) -> list[JobEvent]:
        """The last events that topics have kept, the latest first; at most 100 by default."""
        query = without_none(topics=listed(topics), limit=limit)
        return [*(await self._sender.send(request_for(operations.LIST_EVENTS, query=query))).events]

    async def events(
        self,
        topics: Sequence[str] | str | None = None,
        *,
        last: int = 0,
        last_event_id: str | None = None,
        retry_for: float | None = None,
        on_refusal: Callable[[DeferdError], None] | None = None,
    ) -> AsyncIterator[JobEvent]:
        """Follow what happens to the jobs of topics that keep events, without end.

        `topics` are names or patterns, by default all. It begins with the last `last` events of each topic, or behind
        `last_event_id`. When the connection is lost, or the service stops, it goes on at the next replica behind the
        last event; after `retry_for` seconds without any (by default those of the client) it raises the error. Each
        event comes once; an event `dropped` says that some are missing. `on_refusal` gets each error by which a service
        refuses the stream for now, such as too many streams, before it is tried again.

        Raises:
            DeferdError: the service refused, such as Forbidden or InvalidInput.
            NoAnswer: the service was unreachable for `retry_for` seconds.
        """
        feed = _Feed(
            self._transport,
            self._sender,
            topics,
            last=last,
            last_event_id=last_event_id,
            retry_for_s=retry_for,
            on_refusal=on_refusal,
        )
        try:
            while True:
                for event in await feed.read():
                    yield event
        finally:
            await feed.close()


class _Feed:
    """A stream that is opened again whenever it ends."""

    def __init__(
        self,
        transport: StreamingTransport,
        sender: Sender,
        topics: Sequence[str] | str | None,
        *,
        last: int,
        last_event_id: str | None,
        retry_for_s: float | None,
        on_refusal: Callable[[DeferdError], None] | None,
    ) -> None:
        self._transport = transport
        self._urls = sender.urls
        self._retry_for_s = sender.retry_for_s if retry_for_s is None else retry_for_s
        self._on_refusal = on_refusal
        self._topics, self._last, self._last_event_id = topics, last, last_event_id
        self._stream: ResponseStream | None = None
        self._attempts = self._failures = 0
        self._down_since_s: float | None = None
        self._numbers: dict[str, int] = {}
        """The number of the last event of each topic: after a reconnection, events since the last id come again."""

    async def read(self) -> list[JobEvent]:
        """The next events, maybe none."""
        url = self._urls[self._attempts % len(self._urls)]
        request = events(self._topics, None if self._last_event_id else self._last or None, self._last_event_id)
        try:
            if self._stream is None:
                self._stream = await self._transport.open_stream(url, request)
            messages = await self._stream.read(_READ_S)
        except EOFError:  # the service stops, or has restarted
            await self._lost()
            await self._transport.sleep(_PAUSE_S)
            return []
        except (OSError, MalformedResponse) as error:
            await self._lost()
            return await self._wait(NoAnswer(f"GET {url}/events: {str(error) or type(error).__name__}"))
        except DeferdError as error:
            await self._lost()
            if not _RETRY.is_transient(error):
                raise
            return await self._wait(error)
        self._failures, self._down_since_s = 0, None
        return [event for message in messages if (event := self._read_message(message)) is not None]

    async def _wait(self, error: DeferdError) -> list[JobEvent]:
        """Wait for the next attempt. Raises the error when it has lasted too long."""
        pause_s = _RETRY.pause_s(self._failures, error)
        self._failures += 1
        now_s = monotonic_s()
        self._down_since_s = self._down_since_s or now_s
        if now_s + pause_s > self._down_since_s + self._retry_for_s:
            raise error
        if self._on_refusal is not None and not isinstance(error, NoAnswer):
            self._on_refusal(error)
        await self._transport.sleep(pause_s)
        return []

    async def _lost(self) -> None:
        self._attempts += 1
        await self.close()

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    def _read_message(self, message: ServerSentEvent) -> JobEvent | None:
        if message.id is not None:
            self._last_event_id = message.id
        if not message.data:
            return None
        event = _read_event(message)
        topic, number = event.topic, event.number
        if topic is None:
            return event
        if number is None:  # some are missing, or the numbers begin again
            self._numbers.pop(topic, None)
            return event
        if number <= self._numbers.get(topic, 0):
            return None
        self._numbers[topic] = number
        return event


def _read_event(message: ServerSentEvent) -> JobEvent:
    try:
        event = reader_of(Dropped if message.event == "dropped" else JobEvent)(message.data.encode())
    except ValueError:
        raise UnexpectedAnswer(200, "the response is not one of a deferd service: it has no event") from None
    return msgspec.structs.replace(event, event=message.event)
