"""What is left out of responses that quote jobs, with an API that is a table."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from deferd.console.masked_reads import HIDDEN_ERROR, masked_read
from deferd.console.masks import MASKED, Masks
from deferd.engine.inspection.error_lines import normalized


class Refused(Exception):
    """As ApiRefused."""


class Api:
    """Responds from a table and keeps what was asked."""

    def __init__(self, responses: dict[str, Any]) -> None:
        self.responses = responses
        self.asked: list[str] = []

    async def read(self, path: str, query: bytes) -> bytes:
        self.asked.append(path)
        if path not in self.responses:
            raise Refused
        value = self.responses[path]
        shown = {name: inner for name, inner in value.items() if name != "body"} if query else value
        return json.dumps(shown).encode()


def read(responses: dict[str, Any], path: str, query: bytes = b"") -> tuple[Any, Api]:
    api = Api(responses)
    content = asyncio.run(masked_read(Masks(["password"]), api.read, Refused, path, query))
    return json.loads(content), api


def job(password: str, error: str | None, **more: Any) -> dict[str, Any]:
    body = {"password": password}
    return {"topic": "t", "body": body, "body_bytes": len(json.dumps(body)), "last_error": error, **more}


def group(error: str, *samples: str) -> dict[str, Any]:
    return {"topic": "t", "reason": "buried", "error": normalized(error), "samples": list(samples)}


def test_groups_of_dead_jobs_have_no_part_of_a_hidden_value() -> None:
    error = "no user hunter22-secret in 5 s"
    found, _ = read(
        {
            "/dead": {
                "groups": [group(error, "a"), group("SMTP 421", "b"), group("other 1", "gone"), group("x 1", "a")]
            },
            "/jobs/t/a": job("hunter22-secret", error),
            "/jobs/t/b": job("hunter22-secret", "SMTP 421"),
        },
        "/dead",
    )
    shown = [(one["error"], one["is_masked"]) for one in found["groups"]]
    assert shown == [(f"no user {MASKED} in * s", True), ("SMTP 421", False), (MASKED, True), (MASKED, True)]


def test_alerts_have_the_reason_in_place_of_the_error() -> None:
    alert = {
        "code": "dying", "text": "t: 3 dead in 1 h, all of them no user hunter*", "top_error": "no user hunter*",
        "top_reason": "attempts_exhausted",
    }  # fmt: skip
    found, _ = read({"/now": {"alerts": [alert, {"code": "late", "text": "late"}]}}, "/now")
    assert "hunter" not in str(found)
    texts = [one["text"] for one in found["alerts"]]
    assert texts == ["t: 3 dead in 1 h, all of them attempts exhausted with an error", "late"]


def test_rows_read_only_the_bodies_that_errors_may_quote_up_to_a_size() -> None:
    quiet, failed = job("hunter22", None, id="quiet"), job("hunter22", "no hunter22", id="failed")
    large = job("x" * 300_000, "timeout", id="large")
    jobs = [quiet, failed, large]
    page = {"jobs": [{name: value for name, value in one.items() if name != "body"} for one in jobs]}
    responses = {"/topics/t/jobs": page, **{f"/jobs/t/{one['id']}": one for one in jobs}}
    found, api = read(responses, "/topics/t/jobs", b"bodies=false")
    assert [row["last_error"] for row in found["jobs"]] == [None, f"no {MASKED}", MASKED]
    assert api.asked == ["/topics/t/jobs", "/jobs/t/failed"]


def test_a_job_whose_id_is_why_is_a_job() -> None:
    why = job("hunter22", "no hunter22")
    found, api = read({"/jobs/t/why": why}, "/jobs/t/why", b"bodies=false")
    assert found["last_error"] == f"no {MASKED}"
    assert set(api.asked) == {"/jobs/t/why"}


class OneRead(Api):
    """Refuses all but the first read, as a rate limit or a store that fails does."""

    async def read(self, path: str, query: bytes) -> bytes:
        if self.asked:
            raise Refused
        return await super().read(path, query)


def read_once(response: dict[str, Any], path: str, query: bytes = b"") -> Any:
    api = OneRead({path: response})
    return json.loads(asyncio.run(masked_read(Masks(["password"]), api.read, Refused, path, query)))


def test_why_has_no_errors_when_the_job_cannot_be_read() -> None:
    dead = {"code": "dead", "text": 'buried: "no hunter22"', "error": "no hunter22"}
    paused = {"code": "paused", "text": "paused for 1 h"}
    found = read_once({"state": "dead", "reasons": [dead, paused]}, "/jobs/t/a/why")
    assert found["reasons"] == [{"code": "dead", "text": MASKED, "error": MASKED}, paused]


def test_a_job_has_no_errors_when_its_body_cannot_be_read() -> None:
    log = [{"attempt": 1, "error": "no hunter22"}, {"attempt": 2}]
    found = read_once(job("hunter22", "no hunter22", attempts_log=log), "/jobs/t/a", b"bodies=false")
    assert "hunter22" not in str(found)
    assert (found["last_error"], found["attempts_log"][0]["error"]) == (MASKED, MASKED)


def test_activity_and_tasks_have_no_errors_of_filters() -> None:
    filters = ['{"error":"no hunter22","state":"dead"}', '{"state":"dead"}', '{"error":"no hunter22 and more…']
    changes = [*({"operation": "purge_topic", "filter": one} for one in filters), {"operation": "pause_topic"}]
    found, _ = read({"/activity": {"activity": changes, "next_cursor": None}}, "/activity", b"limit=100")
    shown = [one.get("filter") for one in found["activity"]]
    assert shown == [f'{{"error":"{MASKED}","state":"dead"}}', '{"state":"dead"}', MASKED, None]
    task = {"id": "a", "select": {"error": "no hunter22", "reason": "buried"}, "cutoff": "C"}
    hidden = {"id": "a", "select": {"error": MASKED, "reason": "buried"}, "cutoff": "C"}
    assert read({"/tasks/a": task}, "/tasks/a")[0] == hidden
    assert read({"/tasks": {"tasks": [task]}}, "/tasks", b"limit=100")[0] == {"tasks": [hidden]}


def test_events_have_no_errors() -> None:
    event = {"event": "dead", "id": "a", "error": "no hunter22"}
    found, _ = read({"/events/latest": {"events": [event, {"event": "put"}]}}, "/events/latest")
    assert found["events"] == [{**event, "error": HIDDEN_ERROR}, {"event": "put"}]
