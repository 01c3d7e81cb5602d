"""Calls to the service, as a client makes them, and what is asked of their answers."""

from __future__ import annotations

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
    """A client of the service with a topic of the test's own. Calls that must succeed say so themselves."""

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
        """Put a job that the topic does not have yet; it comes back as a look would show it."""
        named = {} if job_id is None else {"id": job_id}
        job = ok(await self.post("/jobs", json={"topic": self.topic, **named, **fields}), 201)
        assert job.pop("durability") in {"memory", "fsync", fields.get("durability")}
        return job

    async def pop(self, **query: Any) -> list[Json]:
        """Pop; without a `wait` the answer comes at once."""
        answer = await self.get(self.topic_path("pop"), params={"wait": 0, **query})
        jobs: list[Json] = ok(answer)["jobs"]
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

    async def look(self, job_id: str) -> Json:
        return ok(await self.get(self.job_path(job_id)))

    async def has_job(self, job_id: str) -> bool:
        return (await self.get(self.job_path(job_id))).status_code == 200

    async def counts(self) -> dict[str, int]:
        """Jobs by state; a topic that does not exist has none."""
        answer = await self.get(self.topic_path())
        if answer.status_code == 404:
            return {}
        counts: dict[str, int] = ok(answer)["counts"]
        return {state: count for state, count in counts.items() if count}


def ok(answer: httpx.Response, status: int = 200) -> Json:
    """The JSON of an answer that must be well."""
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "application/json"
    members: Json = answer.json()
    return members


def problem(answer: httpx.Response, status: int, code: str) -> Json:
    """The members of an answer that must be this problem."""
    assert answer.status_code == status, answer.text[:500]
    assert answer.headers["content-type"] == "application/problem+json"
    members: Json = answer.json()
    assert members["code"] == code, answer.text[:500]
    assert members["status"] == status
    assert {"type", "title", "detail"} <= members.keys()
    assert ("retry-after" in answer.headers) is (status in (429, 503))
    return members


def refusal(answer: httpx.Response, field: str) -> str:
    """The message by which a validation problem refuses `field`, and nothing else."""
    (fault,) = problem(answer, 422, "validation")["errors"]
    assert fault["field"] == field
    message: str = fault["message"]
    return message


def moment(text: str) -> float:
    """An instant of an answer, in seconds since the epoch."""
    assert _INSTANT.fullmatch(text), text
    return datetime.fromisoformat(text).timestamp()


def seconds_from_now(text: str) -> float:
    """How far ahead an instant of an answer is. The store of these tests runs on this machine's clock."""
    return moment(text) - time.time()
