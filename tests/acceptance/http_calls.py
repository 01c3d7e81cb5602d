"""Calls to the service over HTTP, and checks of their responses."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from datetime import datetime
from typing import Any

import httpx

Json = dict[str, Any]
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""`verify=NO_TLS` where no call uses TLS: httpx would load all certificate authorities for each client, in 30 ms."""
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Http:
    """A client of the service with a topic of the test's own. Helpers assert that their calls succeed."""

    def __init__(self, client: httpx.AsyncClient, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.get = client.get
        self.post = client.post
        self.put = client.put
        self.patch = client.patch
        self.delete = client.delete

    def job_path(self, job_id: str, verb: str = "") -> str:
        return f"/jobs/{self.topic}/{job_id}{verb and '/'}{verb}"

    def topic_path(self, verb: str = "") -> str:
        return f"/topics/{self.topic}{verb and '/'}{verb}"

    async def put_job(self, job_id: str | None = None, **fields: Any) -> Json:
        """Put a job that the topic does not have yet; returns it as GET shows it."""
        named = {} if job_id is None else {"id": job_id}
        job = ok(await self.post("/jobs", json={"topic": self.topic, **named, **fields}), 201)
        assert job.pop("durability") in {"memory", "fsync", fields.get("durability")}
        return job

    async def pop(self, **query: Any) -> list[Json]:
        """Pop; without a `wait` the response comes at once."""
        response = await self.get(self.topic_path("pop"), params={"wait": 0, **query})
        jobs: list[Json] = ok(response)["jobs"]
        return jobs

    async def pop_one(self, **query: Any) -> Json:
        """Pop the job that is there, or comes within five seconds."""
        (job,) = await self.pop(**{"wait": 5, **query})
        return job

    async def reserve(self, job_id: str, **fields: Any) -> Json:
        """Put a job and pop it."""
        await self.put_job(job_id, **fields)
        job = await self.pop_one()
        assert job["id"] == job_id
        return job

    async def bury(self, job_id: str, **fields: Any) -> None:
        """Put a job, pop it and bury it."""
        await self.reserve(job_id, **fields)
        ok(await self.post(self.job_path(job_id, "bury"), json={"error": "no use"}))

    async def get_job(self, job_id: str) -> Json:
        return ok(await self.get(self.job_path(job_id)))

    async def has_job(self, job_id: str) -> bool:
        return (await self.get(self.job_path(job_id))).status_code == 200

    async def counts(self) -> dict[str, int]:
        """Jobs by state; a topic that does not exist has none."""
        response = await self.get(self.topic_path())
        if response.status_code == 404:
            return {}
        counts: dict[str, int] = ok(response)["counts"]
        return {state: count for state, count in counts.items() if count}

    async def ended(self, task_id: str) -> Json:
        """The task, once it has ended."""
        for _ in range(200):
            task = ok(await self.get(f"/tasks/{task_id}"))
            if task["state"] != "running":
                return task
            await asyncio.sleep(0.05)
        raise AssertionError("the task does not end")


def ok(response: httpx.Response, status: int = 200) -> Json:
    """The JSON of a response that must have this status."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/json"
    members: Json = response.json()
    return members


def problem(response: httpx.Response, status: int, code: str) -> Json:
    """The members of a response that must be this problem."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/problem+json"
    members: Json = response.json()
    assert members["code"] == code, response.text[:500]
    assert members["status"] == status
    assert {"type", "title", "detail"} <= members.keys()
    assert ("retry-after" in response.headers) is (status in (429, 503))
    return members


def refusal(response: httpx.Response, field: str) -> str:
    """The message by which a validation problem refuses `field`, and nothing else."""
    (field_error,) = problem(response, 422, "validation")["errors"]
    assert field_error["field"] == field
    message: str = field_error["message"]
    return message


def moment(text: str) -> float:
    """An instant of a response, in seconds since the epoch."""
    assert _INSTANT.fullmatch(text), text
    return datetime.fromisoformat(text).timestamp()


def seconds_from_now(text: str) -> float:
    """How far ahead an instant of a response is. The store of these tests runs on this machine's clock."""
    return moment(text) - time.time()
