"""An error of each kind that the service responds with."""

from __future__ import annotations

from deferd.api import problem_details
from deferd.api.unsent_bytes import TooManyUnsentBytes
from deferd.contract import errors
from deferd.engine.event_streams import TooManyStreams

OF_THE_CONTRACT: list[errors.DeferdError] = [
    errors.InvalidInput([errors.FieldError(("body", "jobs", 3, "ttr"), "must be at least 0.1", 0.01)]),
    errors.PayloadTooLarge(1000),
    errors.Unauthorized("a key is needed"),
    errors.Forbidden("this key may only pop"),
    errors.JobNotFound("orders", "a", "job 'a' is done"),
    errors.TopicNotFound("orders"),
    errors.ScheduleNotFound("nightly"),
    errors.ScheduleExists("nightly"),
    errors.CalendarNotFound("office"),
    errors.BatchNotFound("import-42"),
    errors.BatchSealed("import-42"),
    errors.PushNotFound("orders.close"),
    errors.TopicPushed("orders.close"),
    errors.TaskNotFound("5f0c9a3be7d2481c"),
    errors.JobExists("orders", "a"),
    errors.JobReserved("orders", "a"),
    errors.JobExists("orders", "a", "replicated:1"),
    errors.JobExists("orders", "a", state="finished", until_ms=1_900_000_000_123),
    errors.DurabilityUnavailable("fsync", ["memory"], "durability 'fsync' is not available: it is off"),
    errors.ReceiptStale("orders", "a"),
    errors.JobCancelled("orders", "a"),
    errors.DifferentShard("orders", "topic 'orders' is in another shard"),
    errors.NotYetAvailable("field priority needs format 2 of the store"),
    errors.TooLate("the instant was over 0.200 s ago"),
    errors.TopicFull("orders", 7),
    errors.RateLimited("slowly", 9),
    errors.StoreUnavailable("the store is loading its data", 3),
]
"""The client raises them too."""
OF_HTTP: list[errors.DeferdError] = [
    problem_details.UnknownPath("/nowhere"),
    problem_details.MethodNotAllowed("PUT", ["GET", "POST"]),
    problem_details.UnsupportedMediaType("Content-Type is 'text/plain'"),
    problem_details.BadRequest(),
    problem_details.RequestTimeout(),
    problem_details.UriTooLong(),
    problem_details.HalfClosed(),
    problem_details.UnsupportedTransferCoding(),
    problem_details.HeadTooLarge(),
    problem_details.TooManyConnections("10 connections are open already"),
    TooManyStreams("this process serves 100 streams of events already"),
    TooManyUnsentBytes("clients have not read 10 bytes of their responses"),
]
"""Clients have no class for them: they use the status, or never get them from a deferd service."""
