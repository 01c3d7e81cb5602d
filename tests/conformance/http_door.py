"""HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx

from tests.conformance.door import Door, Job, Refused, Result

_STATUSES = {
    "job_not_found": 404,
    "topic_not_found": 404,
    "job_exists": 409,
    "job_reserved": 409,
    "receipt_stale": 409,
    "job_cancelled": 410,
    "payload_too_large": 413,
    "topic_full": 429,
    "schedule_not_found": 404,
    "schedule_exists": 412,
    "calendar_not_found": 404,
    "task_not_found": 404,
    "batch_not_found": 404,
    "batch_sealed": 409,
}


class HttpDoor(Door):
    """Requests of the HTTP API."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def _call(self, method: str, path: str, body: Any = None, *, headers: Any = None, **query: Any) -> Any:
        params = {name: value for name, value in query.items() if value is not None}
        response = self._http.request(method, path, json=body, params=params, headers=headers)
        found = response.json()
        if response.is_success:
            return found
        assert response.headers["content-type"] == "application/problem+json"
        assert found["status"] == response.status_code == _STATUSES.get(found["code"], 422)
        assert not found["code"].startswith("job_") or {"topic", "id"} <= found.keys()
        raise Refused(found["code"], found["detail"])

    def _job(self, job_id: str, verb: str = "") -> str:
        return f"/jobs/{self.topic}/{job_id}{verb and '/'}{verb}"

    def _topic(self, verb: str = "") -> str:
        return f"/topics/{self.topic}{verb and '/'}{verb}"

    def _of_topic(self, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{"topic": self.topic, **job} for job in jobs]

    def put(self, job_id: str | None = "a", body: Any = None, *, topic: str | None = None, **fields: Any) -> Job:
        named = {} if job_id is None else {"id": job_id}
        return Job.of(self._call("POST", "/jobs", {"topic": topic or self.topic, **named, "body": body, **fields}))

    def put_batch(self, jobs: Sequence[Mapping[str, Any]]) -> list[Result]:
        return [*map(Result.of, self._call("POST", "/jobs/batch", {"jobs": self._of_topic(jobs)})["results"])]

    def pop(self, count: int = 1, *, topics: Sequence[str] = (), wait: float = 0, **query: Any) -> list[Job]:
        path = f"/topics/{','.join(topics or [self.topic])}/pop"
        return [*map(Job.of, self._call("POST", path, count=count, wait=wait, **query)["jobs"])]

    def get(self, job_id: str = "a") -> Job:
        return Job.of(self._call("GET", self._job(job_id)))

    def wait(self, job_id: str = "a", *, seconds: float = 60, until: str = "end", after: float | None = None) -> Job:
        since = None if after is None else datetime.fromtimestamp(after, UTC).isoformat()
        return Job.of(self._call("GET", self._job(job_id), wait=seconds, until=until, after=since))

    def waits(self) -> int:
        return waits_in(self._http.get("/metrics").text)

    def change(self, job_id: str, **fields: Any) -> Job:
        return Job.of(self._call("PATCH", self._job(job_id), fields))

    def cancel(self, job_id: str, *, if_reserved: str = "cancel", follow_up: str = "cancel") -> str:
        cancelled = self._call("DELETE", self._job(job_id), if_reserved=if_reserved, follow_up=follow_up)
        was: str = cancelled.pop("was")
        assert cancelled == {"topic": self.topic, "id": job_id, "state": "cancelled"}
        return was

    def cancel_batch(self, items: Sequence[Mapping[str, Any]]) -> list[Result]:
        return [*map(Result.of, self._call("POST", self._topic("cancel"), {"jobs": items})["results"])]

    def _end(self, verb: str, job_id: str, receipt: str | None, **fields: Any) -> Any:
        given = {name: value for name, value in {"receipt": receipt, **fields}.items() if value is not None}
        return self._call("POST", self._job(job_id, verb), given or None)

    def finish(
        self, job_id: str, receipt: str | None = None, *, result: Any = None, put: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        finished = self._end("finish", job_id, receipt, result=result, put=self._of_topic(put) or None)
        assert {"topic": self.topic, "id": job_id, "state": "finished"}.items() <= finished.items()

    def release(self, job_id: str, receipt: str | None = None, **fields: Any) -> Job:
        return Job.of(self._end("release", job_id, receipt, **fields))

    def touch(
        self, job_id: str, receipt: str | None = None, *, ttr: float | None = None, progress: Any = None
    ) -> float:
        touched = self._end("touch", job_id, receipt, ttr=ttr, progress=progress)
        assert touched.keys() == {"reserved_until"}
        return datetime.fromisoformat(touched["reserved_until"]).timestamp()

    def bury(self, job_id: str, receipt: str | None = None, *, error: str | None = None) -> None:
        assert self._end("bury", job_id, receipt, error=error) == {"state": "dead"}

    def on_deliveries(
        self, verb: str, items: Sequence[Mapping[str, Any]], *, consumer: str | None = None
    ) -> list[Result]:
        body = {"jobs": items} if consumer is None else {"jobs": items, "consumer": consumer}
        return [*map(Result.of, self._call("POST", self._topic(verb), body)["results"])]

    def set_topic(self, **settings: Any) -> None:
        self._call("PUT", self._topic(), {"partitions": self.partitions, **settings})

    def view(self) -> Mapping[str, Any]:
        view: Mapping[str, Any] = self._call("GET", self._topic())
        return view

    def pause(self) -> None:
        assert self._call("POST", self._topic("pause"))["paused"]

    def resume(self) -> None:
        assert not self._call("POST", self._topic("resume"))["paused"]

    def groups(self, order: str | None = None) -> list[Mapping[str, Any]]:
        groups, cursor = [], None
        while True:
            page = self._call("GET", self._topic("groups"), order=order, limit=2, cursor=cursor)
            groups += page["groups"]
            cursor = page["next_cursor"]
            if cursor is None:
                return groups

    def pause_group(self, group: str, *, resume: bool = False) -> Mapping[str, Any]:
        verb = "resume" if resume else "pause"
        found: Mapping[str, Any] = self._call("POST", self._topic(f"groups/{group}/{verb}"))
        return found

    def jobs(self, state: str | None = None) -> list[Job]:
        jobs, cursor = [], None
        while True:
            page = self._call("GET", self._topic("jobs"), state=state, cursor=cursor)
            jobs += page["jobs"]
            if (cursor := page.get("next_cursor")) is None:
                return [*map(Job.of, jobs)]

    def redrive(self, ids: Sequence[str] | None = None, *, limit: int = 1000, **conditions: str) -> int:
        given = {"limit": limit} if ids is None else {"ids": ids}
        redriven: int = self._call("POST", self._topic("redrive"), {**given, **conditions})["redriven"]
        return redriven

    def purge(self, state: str | None = None, **conditions: str) -> int:
        removed: int = self._call("DELETE", self._topic(), state=state, **conditions)["removed"]
        return removed

    def preview(self, verb: str, **conditions: str) -> Job:
        if verb == "redrive":
            return previewed(self._call("POST", self._topic("redrive"), {**conditions, "dry_run": True}))
        return previewed(self._call("DELETE", self._topic(), **conditions, dry_run="true"))

    def on_selected(self, verb: str, **call: Any) -> Job:
        return Job(self._call("POST", f"/jobs/{verb}", call))

    def begin_task(self, verb: str, **call: Any) -> Job:
        match verb:
            case "redrive":
                return Job.of(self._call("POST", self._topic("redrive"), {**call, "as_task": True}))
            case "purge":
                return Job.of(self._call("DELETE", self._topic(), **call, as_task="true"))
        return Job.of(self._call("POST", f"/jobs/{verb}", {**call, "as_task": True}))

    def task(self, task_id: str, verb: str = "") -> Job:
        return Job.of(self._call("DELETE" if verb else "GET", f"/tasks/{task_id}"))

    def put_schedule(self, *, only_new: bool = False, **fields: Any) -> Job:
        headers = {"if-none-match": "*"} if only_new else None
        body = {"topic": self.topic, **fields}
        return Job.of(self._call("PUT", f"/schedules/{self.topic}", body, headers=headers))

    def schedule(self, verb: str = "") -> Job:
        path = f"/schedules/{self.topic}"
        if verb in {"", "delete"}:
            return Job.of(self._call("DELETE" if verb else "GET", path))
        return Job.of(self._call("POST", f"{path}/{verb}"))

    def preview_runs(self, count: int, **definition: Any) -> list[str]:
        if definition:
            found = self._call("POST", "/schedules/preview", {"topic": self.topic, **definition}, count=count)
        else:
            found = self._call("GET", f"/schedules/{self.topic}/preview", count=count)
        return [run["at"] for run in found["runs"]]

    def put_calendar(self, *windows: Mapping[str, Any]) -> None:
        self._call("PUT", f"/calendars/{self.topic}", {"windows": windows})

    def calendar(self) -> list[Mapping[str, Any]]:
        windows: list[Mapping[str, Any]] = self._call("GET", f"/calendars/{self.topic}")["windows"]
        return windows

    def delete_calendar(self) -> None:
        self._call("DELETE", f"/calendars/{self.topic}")

    def set_batch(self, name: str, **fields: Any) -> Job:
        return Job.of(self._call("PUT", f"/batches/{name}", fields))

    def batch(self, name: str) -> Job:
        return Job.of(self._call("GET", f"/batches/{name}"))

    def batches(self) -> list[str]:
        names, cursor = [], None
        while True:
            page = self._call("GET", "/batches", limit=2, cursor=cursor)
            names += [batch["name"] for batch in page["batches"]]
            if (cursor := page["next_cursor"]) is None:
                return names

    def delete_batch(self, name: str, *, if_reserved: str = "cancel") -> int:
        deleted = self._call("DELETE", f"/batches/{name}", if_reserved=if_reserved)
        assert deleted["deleted"]
        cancelled: int = deleted["cancelled"]
        return cancelled

    def pass_time(self, seconds: float) -> None:
        self._call("POST", "/testing/clock", {"advance": seconds})


def previewed(response: Mapping[str, Any]) -> Job:
    """A preview with the ids of its samples."""
    return Job({**response, "samples": {sample["id"] for sample in response["samples"]}})


def waits_in(metrics: str) -> int:
    """How many calls wait for jobs, by the metrics of a service."""
    return round(sum(map(float, re.findall(r"^deferd_job_waits(?:\{.*\})? (\S+)", metrics, re.MULTILINE))))
