"""Jobs for the tests of their pages."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import httpx

from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess

SECRETS = ("hunter22-secret", "tok_4111", "990077")
"""Values of masked fields, in bodies and in texts of errors."""


def call(service: ServiceProcess, method: str, path: str, body: object = None, token: str | None = None) -> Any:
    """The JSON of a response that must be good."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    response = httpx.request(method, f"{service.url}{path}", json=body, headers=headers, timeout=10, verify=NO_TLS)
    assert response.status_code < 300, response.text
    return response.json() if response.content else None


class Producer:
    """Puts and fails jobs as programs do."""

    def __init__(self, url: str, topic: str, token: str | None = None) -> None:
        self.topic = topic
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=10, verify=NO_TLS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.http.close()

    def put(self, *ids: str, **fields: Any) -> None:
        """Put jobs with these ids."""
        jobs = [{"topic": self.topic, "id": job_id, **fields} for job_id in ids]
        results = self.http.post("/jobs/batch", json={"jobs": jobs}).raise_for_status().json()["results"]
        assert {result["status"] for result in results} == {201}, results

    def fail(self, job_id: str, error: str, *, dead: bool = False, **fields: Any) -> None:
        """Put a job that a consumer releases or buries with this error."""
        self.put(job_id, **fields)
        [popped] = self.pop()
        verb, more = ("bury", {}) if dead else ("release", {"delay": 500})
        body = {"receipt": popped["receipt"], "error": error, **more}
        self.http.post(f"/jobs/{self.topic}/{job_id}/{verb}", json=body).raise_for_status()

    def pop(self, count: int = 1) -> list[dict[str, Any]]:
        """Pop jobs as consumer `w1`."""
        path = f"/topics/{self.topic}/pop?count={count}&wait=1&consumer=w1"
        jobs: list[dict[str, Any]] = self.http.post(path).raise_for_status().json()["jobs"]
        return jobs

    def get(self, job_id: str) -> dict[str, Any] | None:
        """The job; None without one."""
        response = self.http.get(f"/jobs/{self.topic}/{job_id}")
        return None if response.status_code == 404 else response.json()

    def counts(self) -> dict[str, int]:
        """The jobs in each state."""
        counts: dict[str, int] = self.http.get(f"/topics/{self.topic}").raise_for_status().json()["counts"]
        return counts
