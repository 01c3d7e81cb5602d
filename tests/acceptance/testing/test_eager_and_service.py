"""EagerJobs against a real service: the same calls get the same responses, and the same bodies are handled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from deferd import Client, Snooze, Worker
from deferd.client import BulkResult, Job
from deferd.testing import EagerJobs, ServiceForTests

ORDER: tuple[Literal["append", "keep", "replace"], ...] = ("append", "append", "keep", "replace", "append")


def seen_of(job: Job) -> tuple[Any, ...]:
    return job.state, job.body, job.items, job.is_follow_up, sorted(job.tags)


def counts_of(result: BulkResult) -> tuple[Any, ...]:
    return result.matched, result.done, dict(result.was), result.complete


def collect(client: Client) -> list[Any]:
    def append(body: Any, **options: Any) -> tuple[Any, ...]:
        return seen_of(client.put("digest", body, id="a", on_conflict="append", delay=60, **options))

    seen: list[Any] = [append(number, tags=["x"], max_wait=600) for number in range(3)]
    client.put("plain", "first", id="p", delay=60)
    seen.append(seen_of(client.put("plain", "second", id="p", on_conflict="append", delay=60)))
    seen.append(seen_of(client.put("plain", "new", id="p", on_conflict="replace", if_reserved="after", delay=60)))
    statuses = client.put_batch(
        [
            {"topic": "plain", "id": "p", "on_conflict": on_conflict, "delay": 60}
            for on_conflict in ("reject", "keep", "replace", "append")
        ]
    )
    return [*seen, [(result.status, result.code) for result in statuses]]


def act_on_many(client: Client) -> list[Any]:
    for number in range(4):
        client.put(f"mail.{number % 2}", id=f"j{number}", delay=60, tags=["u"] if number else [])
    return [
        counts_of(client.cancel_all(tag="u", dry_run=True)),
        counts_of(client.reschedule_all(tag="u", by=60, request_id="r")),
        counts_of(client.reschedule_all(tag="u", by=60, request_id="r")),
        *(counts_of(client.reschedule_all(tag="u", delay=60, limit=limit)) for limit in (2, 3, 4)),
        counts_of(client.cancel_all(tag="u", topics="mail.1")),
        counts_of(client.cancel_all(ids=[("mail.0", "j0"), ("mail.0", "j1")])),
        counts_of(client.cancel_all(state="delayed", topics=["mail.*"], limit=5)),
    ]


@pytest.mark.parametrize("calls", [collect, act_on_many])
def test_the_same_calls_get_the_same_responses(
    deferd_service: ServiceForTests, calls: Callable[[Client], list[Any]]
) -> None:
    with deferd_service.client() as client:
        assert calls(EagerJobs().client) == calls(client)


class Program:
    """A worker whose handler puts jobs under the id of the one that it handles."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.bodies: list[Any] = []
        self.responses: list[Any] = []
        self.client: Client

        @self.worker.handler("sync")
        def sync(body: Any) -> None:
            self.bodies.append(body)
            if len(self.bodies) > 2:
                return
            for number, on_conflict in enumerate(ORDER):
                put = self.client.put("sync", number, id="a", on_conflict=on_conflict, if_reserved="after")
                self.responses.append(seen_of(put))
            if len(self.bodies) == 1:
                raise Snooze(1)


@pytest.mark.slow
def test_the_same_follow_ups_are_handled(deferd_service: ServiceForTests) -> None:
    eager = Program()
    jobs = EagerJobs(eager.worker)
    eager.client = jobs.client
    jobs.client.put("sync", "first", id="a")
    jobs.run_delayed()

    real = Program()
    with deferd_service.client() as real.client:
        real.client.put("sync", "first", id="a")
        for _ in range(4):
            deferd_service.run_until_idle(real.worker)
            deferd_service.clock.advance(seconds=1)
    assert eager.responses == real.responses
    assert eager.bodies == real.bodies
    assert len(real.bodies) == 3
