"""An action on many jobs touches what its preview counted and what its filter says, and nothing else."""

from __future__ import annotations

import os
import signal
import threading
import time

import httpx
import pytest

from tests.acceptance.console.job_pages import Producer
from tests.acceptance.console.test_console_jobs_http import fields_of, seen
from tests.acceptance.service_process import ServiceProcess

FROZEN_S = 1.2


@pytest.mark.slow
def test_a_job_put_after_the_preview_is_left_alone_when_the_store_had_stood_still(
    without_keys: ServiceProcess, browser_like: httpx.Client, jobs: Producer
) -> None:
    """The console's own look at the store's clock is half a second ahead then, for ten seconds."""
    path = f"/console/topics/{jobs.topic}"
    jobs.put("a", "b", delay=3600)
    store = without_keys.store_pid()
    assert store is not None
    os.kill(store, signal.SIGSTOP)
    try:
        visit = threading.Thread(target=browser_like.get, args=(f"{path}/jobs?state=delayed",))
        visit.start()
        time.sleep(FROZEN_S)
    finally:
        os.kill(store, signal.SIGCONT)
    visit.join()
    preview = browser_like.post(f"{path}/bulk/preview", data={"action": "cancel", "state": "delayed", "all": "1"})
    jobs.put("late", delay=3600)
    time.sleep(FROZEN_S)
    done = browser_like.post(f"{path}/bulk", data=fields_of(preview.text, f"{path[1:]}/bulk"))
    assert "2 jobs" in seen(browser_like, done)
    assert [job_id for job_id in ("a", "b", "late") if jobs.get(job_id)] == ["late"]


@pytest.mark.parametrize("sent", [{"ids": "a"}, {"all": "1"}], ids=["selected", "all"])
def test_a_preview_that_is_corrected_keeps_its_cutoff(browser_like: httpx.Client, sent: dict[str, str]) -> None:
    topic = f"corrected-{next(iter(sent))}"
    with Producer(str(browser_like.base_url), topic) as jobs:
        jobs.put("a", delay=600)
        form = {"action": "reschedule", "state": "delayed", **sent}
        preview = browser_like.post(f"/console/topics/{topic}/bulk/preview", data=form)
        jobs.put("late", delay=600)
        fields = fields_of(preview.text, f"console/topics/{topic}/bulk")
        again = browser_like.post(f"/console/topics/{topic}/bulk", data={**fields, "when": "soon"})
        assert (again.status_code, "Say when" in again.text) == (422, True)
        assert fields_of(again.text, f"console/topics/{topic}/bulk")["cutoff"] == fields["cutoff"]
        done = browser_like.post(f"/console/topics/{topic}/bulk", data={**fields, "when": "now"})
        assert "1 job rescheduled." in seen(browser_like, done)
        assert (jobs.get("late") or {})["state"] == "delayed"


@pytest.mark.parametrize("value", ["", "tomorow"])
def test_an_action_without_the_cutoff_of_a_preview_does_nothing(browser_like: httpx.Client, value: str) -> None:
    with Producer(str(browser_like.base_url), "no-cutoff") as jobs:
        jobs.put("a", delay=600)
        for action in ("cancel", "purge"):
            data = {"action": action, "state": "delayed", "cutoff": value}
            assert browser_like.post("/console/topics/no-cutoff/bulk", data=data).status_code == 422
        assert jobs.get("a") is not None
        browser_like.post("/console/topics/no-cutoff/jobs/a/cancel")


@pytest.mark.parametrize(
    ("field", "value"), [("due_before", "tomorow"), ("due_after", "2030-13-01"), ("state", "delay")]
)
@pytest.mark.parametrize("action", ["cancel", "purge"])
def test_a_filter_that_cannot_be_read_does_nothing(
    browser_like: httpx.Client, field: str, value: str, action: str
) -> None:
    topic = f"bad-{field}-{action}"
    with Producer(str(browser_like.base_url), topic) as jobs:
        jobs.put("a", delay=600)
        data = {"action": action, "state": "delayed", "all": "1", field: value}
        after_preview = {**data, "cutoff": "2099-01-01T00:00:00Z"}
        for path, sent in (("bulk/preview", data), ("bulk", after_preview)):
            refused = browser_like.post(f"/console/topics/{topic}/{path}", data=sent)
            assert refused.status_code == 422
            assert f"<code>{field}</code> must be" in refused.text
            assert value in refused.text
        assert jobs.get("a") is not None


def test_a_list_says_that_its_state_is_unknown(browser_like: httpx.Client) -> None:
    with Producer(str(browser_like.base_url), "bad-state") as jobs:
        jobs.put("a", delay=600)
        page = browser_like.get("/console/topics/bad-state/jobs?state=delay").text
        assert "The state must be one of delayed, " in page
        assert 'data-row="' not in page


def test_a_group_of_dead_jobs_needs_the_cutoff_of_its_preview(browser_like: httpx.Client) -> None:
    with Producer(str(browser_like.base_url), "dead-cutoff") as jobs:
        jobs.fail("a", "boom", dead=True)
        group = {"topic": "dead-cutoff", "reason": "buried", "error": "boom"}
        linked = browser_like.get("/console/dead/purge", params={**group, "cutoff": "2099-01-01T00:00:00Z"})
        fields = fields_of(linked.text, "console/dead/purge")
        assert not fields["cutoff"].startswith("2099")
        again = browser_like.post("/console/dead/purge", data={**fields, "cutoff": ""})
        assert (again.status_code, "Purge 1 job" in again.text) == (200, True)
        assert jobs.get("a") is not None
        assert browser_like.post("/console/dead/purge", data=fields).status_code == 303
        assert jobs.get("a") is None
