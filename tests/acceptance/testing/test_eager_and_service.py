"""EagerJobs against a real service: the same calls get the same responses."""

from __future__ import annotations

from typing import Any, Literal

from deferd import Client
from deferd.client import Job
from deferd.testing import EagerJobs, ServiceForTests

POLICIES: tuple[Literal["reject", "keep", "replace"], ...] = ("reject", "keep", "replace")


def seen_of(job: Job) -> tuple[Any, ...]:
    return job.state, job.body, sorted(job.tags)


def calls(client: Client) -> list[Any]:
    seen: list[Any] = [seen_of(client.put("plain", "first", id="p", delay=60, tags=["x"]))]
    seen += [seen_of(client.put("plain", one, id="p", on_conflict=one, delay=60)) for one in POLICIES[1:]]
    results = client.put_batch([{"topic": "plain", "id": "p", "on_conflict": one, "delay": 60} for one in POLICIES])
    seen += [(result.status, result.code) for result in results]
    return [*seen, client.cancel("plain", "p").was]


def test_the_same_calls_get_the_same_responses(deferd_service: ServiceForTests) -> None:
    with deferd_service.client() as client:
        assert calls(EagerJobs().client) == calls(client)
