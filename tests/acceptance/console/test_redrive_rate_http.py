"""A redrive at a rate: what its forms say before it begins, and what became of the jobs on the page of its task."""

from __future__ import annotations

import html
import re
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from tests.acceptance.console.job_pages import Producer
from tests.acceptance.console.test_console_jobs_http import fields_of
from tests.waiting import wait_until

ERROR = "KeyError: 'tax_rate'"


@pytest.fixture
def dead_jobs(jobs: Producer) -> Producer:
    for number in range(3):
        jobs.fail(f"j{number}", ERROR, dead=True)
    return jobs


def text_of(page: str) -> str:
    """What people read."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split())


def test_a_group_is_redriven_at_a_rate_that_was_shown(browser_like: httpx.Client, dead_jobs: Producer) -> None:
    group = {"topic": dead_jobs.topic, "reason": "buried", "error": ERROR}
    first = browser_like.get("/console/dead/redrive", params=group).text
    path = "console/dead/redrive"
    wrong = browser_like.post(f"/{path}", data={**fields_of(first, path), "rate": "fast"}).text
    assert "Say how many jobs a second, from 0.01 to 1000" in text_of(wrong)
    shown = browser_like.post(f"/{path}", data={**fields_of(first, path), "rate": "0.6/min"}).text
    assert re.search(r"That takes 5 min, until 20.* UTC if it begins now", text_of(shown))
    assert dead_jobs.counts()["dead"] == 3, "nothing began yet"
    begun = browser_like.post(f"/{path}", data={**fields_of(shown, path), "rate": "0.6/min"})
    task = urlsplit(urljoin(str(begun.request.url), begun.headers["location"])).path
    wait_until(lambda: dead_jobs.counts()["dead"] == 2, 10, "the first is ready again")
    wait_until(lambda: "1 of 3 ready again" in text_of(browser_like.get(task).text), 10, "the task says so")
    running = text_of(browser_like.get(task).text)
    assert re.search(r"At most 0.01 jobs a second: until 20.* The others are dead until their turn", running)
    assert "Waiting 1 Running 0 Finished 0 Dead again 0 No longer kept 0" in running

    [again] = dead_jobs.pop()
    failed = {"receipt": again["receipt"], "error": "KeyError: 'vat'"}
    dead_jobs.http.post(f"/jobs/{dead_jobs.topic}/{again['id']}/bury", json=failed).raise_for_status()

    def became() -> str:
        return text_of(browser_like.get(task, params={"fragment": "became"}).text)

    wait_until(lambda: "Dead again 1" in became(), 10, "its region says so")
    assert "KeyError: 'vat'" in became()
    browser_like.post(f"{task}/stop")
    wait_until(lambda: "the others are still dead" in browser_like.get(task).text, 10, "it stops")
    assert dead_jobs.counts()["dead"] == 3
    activity = f"/console/activity?topics={dead_jobs.topic}"
    wait_until(lambda: "redrove" in browser_like.get(activity).text, 10, "the end is recorded")
    assert f'as task</span> <a class="mono" href="{task[1:]}">' in browser_like.get(activity).text


def test_all_dead_jobs_of_a_topic_are_redriven_at_a_rate(browser_like: httpx.Client, dead_jobs: Producer) -> None:
    path = f"console/topics/{dead_jobs.topic}/bulk"
    chosen = {"action": "redrive", "state": "dead", "all": "1"}
    first = browser_like.post(f"/{path}/preview", data=chosen, follow_redirects=True).text
    shown = browser_like.post(f"/{path}", data={**fields_of(first, path), "rate": "500"}).text
    assert re.search(r"That takes 6 ms, until 20.* UTC if it begins now", text_of(shown))
    begun = browser_like.post(f"/{path}", data={**fields_of(shown, path), "rate": "500"})
    assert "/console/tasks/" in begun.headers["location"]
    wait_until(lambda: dead_jobs.counts()["ready"] == 3, 10, "all are ready again")
