"""The search over all topics, in the palette and on its page, and the page of a consumer."""

from __future__ import annotations

import html
import re

import httpx
import pytest

from tests.acceptance.console.conftest import OWN_PAGE, KeyedService, console
from tests.acceptance.console.job_pages import Producer, call
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def rows_of(page: str) -> dict[str, str]:
    """By the topic, the row of a table."""
    rows = re.findall(r'<tr data-row="([^"]*)"[^>]*>(.*?)</tr>', page, re.DOTALL)
    return {topic: html.unescape(row) for topic, row in rows}


def test_a_job_is_found_by_its_id_alone_and_jobs_by_a_tag(without_keys: ServiceProcess, topic: str) -> None:
    other, wanted = f"{topic}.other", f"order-{topic}"
    with Producer(without_keys.url, topic) as jobs, Producer(without_keys.url, other) as others:
        jobs.put(wanted, delay=600)
        jobs.put("a", delay=600)
        others.put("b", delay=600, tags=[wanted])
        others.put(*(f"more-{at}" for at in range(6)), delay=600, tags=[f"all-{topic}"])
        client = jobs.http

        def found(text: str) -> dict[str, str]:
            return rows_of(client.get("/console/search", params={"q": text}).text)

        wait_until(lambda: set(found(wanted)) == {topic, other}, 10, "the list of all topics has the new ones")
        rows = found(wanted)
        assert f'href="console/topics/{topic}/jobs/{wanted}"' in rows[topic]
        assert f'href="console/topics/{other}/jobs/b"' in rows[other]
        [row] = found(f"all-{topic}").values()
        assert (row.count("/jobs/more-"), f"jobs?tag=all-{topic}" in row) == (5, True)
        nothing = client.get("/console/search", params={"q": f"{wanted}-not"}).text
        assert "No job has" in nothing
        within = client.get("/console/search", params={"q": wanted, "topics": f"{topic}.*"}).text
        assert (set(rows_of(within)), "1 topic was searched" in within) == ({other}, True)


def test_the_palette_finds_schedules_and_consumers_and_leads_to_the_search(
    without_keys: ServiceProcess, topic: str
) -> None:
    call(without_keys, "PUT", f"/schedules/s-{topic}", {"topic": topic, "every": 600})
    with Producer(without_keys.url, topic) as jobs:
        jobs.put("a")
        jobs.http.post(f"/topics/{topic}/pop?consumer=c-{topic}").raise_for_status()

        def go(text: str) -> str:
            return html.unescape(jobs.http.get("/console/go", params={"q": text, "fragment": "found"}).text)

        assert f'href="console/schedules/s-{topic}"' in go(f"s-{topic}")
        wait_until(lambda: f'href="console/consumers/c-{topic}"' in go(f"c-{topic}"), 10, "the consumer was seen")
        assert f'href="console/search?q=c-{topic}"' in go(f"c-{topic}")
        assert "console/search" not in go("no id")
        page = html.unescape(jobs.http.get("/console/search", params={"q": f"c-{topic}"}).text)
        assert f'href="console/consumers/c-{topic}"' in page


def test_a_consumer_has_a_page_with_its_jobs(without_keys: ServiceProcess, topic: str) -> None:
    with Producer(without_keys.url, topic) as jobs, Producer(without_keys.url, f"{topic}.b") as others:
        jobs.put("mine-1")
        jobs.put("mine-2")
        others.put("theirs")
        jobs.http.post(f"/topics/{topic}/pop?count=2&consumer=me-{topic}").raise_for_status()
        others.http.post(f"/topics/{topic}.b/pop?consumer=you-{topic}").raise_for_status()
        path = f"/console/consumers/me-{topic}"
        mine = {f"{topic}/mine-1", f"{topic}/mine-2"}
        wait_until(lambda: set(rows_of(jobs.http.get(path).text)) == mine, 10, "the consumer was seen with its jobs")
        assert path[1:] in jobs.http.get("/console/consumers").text
        assert "the first was handed out <time" in jobs.http.get(path).text
        assert jobs.http.post(f"{path}/return", headers=OWN_PAGE).status_code == 303
        assert "2 jobs were returned to the queue." in jobs.http.get(path).text
        assert jobs.counts()["ready"] == 2
        assert others.counts()["reserved"] == 1
        jobs.http.post(f"{path}/return", headers=OWN_PAGE)
        assert "holds no job any more" in jobs.http.get(path).text
        missing = jobs.http.get(f"/console/consumers/nobody-{topic}")
        assert (missing.status_code, "Not here now" in missing.text) == (200, True)


def test_a_search_within_a_rate_limit_says_what_it_left_out(masking: KeyedService, topic: str) -> None:
    for at in range(60):
        call(
            masking.service,
            "POST",
            "/jobs",
            {"topic": f"{topic}.{at}", "delay": 600},
            token=masking.keys.tokens["operator"],
        )

    with console(masking, "operator") as client:
        wait_until(
            lambda: f"{topic}.59" in client.get("/console/topics", params={"name": topic}).text, 10, "they are listed"
        )
        whole = client.get("/console/search", params={"q": "nothing-here", "topics": f"{topic}.*"}).text
        assert "60 topics were searched" in whole
    with console(masking, "lister") as client:
        some = client.get("/console/search", params={"q": "nothing-here", "topics": f"{topic}.*"})
        assert (some.status_code, bool(re.search(r"\d+ of 60 topics were searched", some.text))) == (200, True)


def test_a_search_causes_no_refusals(with_keys: KeyedService) -> None:
    with_keys.keys.add("searcher", "read", topics=("some.*",))
    known = {"Authorization": f"Bearer {with_keys.keys.tokens['searcher']}"}
    with httpx.Client(base_url=with_keys.url, verify=NO_TLS, headers=OWN_PAGE) as client:
        wait_until(lambda: client.get("/topics", headers=known).status_code == 200, 10, "the key is known")
        client.post("/console/login", data={"key": with_keys.keys.tokens["searcher"]})
        for query in ({"q": "a1"}, {"q": "a1", "topics": "other"}, {"q": "a1", "topics": "other.*"}):
            assert client.get("/console/search", params=query).status_code == 200
