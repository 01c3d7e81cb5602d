"""The pages of jobs without a browser: forms, masks, scopes, cutoffs."""

from __future__ import annotations

import html
import os
import re
import signal
import threading
import time
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

import httpx
import pytest

from deferd import Cipher
from tests.acceptance.console.conftest import KeyedService, console
from tests.acceptance.console.job_pages import SECRETS, Producer
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import wait_until


def fields_of(page: str, action: str) -> dict[str, str]:
    """The fields that the form with this action sends as it is."""
    form = re.search(rf'<form[^>]*action="{re.escape(action)}(?:\?[^"]*)?"[^>]*>(.*?)</form>', page, re.DOTALL)
    assert form is not None, page
    hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form[1])
    checked = re.findall(r'<input type="radio" name="([^"]+)" value="([^"]*)" checked>', form[1])
    return {name: html.unescape(value) for name, value in hidden + checked}


def preview_of(client: httpx.Client, topic: str, sent: dict[str, Any]) -> httpx.Response:
    """The preview to which a choice in the list of a topic's jobs leads."""
    return client.post(f"/console/topics/{topic}/bulk/preview", data=sent, follow_redirects=True)


def act(client: httpx.Client, topic: str, action: str, sent: dict[str, Any], **more: str) -> tuple[str, httpx.Response]:
    """Preview an action and confirm it, and a new due time once more: the preview, and the last response."""
    preview = preview_of(client, topic, {"action": action, **sent})
    assert preview.status_code == 200, preview.headers
    path = f"console/topics/{topic}/bulk"
    done = client.post(f"/{path}", data={**fields_of(preview.text, path), **more})
    if done.status_code == 200:  # it shows which instant was meant
        done = client.post(f"/{path}", data={**fields_of(done.text, path), **more})
    return preview.text, done


def row_ids(page: str) -> set[str]:
    """The jobs in the rows of a list."""
    return set(re.findall(r'data-row="([^"]+)"', page))


def seen(client: httpx.Client, response: httpx.Response) -> str:
    """The page that a response leads to."""
    assert response.status_code == 303, response.text
    page = client.get(urljoin(str(response.request.url), response.headers["location"])).text
    return html.unescape(page)


def crawl(client: httpx.Client, *starts: str) -> dict[str, str]:
    """All pages, regions and files below the pages of jobs that links lead to."""
    found: dict[str, str] = {}
    left = list(starts)
    while left:
        path = left.pop()
        if path in found:
            continue
        response = client.get(f"/{path}")
        found[path] = response.text
        if "html" not in response.headers["content-type"]:
            continue
        links = re.findall(r'(?:href|hx-get)="(console/topics/[^"#]+)"', response.text)
        left += [html.unescape(link) for link in links if len(found) < 300]
    return found


@pytest.mark.slow
def test_masked_values_are_in_no_response(masking: KeyedService, masked_jobs: Producer) -> None:
    jobs, root = masked_jobs, f"console/topics/{masked_jobs.topic}"
    password, token, pin = SECRETS
    body = {"user": "ada", "password": {"now": password, "pin": int(pin)}, "auth": [{"token": token}]}
    jobs.put("plain", body=body, delay=600, headers={"password": password})
    error = f'no user {password} with pin {pin}; sent {{"token": "other-value"}}, password={token}'
    jobs.fail("failed", error, body=body)
    jobs.fail("died", error, body=body, dead=True)
    jobs.put("done", body=body, retain=600)
    [popped] = jobs.pop()
    result = {"receipt": popped["receipt"], "result": {"answer": 42, "token": token, "x": {"token": token}}}
    jobs.http.post(f"/jobs/{jobs.topic}/done/finish", json=result).raise_for_status()
    with console(masking, "operator") as client:
        pages = crawl(client, f"{root}/jobs", f"{root}/jobs?state=dead")
        preview = preview_of(client, jobs.topic, {"action": "cancel", "ids": ["plain", "died", "failed"]})
        cancelled = client.post(f"/{root}/jobs/plain/cancel")
        pages |= {"preview": preview.text, "cancelled": seen(client, cancelled)}

    assert {f"{root}/jobs/plain/raw/body", f"{root}/jobs/done/part/result"} <= pages.keys()
    assert "ada" in pages[f"{root}/jobs/plain/part/body"]
    assert '"answer":42,"token":"•••••"' in pages[f"{root}/jobs/done/raw/result"]
    for path in ("part/curl", "edit", "raw/body"):
        assert f"{root}/jobs/failed/{path}" in pages
    assert "This console masks some fields" in html.unescape(pages[f"{root}/jobs/failed/part/curl"])
    assert "masked fields, so the console can't write it" in pages[f"{root}/jobs/failed/edit"].replace("&#39;", "'")
    for path, text in pages.items():
        for secret in (*SECRETS, "other-value"):
            assert secret not in text, (path, secret)


def test_a_copy_and_an_undo_have_what_is_masked(masking: KeyedService, masked_jobs: Producer) -> None:
    jobs, root = masked_jobs, f"console/topics/{masked_jobs.topic}"
    body = {"password": SECRETS[0], "n": 1}
    jobs.put("plain", body=body, delay=600)
    with console(masking, "operator") as client:
        copied = client.post(f"/{root}/jobs/plain/copy")
        copy_id = copied.headers["location"].rpartition("/")[2]
        cancelled = client.post(f"/{root}/jobs/plain/cancel")
        assert jobs.get("plain") is None
        token = cancelled.headers["location"].partition("undo=")[2]
        client.post("/console/undo", data={"token": token})
        saved = client.post(f"/{root}/jobs/plain/edit", data={"body": '{"password":"•••••"}'})

    for job_id in ("plain", copy_id):
        job = jobs.get(job_id)
        assert job is not None
        assert job["body"] == body
    assert saved.status_code == 422


def test_an_undo_that_is_refused_keeps_the_jobs(masking: KeyedService, masked_jobs: Producer) -> None:
    jobs, root = masked_jobs, f"console/topics/{masked_jobs.topic}"
    jobs.put("kept", delay=600, body={"n": 1})
    with console(masking, "canceller") as client:
        token = client.post(f"/{root}/jobs/kept/cancel").headers["location"].partition("undo=")[2]
        assert client.post("/console/undo", data={"token": token}).status_code == 403
        masking.keys.add("canceller", "read", "cancel", "put")
        wait_until(lambda: client.post("/console/undo", data={"token": token}).status_code == 303, 8, "the undo")

    assert (jobs.get("kept") or {})["body"] == {"n": 1}


def test_an_undo_is_for_the_key_that_cancelled(masking: KeyedService, masked_jobs: Producer) -> None:
    jobs, root = masked_jobs, f"console/topics/{masked_jobs.topic}"
    jobs.put("gone", delay=600)
    with console(masking, "canceller") as client:
        token = client.post(f"/{root}/jobs/gone/cancel").headers["location"].partition("undo=")[2]
    with console(masking, "operator") as client:
        assert "Undo puts" not in client.get(f"/{root}/jobs?undo={token}").text
        client.post("/console/undo", data={"token": token})
    assert jobs.get("gone") is None


@pytest.mark.parametrize("token", ["", "none", "r%200", "a/b", "%00", "x" * 300])
def test_a_token_of_nothing_shows_no_undo(browser_like: httpx.Client, jobs: Producer, token: str) -> None:
    jobs.put("a", delay=600)
    call = {"select": {"ids": [{"topic": jobs.topic, "id": "a"}]}, "request_id": "r", "undo": True}
    jobs.http.post("/jobs/cancel", json=call).raise_for_status()
    jobs.put("b", delay=600)
    page = browser_like.get(f"/console/topics/{jobs.topic}/jobs?undo={token}")
    assert (page.status_code, "Undo puts" in page.text) == (200, False)


def test_a_key_that_only_reads_sees_which_scopes_are_missing(masking: KeyedService, masked_jobs: Producer) -> None:
    jobs, root = masked_jobs, f"console/topics/{masked_jobs.topic}"
    jobs.put("a", delay=600)
    jobs.fail("b", "x", dead=True)
    with console(masking, "reader") as client:
        for path, scopes in (
            ("jobs", {"put", "cancel", "admin"}),
            ("jobs/a", {"put", "cancel"}),
            ("jobs/b", {"admin"}),
        ):
            page = client.get(f"/{root}/{path}").text
            disabled = set(re.findall(r'<button[^>]*disabled title="needs scope (\w+)"', page))
            assert scopes <= disabled, path
        for path, data, scope in (
            ("jobs/a/cancel", {}, "cancel"),
            ("jobs/a/run", {}, "put"),
            ("jobs/a/copy", {}, "put"),
            ("jobs/a/reschedule", {"when": "+1h"}, "put"),
            ("jobs/b/redrive", {}, "admin"),
            ("bulk/preview", {"action": "cancel", "ids": "a"}, "cancel"),
            ("bulk", {"action": "redrive", "id_list": "b", "cutoff": "2030-01-01T00:00:00Z"}, "admin"),
        ):
            refused = client.post(f"/{root}/{path}", data=data, follow_redirects=True)
            assert (refused.status_code, f"needs scope <code>{scope}</code>" in refused.text) == (403, True), path
    assert jobs.counts()["delayed"] == 1
    assert jobs.counts()["dead"] == 1


def test_an_action_needs_a_page_of_the_console(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600)
    refused = browser_like.post(f"/console/topics/{jobs.topic}/jobs/a/cancel", headers={"Sec-Fetch-Site": "cross-site"})
    assert refused.status_code == 403
    assert jobs.get("a") is not None


def test_a_selection_is_cancelled_and_undone_once(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", "b", "c", delay=600, body={"n": 12345678901234567890}, tags=["x"], max_attempts=4)
    preview, done = act(browser_like, jobs.topic, "cancel", {"ids": ["a", "b", "nothing"]})
    assert "Cancel 2 jobs" in " ".join(preview.split())
    assert jobs.counts()["delayed"] == 1
    page = seen(browser_like, done)
    assert "Cancelled. Undo puts 2 jobs back as they were." in page
    token = re.findall(r'name="token" value="([^"]+)"', page)[0]
    assert "Put 2 jobs back." in seen(browser_like, browser_like.post("/console/undo", data={"token": token}))
    again = jobs.get("a")
    assert again is not None
    assert (again["tags"], again["max_attempts"], again["state"]) == (["x"], 4, "delayed")
    raw = browser_like.get(f"/console/topics/{jobs.topic}/jobs/a/raw/body").text
    assert raw == '{"n":12345678901234567890}'
    assert "it is too late, or it was done already" in seen(
        browser_like, browser_like.post("/console/undo", data={"token": token})
    )


def test_what_an_undo_could_not_put_can_be_put_later_and_the_rest_not_twice(
    browser_like: httpx.Client, jobs: Producer
) -> None:
    jobs.put("a", "b", delay=600)
    _, done = act(browser_like, jobs.topic, "cancel", {"ids": ["a", "b"]})
    token = done.headers["location"].partition("undo=")[2]
    sent = {"token": token, "topic": jobs.topic}
    jobs.http.put(f"/topics/{jobs.topic}", json={"max_jobs": 1}).raise_for_status()
    page = seen(browser_like, browser_like.post("/console/undo", data=sent))
    assert "2 could not be put back: other jobs have their ids by now, the topic is full, or" in page
    assert f'value="{token}"' in page
    jobs.http.put(f"/topics/{jobs.topic}", json={"max_jobs": None}).raise_for_status()
    page = seen(browser_like, browser_like.post("/console/undo", data=sent))
    assert "Put 2 jobs back." in page
    assert "could not" not in page
    assert jobs.counts()["delayed"] == 2


def test_an_undo_never_replaces_a_job(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600, body="old")
    cancelled = browser_like.post(f"/console/topics/{jobs.topic}/jobs/a/cancel")
    token = cancelled.headers["location"].partition("undo=")[2]
    jobs.put("a", delay=600, body="new")
    page = seen(browser_like, browser_like.post("/console/undo", data={"token": token}))
    assert "1 could not be put back: other jobs have their ids by now" in page
    assert (jobs.get("a") or {})["body"] == "new"


def test_what_a_consumer_holds_is_spared_unless_asked(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("held")
    jobs.pop()
    jobs.put("delayed", delay=600)
    preview, done = act(browser_like, jobs.topic, "cancel", {"ids": ["held", "delayed"]})
    assert "A consumer holds 1 of them" in preview
    assert "1 was left alone: a consumer holds it." in seen(browser_like, done)
    assert jobs.counts() == {"delayed": 0, "ready": 0, "reserved": 1, "dead": 0, "finished": 0}
    path = f"console/topics/{jobs.topic}/jobs/held"
    fields = fields_of(browser_like.get(f"/{path}").text, f"{path}/cancel")
    cancelled = browser_like.post(f"/{path}/cancel", data=fields)
    assert "undo" not in cancelled.headers["location"]
    assert jobs.counts()["reserved"] == 0


def test_a_job_is_returned_to_the_queue_from_the_consumer_that_its_page_showed(
    browser_like: httpx.Client, jobs: Producer
) -> None:
    jobs.put("held")
    [popped] = jobs.pop()
    path = f"console/topics/{jobs.topic}/jobs/held"
    page = browser_like.get(f"/{path}").text
    assert 'href="console/consumers/w1"' in page
    assert f'handed out <time datetime="{(jobs.get("held") or {})["reserved_since"]}"' in page
    fields = fields_of(page, f"{path}/return")
    assert "It was returned to the queue." in seen(browser_like, browser_like.post(f"/{path}/return", data=fields))
    assert jobs.counts()["ready"] == 1
    finish = jobs.http.post(f"/jobs/{jobs.topic}/held/finish", json={"receipt": popped["receipt"]})
    assert finish.json()["code"] == "receipt_stale"
    jobs.http.post(f"/topics/{jobs.topic}/pop?consumer=w2").raise_for_status()
    shown = seen(browser_like, browser_like.post(f"/{path}/return", data=fields))
    assert "Nothing was changed: w1 does not hold it any more." in shown
    assert jobs.counts()["reserved"] == 1


@pytest.mark.parametrize("sent", [{"ids": ["a", "b"]}, {"tag": "x", "all": "1"}], ids=["selected", "all"])
def test_a_job_that_began_to_run_after_the_preview_goes_on(
    browser_like: httpx.Client, jobs: Producer, sent: dict[str, Any]
) -> None:
    jobs.put("a", tags=["x"])
    jobs.put("b", tags=["x"], delay=600)
    path = f"console/topics/{jobs.topic}/bulk"
    preview = preview_of(browser_like, jobs.topic, {"action": "cancel", **sent})
    [popped] = jobs.pop()
    page = seen(browser_like, browser_like.post(f"/{path}", data=fields_of(preview.text, path)))
    assert "1 was left alone: a consumer holds it." in page
    assert jobs.counts() == {"delayed": 0, "ready": 0, "reserved": 1, "dead": 0, "finished": 0}
    finished = jobs.http.post(f"/jobs/{jobs.topic}/a/finish", json={"receipt": popped["receipt"]})
    assert finished.status_code == 200
    assert "A job that a consumer holds by then is left alone." in preview.text


def test_a_job_that_began_to_run_after_its_page_was_shown_goes_on(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a")
    path = f"console/topics/{jobs.topic}/jobs/a"
    fields = fields_of(browser_like.get(f"/{path}").text, f"{path}/cancel")
    jobs.pop()
    page = seen(browser_like, browser_like.post(f"/{path}/cancel", data=fields))
    assert '<p class="error" role="alert">Nothing was cancelled: a consumer holds it by now' in page
    assert jobs.counts()["reserved"] == 1


def test_jobs_that_come_or_die_after_the_preview_are_not_touched(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600)
    jobs.fail("dead-1", "x", dead=True)
    first, second = (
        preview_of(browser_like, jobs.topic, data)
        for data in (
            {"action": "cancel", "state": "delayed", "all": "1"},
            {"action": "redrive", "state": "dead", "all": "1"},
        )
    )
    jobs.put("later", delay=600)
    jobs.fail("dead-2", "x", dead=True)
    for preview in (first, second):
        fields = fields_of(preview.text, f"console/topics/{jobs.topic}/bulk")
        assert browser_like.post(f"/console/topics/{jobs.topic}/bulk", data=fields).status_code == 303
    assert jobs.get("a") is None
    states = {job_id: (jobs.get(job_id) or {})["state"] for job_id in ("later", "dead-1", "dead-2")}
    assert states == {"later": "delayed", "dead-1": "ready", "dead-2": "dead"}


def test_a_relative_time_means_what_it_meant_in_the_preview(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("within", delay=590)
    jobs.put("beyond", delay=601)
    sent = {"action": "cancel", "state": "delayed", "due_before": "+600s", "all": "1"}
    preview = preview_of(browser_like, jobs.topic, sent)
    path = f"/console/topics/{jobs.topic}/jobs?state=delayed&due_before=%2B600s&id=beyond"
    wait_until(lambda: 'data-row="beyond"' in browser_like.get(path).text, 10, "the other one comes within the time")
    fields = fields_of(preview.text, f"console/topics/{jobs.topic}/bulk")
    done = browser_like.post(f"/console/topics/{jobs.topic}/bulk", data=fields)
    assert "Undo puts it back as it was." in seen(browser_like, done)
    assert jobs.get("beyond") is not None


def test_more_than_a_thousand_jobs_need_the_name_of_the_topic(browser_like: httpx.Client, jobs: Producer) -> None:
    for start in (0, 1000):
        jobs.put(*(f"j{number}" for number in range(start, start + 600)), delay=600)
    sent = {"state": "delayed", "all": "1"}
    preview, refused = act(browser_like, jobs.topic, "cancel", sent)
    assert "Cancel 1,200 jobs" in " ".join(preview.split())
    assert preview.count("/jobs/j") == 10
    link = {"action": "cancel", **sent, "typed": jobs.topic}
    assert 'name="typed" value=""' in browser_like.get(f"/console/topics/{jobs.topic}/bulk", params=link).text
    assert (refused.status_code, "Type the name of the topic" in refused.text) == (422, True)
    assert jobs.counts()["delayed"] == 1200
    _, done = act(browser_like, jobs.topic, "cancel", sent, typed=jobs.topic)
    assert done.status_code == 303
    wait_until(lambda: jobs.counts()["delayed"] == 0, 15, "the task cancels all")
    task_page = seen(browser_like, done)
    assert "Cancel jobs of" in task_page
    task_path = urlsplit(urljoin(str(done.request.url), done.headers["location"])).path
    wait_until(lambda: ">1,200</strong> of 1,200 cancelled" in browser_like.get(task_path).text, 15, "the task ends")
    assert task_path[1:] in browser_like.get("/console/tasks").text
    assert browser_like.post(f"{task_path}/stop").status_code == 303
    ended = browser_like.get(task_path).text
    assert "Undo puts 1,200 jobs back as they were." in ended
    undone = browser_like.post("/console/undo", data=fields_of(ended, "console/undo"))
    assert "Put 1,200 jobs back." in seen(browser_like, undone)
    assert jobs.counts()["delayed"] == 1200
    assert "Undo puts" not in browser_like.get(task_path).text


def test_batches_are_listed_with_their_counts(browser_like: httpx.Client, jobs: Producer) -> None:
    name = f"batch-of-{jobs.topic}"
    jobs.http.put(f"/batches/{name}", json={"on_end": {"topic": f"{jobs.topic}.done"}}).raise_for_status()
    jobs.put("a", "b", batch=name)
    jobs.http.delete(f"/jobs/{jobs.topic}/b").raise_for_status()
    row = browser_like.get("/console/tasks").text.partition(f'data-row="{name}"')[2].partition("</tr>")[0]
    assert re.findall(r'class="num">(\d+)<', row) == ["2", "0", "0", "1"]
    assert (">open<" in row, f'/topics/{jobs.topic}.done">{jobs.topic}.done</a></td>' in row) == (True, True)
    page = browser_like.get(f"/console/topics/{jobs.topic}/jobs/a").text
    link = f"console/search?q=batch:{name}"
    assert f'<dt>Batch</dt><dd><a href="{link}">{name}</a>' in page
    assert link in row
    assert "/jobs/a" in browser_like.get(f"/{link}").text


def test_a_preview_of_a_cancel_says_whether_it_can_be_undone(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", "b", delay=600, tags=["x"])
    jobs.fail("dead", "x", dead=True, tags=["x"])
    for sent, action, word in (
        ({"ids": ["a", "b"]}, "cancel", "You can undo it for 10 minutes: that puts all of them back as they were"),
        ({"state": "delayed", "all": "1"}, "cancel", "You can undo it for 10 minutes: that puts all of them back"),
        ({"tag": "x", "all": "1"}, "cancel", "that puts the 2 delayed and ready ones back as they were"),
        ({"ids": ["dead"]}, "cancel", "It can't be undone: only delayed and ready jobs can be put back."),
        ({"state": "dead", "all": "1"}, "cancel", "It can't be undone: only delayed and ready jobs can be put back."),
    ):
        data = {"action": action, **sent}
        page = preview_of(browser_like, jobs.topic, data).text
        assert word in html.unescape(page), sent


def test_what_only_a_search_finds_can_be_acted_on(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.fail("a-1", "SMTP 421", dead=True)
    jobs.fail("a-2", "other", dead=True)
    preview, done = act(browser_like, jobs.topic, "redrive", {"state": "dead", "error": "SMTP", "all": "1"})
    assert "Redrive 1 job" in " ".join(preview.split())
    assert "1 job was redriven." in seen(browser_like, done)
    assert (jobs.get("a-1") or {})["state"] == "ready"
    assert (jobs.get("a-2") or {})["state"] == "dead"


def test_the_jobs_of_a_dead_group_are_listed_and_redriven_and_no_others(
    browser_like: httpx.Client, jobs: Producer
) -> None:
    for job_id, name in (("a", "email"), ("b", "total"), ("c", "email")):
        jobs.fail(job_id, f"no '{name}' in order {ord(job_id)}", dead=True)
    page = browser_like.get("/console/dead", params={"topics": jobs.topic}).text
    [link] = [link for link in re.findall(r'href="([^"]+)"', page) if "group=" in link and "email" in link]
    link = f"/{html.unescape(link)}"
    assert row_ids(browser_like.get(link).text) == {"a", "c"}
    query = dict(parse_qsl(urlsplit(link).query))
    assert set(query) == {"state", "reason", "group"}
    preview, done = act(browser_like, jobs.topic, "redrive", {**query, "all": "1"})
    assert "Redrive 2 jobs" in " ".join(preview.split())
    assert "2 jobs were redriven." in seen(browser_like, done)
    assert {job_id: (jobs.get(job_id) or {})["state"] for job_id in "abc"} == {"a": "ready", "b": "dead", "c": "ready"}
    left = browser_like.get("/console/dead", params={"topics": jobs.topic}).text
    assert f"no &#39;total&#39; in order {ord('b')}" in left, "the error as it is, under that of the group"


def test_all_jobs_of_a_dead_group_without_an_error_are_those_without_one(
    browser_like: httpx.Client, jobs: Producer
) -> None:
    jobs.fail("a", "x", dead=True)
    jobs.put("b", ttl=0.2)
    wait_until(lambda: jobs.counts()["dead"] == 2, 10, "it has expired")
    query = {"state": "dead", "reason": "expired", "group": ""}
    assert row_ids(browser_like.get(f"/console/topics/{jobs.topic}/jobs", params=query).text) == {"b"}
    _, done = act(browser_like, jobs.topic, "cancel", {**query, "all": "1"})
    assert "group=" in done.headers["location"]
    assert (jobs.get("a") or {})["state"] == "dead"
    assert jobs.get("b") is None


def test_jobs_that_fail_and_are_retried_have_a_tab_and_show_their_error(
    browser_like: httpx.Client, jobs: Producer
) -> None:
    jobs.put("later", delay=900)
    jobs.fail("a", "no such order")
    delayed = browser_like.get(f"/console/topics/{jobs.topic}/jobs?state=delayed").text
    assert row_ids(delayed) == {"a", "later"}
    assert "no such order" in delayed
    [tab] = re.findall(r'<a href="([^"]*retrying=1[^"]*)"[^>]*>retrying <span class="tab-count of-dead">1<', delayed)
    assert row_ids(browser_like.get(f"/{html.unescape(tab)}").text) == {"a"}
    assert "Failed, and retried" in browser_like.get(f"/console/topics/{jobs.topic}").text
    _, done = act(browser_like, jobs.topic, "run_now", {"state": "delayed", "retrying": "1", "all": "1"})
    assert "retrying=1" in done.headers["location"]
    assert {job_id: (jobs.get(job_id) or {})["state"] for job_id in ("a", "later")} == {
        "a": "ready",
        "later": "delayed",
    }
    assert "Failed, and retried" not in browser_like.get(f"/console/topics/{jobs.topic}").text
    ready = browser_like.get(f"/console/topics/{jobs.topic}/jobs?state=ready").text
    assert "no such order" in ready
    delayed = browser_like.get(f"/console/topics/{jobs.topic}/jobs?state=delayed").text
    assert re.findall(r'<td class="error-text[^>]*>(?!</td>)', delayed) == []  # an empty column is not shown


def test_a_selection_is_rescheduled_run_and_cancelled(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", "b", delay=600)
    _, bad = act(browser_like, jobs.topic, "reschedule", {"ids": ["a"]}, when="soon")
    assert (bad.status_code, "Say when" in bad.text) == (422, True)
    act(browser_like, jobs.topic, "reschedule", {"ids": ["a"]}, when="2035-01-31 09:30")
    assert (jobs.get("a") or {})["due_at"] == "2035-01-31T09:30:00.000Z"
    act(browser_like, jobs.topic, "run_now", {"ids": ["b"]})
    assert (jobs.get("b") or {})["state"] == "ready"
    _, done = act(browser_like, jobs.topic, "cancel", {"state": "ready", "all": "1"})
    assert "Cancelled. Undo puts it back" in seen(browser_like, done)
    assert jobs.get("b") is None


def test_actions_that_do_not_concern_jobs_of_a_state_are_not_offered(
    browser_like: httpx.Client, jobs: Producer
) -> None:
    jobs.put("a", delay=600)
    jobs.fail("b", "x", dead=True)
    offered = {
        state: re.findall(
            r'name="action" value="(\w+)"', browser_like.get(f"/console/topics/{jobs.topic}/jobs?{state}").text
        )
        for state in ("", "state=delayed", "state=ready", "state=dead", "state=reserved", "state=finished")
    }
    assert offered == {
        "": ["run_now", "reschedule", "redrive", "cancel"],
        "state=delayed": ["run_now", "reschedule", "cancel"],
        "state=ready": ["reschedule", "cancel"],
        "state=dead": ["redrive", "cancel"],
        "state=reserved": ["cancel"],
        "state=finished": ["cancel"],
    }
    preview = preview_of(browser_like, jobs.topic, {"action": "reschedule", "ids": "b"}).text
    assert "Reschedule 0 jobs" in " ".join(preview.split())
    assert 'name="when"' not in preview
    assert '<button class="button primary"' not in preview


def test_a_list_says_in_which_order_it_is_and_that_there_is_more(browser_like: httpx.Client, jobs: Producer) -> None:
    for job_id, delay in (("b", 100), ("a", 200), ("c", 300)):
        jobs.put(job_id, delay=delay, tags=["x"])
    jobs.put(*(f"d{number:02}" for number in range(60)), delay=600, tags=["x"])
    page = browser_like.get(f"/console/topics/{jobs.topic}/jobs?tag=x").text
    assert re.findall(r'data-row="([^"]+)"', page)[:3] == ["a", "b", "c"]
    assert '<option value="asc" selected>By id</option>' in page
    assert "50 found on this page, there may be more" in " ".join(page.split())
    due = browser_like.get(f"/console/topics/{jobs.topic}/jobs?state=delayed&due_before=%2B500s").text
    assert "3 of 3" in " ".join(due.split())
    searched = browser_like.get(f"/console/topics/{jobs.topic}/jobs?state=delayed&tag=x").text
    assert "50 found on this page, there may be more" in " ".join(searched.split())
    first = browser_like.get(f"/console/topics/{jobs.topic}/jobs").text
    assert '<option value="asc" selected>State by state</option>' in first
    delayed = browser_like.get(f"/console/topics/{jobs.topic}/jobs?state=delayed").text
    assert '<option value="asc" selected>Due first</option>' in delayed


def test_a_preview_says_when_jobs_are_due_and_what_is_in_them(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", run_at="2035-01-31T09:30:00Z", tags=["customer:7"], body={"n": 12345678901234567890})
    jobs.put("b", run_at="2035-02-28T09:30:00Z")
    preview = html.unescape(preview_of(browser_like, jobs.topic, {"action": "cancel", "ids": ["a", "b"]}).text)
    assert "2035-01-31 09:30:00 UTC" in preview
    assert "2035-02-28 09:30:00 UTC" in preview
    assert '<span class="tag">customer:7</span>' in preview
    assert '{"n":12345678901234567890}' in preview


def test_many_jobs_are_moved_each_by_as_much_and_spread(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", run_at="2035-01-31T09:30:00Z")
    jobs.put("b", run_at="2035-02-28T09:30:00Z")
    path = f"console/topics/{jobs.topic}/bulk"
    preview = preview_of(browser_like, jobs.topic, {"action": "reschedule", "ids": ["a", "b"]})
    typed = {"by": "-1d", "spread": "1h"}
    shown = browser_like.post(f"/{path}", data={**fields_of(preview.text, path), **typed})
    assert "2035-01-30 09:30:00 UTC" in shown.text
    assert "2035-02-27 10:30:00 UTC" in shown.text
    assert (jobs.get("a") or {})["due_at"] == "2035-01-31T09:30:00.000Z", "nothing moves before that was shown"
    done = browser_like.post(f"/{path}", data={**fields_of(shown.text, path), **typed})
    assert "2 jobs were rescheduled." in seen(browser_like, done)
    for job_id, day in (("a", "2035-01-30T"), ("b", "2035-02-27T")):
        due_at = (jobs.get(job_id) or {})["due_at"]
        assert f"{day}09:30:00.000Z" <= due_at <= f"{day}10:30:00.000Z"


def test_a_preview_is_a_page_that_others_can_open(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600)
    jobs.put("b", delay=1100)
    jobs.put("later", delay=3600)
    root = f"/console/topics/{jobs.topic}"
    for sent in ({"ids": ["a", "b"]}, {"state": "delayed", "due_before": "+20m", "zone": "Europe/Berlin", "all": "1"}):
        chosen = browser_like.post(f"{root}/bulk/preview", data={"action": "cancel", **sent})
        link = str(urljoin(str(chosen.request.url), chosen.headers["location"]))
        assert "%2B20m" not in link, "it means the same later"
        elsewhere = {"Sec-Fetch-Site": "cross-site"}
        for path in (link, f"{link}&cutoff=2099-01-01T00:00:00Z&typed={jobs.topic}&held=cancel"):
            page = httpx.get(path, headers=elsewhere, verify=NO_TLS).text
            fields = fields_of(page, f"console/topics/{jobs.topic}/bulk")
            assert fields["cutoff"] < "2099"
            assert f'href="{html.escape(link.partition(str(browser_like.base_url))[2][1:])}" data-copy-link' in page
        assert httpx.post(link, data=fields, headers=elsewhere, verify=NO_TLS).status_code == 403
        assert jobs.counts()["delayed"] == 3
        assert browser_like.post(link, data=fields).status_code == 303
        assert jobs.get("later") is not None
        jobs.put("a", delay=600)
        jobs.put("b", delay=1100)


def test_a_preview_of_a_new_due_time_can_be_opened_by_others(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600)
    path = f"console/topics/{jobs.topic}/bulk"
    preview = preview_of(browser_like, jobs.topic, {"action": "reschedule", "ids": ["a"]})
    typed = {"when": "2035-01-31 09:30", "when_zone": "Europe/Berlin", "spread": "1h"}
    shown = browser_like.post(f"/{path}", data={**fields_of(preview.text, path), **typed}).text
    [link] = re.findall(r'href="([^"]+)" data-copy-link', shown)
    opened = browser_like.get(f"/{html.unescape(link)}").text
    assert "2035-01-31 08:30:00 UTC" in opened
    assert "2035-01-31 09:30:00 UTC" in opened
    assert "Say when" in browser_like.get(f"/{html.unescape(link).replace('when=2035', 'when=soon')}").text


def test_a_preview_of_too_many_jobs_for_a_link_says_so(browser_like: httpx.Client, jobs: Producer) -> None:
    ids = [f"order-{number:06}" for number in range(1000)]
    jobs.put(*ids, delay=600)
    path = f"console/topics/{jobs.topic}/bulk"
    preview = browser_like.post(f"/{path}/preview", data={"action": "cancel", "ids": ids})
    assert (preview.status_code, "The jobs are too many for a link" in preview.text) == (200, True)
    done = browser_like.post(f"/{path}", data=fields_of(preview.text, path))
    assert "Undo puts 1,000 jobs back" in seen(browser_like, done)


def test_a_link_to_a_preview_leads_through_the_log_in(with_keys: KeyedService) -> None:
    ids = [f"{number:02}:{'x' * 80}" for number in range(99)]
    with console(with_keys, "everything") as client:

        def choose() -> httpx.Response:
            return client.post("/console/topics/any/bulk/preview", data={"action": "cancel", "ids": ids})

        while (chosen := choose()).status_code != 303:  # the longest link
            ids.pop()
    link = urljoin(str(chosen.request.url), chosen.headers["location"])
    to_log_in = httpx.get(link, verify=NO_TLS)
    page = httpx.get(urljoin(link, to_log_in.headers["location"]), verify=NO_TLS)
    assert page.status_code == 200
    [wanted] = re.findall(r'name="next" value="([^"]+)"', page.text)
    assert urljoin(f"{with_keys.url}/", html.unescape(wanted)) == link


def test_a_list_has_a_link_that_means_the_same_later(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600, tags=["x"])
    root = f"/console/topics/{jobs.topic}/jobs"
    query = "state=delayed&id=&tag=x&due_before=%2B1h&zone=Europe%2FBerlin&order=desc&limit=200&cursor=&undo=abc"
    page = browser_like.get(f"{root}?{query}").text
    [link] = re.findall(r'href="([^"]+)" data-copy-link', page)
    parts = dict(parse_qsl(urlsplit(html.unescape(link)).query))
    due_before = parts.pop("due_before")
    assert parts == {"state": "delayed", "tag": "x", "order": "desc", "limit": "200"}
    assert due_before.endswith("Z")
    assert f"<title>{jobs.topic}: delayed jobs with tag x, due before {due_before} · deferd</title>" in page
    assert row_ids(browser_like.get(f"/{html.unescape(link)}").text) == {"a"}


def test_nothing_is_done_without_a_choice(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600)
    path = f"/console/topics/{jobs.topic}/bulk/preview"
    for data, text in (
        ({"action": "cancel"}, "Select some jobs first."),
        ({"action": "cancel", "all": "1"}, "Choose a state or a tag first"),
        ({"action": "format"}, "Choose what to do."),
    ):
        assert f'<p class="error" role="alert">{text}' in seen(browser_like, browser_like.post(path, data=data))
    assert jobs.get("a") is not None


def test_a_notice_that_nothing_was_done_is_an_error(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600)
    root = f"/console/topics/{jobs.topic}"
    for path, data, text in (
        (f"{root}/jobs/a/redrive", {}, "It is not dead any more."),
        (f"{root}/jobs/gone/cancel", {}, "There is no such job any more."),
        (f"{root}/jobs/gone/run", {}, "Nothing was changed: "),
        ("/console/undo", {"token": "x"}, "There is nothing to put back"),
    ):
        page = seen(browser_like, browser_like.post(path, data=data))
        assert f'<p class="error" role="alert">{text}' in page, path
        assert 'class="notice"' not in page, path
    _, done = act(browser_like, jobs.topic, "redrive", {"ids": ["a"]})
    assert '<p class="error" role="alert">0 jobs were redriven.' in seen(browser_like, done)


def test_many_jobs_keep_the_name_that_was_typed_while_the_due_time_is_shown(
    browser_like: httpx.Client, jobs: Producer
) -> None:
    jobs.put(*(f"j{number}" for number in range(1000)), delay=600)
    jobs.put("last", delay=600)
    path = f"/console/topics/{jobs.topic}/bulk"
    preview = preview_of(browser_like, jobs.topic, {"action": "reschedule", "state": "delayed", "all": "1"})
    sent = {**fields_of(preview.text, path[1:]), "when": "+1h", "typed": jobs.topic}
    shown = browser_like.post(path, data=sent).text
    assert f'name="typed" value="{jobs.topic}"' in shown
    again = {**fields_of(shown, path[1:]), "when": "+1h", "typed": jobs.topic}
    assert "/console/tasks/" in browser_like.post(path, data=again).headers["location"]


def test_a_body_is_edited_unless_it_changed_meanwhile(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600, body={"n": 1})
    path = f"/console/topics/{jobs.topic}/jobs/a/edit"
    base = fields_of(browser_like.get(path).text, path[1:])["base"]
    exact = '{"n": 1.25, "b": 12345678901234567890123}'
    assert browser_like.post(path, data={"body": "{", "base": base}).status_code == 422
    assert "Changed: body." in seen(browser_like, browser_like.post(path, data={"body": exact, "base": base}))
    raw = browser_like.get(f"/console/topics/{jobs.topic}/jobs/a/raw/body").text
    assert raw == exact.replace(" ", "")
    late = browser_like.post(path, data={"body": '{"n": 2}', "base": base})
    assert (late.status_code, "changed meanwhile" in late.text) == (422, True)
    assert browser_like.get(f"/console/topics/{jobs.topic}/jobs/a/raw/body").text == raw


def test_a_list_goes_on_where_the_search_ended(browser_like: httpx.Client, jobs: Producer) -> None:
    for start in range(0, 12_000, 1000):
        jobs.put(*(f"j{number:05}" for number in range(start, start + 1000)), delay=600)
    jobs.put("last", delay=700)
    page = browser_like.get(f"/console/topics/{jobs.topic}/jobs?state=delayed&id=las").text
    assert "searched 10,000 of 12,001" in page
    link = re.findall(r'href="([^"]+)" rel="next"', page)[0]
    page = browser_like.get("/" + html.unescape(link)).text
    assert 'data-row="last"' in page
    assert "searched 12,001" in page
    newest = browser_like.get(f"/console/topics/{jobs.topic}/jobs?state=delayed&order=desc").text
    assert re.findall(r'data-row="([^"]+)"', newest)[:2] == ["last", "j11999"]
    exact = browser_like.get(f"/console/topics/{jobs.topic}/jobs?id=last").text
    assert "There is a job with this id" in exact


def test_a_wrong_filter_is_explained(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600)
    page = browser_like.get(f"/console/topics/{jobs.topic}/jobs?due_after=soon").text
    assert "Due from must be an instant" in page
    page = browser_like.get(f"/console/topics/{jobs.topic}/jobs?tag=a+b").text
    assert "query.tag" in page
    assert browser_like.get("/console/topics/no-such-topic/jobs").status_code == 404
    assert browser_like.get(f"/console/topics/{jobs.topic}/jobs?cursor=x").status_code == 200


@pytest.mark.parametrize(
    ("progress", "shown"),
    [
        (0.257, '<progress value="0.257" max="1" aria-label="Progress"></progress><span>26 %</span>'),
        (1, '<progress value="1" max="1" aria-label="Progress"></progress><span>100 %</span>'),
        (True, "<span>Progress</span> <code>true</code>"),
        (2, "<span>Progress</span> <code>2</code>"),
        ({"done": "<b>"}, "<span>Progress</span> <code>{&#34;done&#34;: &#34;&lt;b&gt;&#34;}</code>"),
    ],
)
def test_the_progress_of_a_job_is_a_bar_or_json(
    browser_like: httpx.Client, jobs: Producer, progress: Any, shown: str
) -> None:
    jobs.put("a")
    path = f"/jobs/{jobs.topic}/a/touch"
    jobs.http.post(path, json={"receipt": jobs.pop()[0]["receipt"], "progress": progress}).raise_for_status()
    page = browser_like.get(f"/console/topics/{jobs.topic}/jobs/a").text
    assert shown in page


def test_a_job_that_is_gone_says_what_is_known(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("order-1041", delay=600)
    gone = browser_like.get(f"/console/topics/{jobs.topic}/jobs/order-1042")
    assert gone.status_code == 404
    assert f'href="console/topics/{jobs.topic}/jobs/order-1041"' in gone.text


# Bounds of what an action acts on

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
    preview = preview_of(browser_like, jobs.topic, {"action": "cancel", "state": "delayed", "all": "1"})
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
        preview = preview_of(browser_like, topic, form)
        jobs.put("late", delay=600)
        fields = fields_of(preview.text, f"console/topics/{topic}/bulk")
        again = browser_like.post(f"/console/topics/{topic}/bulk", data={**fields, "when": "soon"})
        assert (again.status_code, "Say when" in again.text) == (422, True)
        assert fields_of(again.text, f"console/topics/{topic}/bulk")["cutoff"] == fields["cutoff"]
        shown = browser_like.post(f"/console/topics/{topic}/bulk", data={**fields, "when": "now"})
        fields = fields_of(shown.text, f"console/topics/{topic}/bulk")
        done = browser_like.post(f"/console/topics/{topic}/bulk", data={**fields, "when": "now"})
        assert "1 job was rescheduled." in seen(browser_like, done)
        assert (jobs.get("late") or {})["state"] == "delayed"


@pytest.mark.parametrize("value", ["", "tomorow"])
def test_an_action_without_the_cutoff_of_a_preview_does_nothing(browser_like: httpx.Client, value: str) -> None:
    with Producer(str(browser_like.base_url), "no-cutoff") as jobs:
        jobs.put("a", delay=600)
        for state in ("delayed", "dead"):
            data = {"action": "cancel", "state": state, "cutoff": value}
            assert browser_like.post("/console/topics/no-cutoff/bulk", data=data).status_code == 422
        assert jobs.get("a") is not None
        browser_like.post("/console/topics/no-cutoff/jobs/a/cancel")


@pytest.mark.parametrize(
    ("field", "value"), [("due_before", "tomorow"), ("due_after", "2030-13-01"), ("state", "delay")]
)
def test_a_filter_that_cannot_be_read_does_nothing(browser_like: httpx.Client, field: str, value: str) -> None:
    topic = f"bad-filter-{field}"
    with Producer(str(browser_like.base_url), topic) as jobs:
        jobs.put("a", delay=600)
        data = {"action": "cancel", "state": "delayed", "all": "1", field: value}
        after_preview = {**data, "cutoff": "2099-01-01T00:00:00Z"}
        for path, sent in (("bulk/preview", data), ("bulk", after_preview)):
            refused = browser_like.post(f"/console/topics/{topic}/{path}", data=sent)
            assert refused.status_code == 422
            assert f"<code>{field}</code> must be" in refused.text
            assert value in refused.text
        assert jobs.get("a") is not None


def test_a_list_keeps_the_zone_of_a_link_for_the_times_in_it(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600)
    path = f"/console/topics/{jobs.topic}/jobs?zone=Europe/Berlin"
    fixed = '<input type="hidden" name="zone" value="Europe/Berlin" data-zone data-fixed>'
    assert fixed in browser_like.get(f"{path}&due_before=19:00").text
    without_times = browser_like.get(f"{path}&id=a")
    assert (without_times.status_code, fixed in without_times.text) == (200, False)
    unknown = browser_like.get(f"/console/topics/{jobs.topic}/jobs?zone=Mars/Phobos&due_after=19:00").text
    assert "Due from must be in a known time zone, which Mars/Phobos is not" in unknown


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
        linked = browser_like.get("/console/dead/cancel", params={**group, "cutoff": "2099-01-01T00:00:00Z"})
        fields = fields_of(linked.text, "console/dead/cancel")
        assert not fields["cutoff"].startswith("2099")
        again = browser_like.post("/console/dead/cancel", data={**fields, "cutoff": ""})
        assert (again.status_code, "Cancel 1 job" in again.text) == (200, True)
        assert jobs.get("a") is not None
        assert browser_like.post("/console/dead/cancel", data=fields).status_code == 303
        assert jobs.get("a") is None


def test_characters_that_reorder_text_are_shown_as_escapes_and_kept(browser_like: httpx.Client, jobs: Producer) -> None:
    body = {"amount": "\u202e00.1", "to": "a\u2066b"}
    jobs.fail("j", "no user \u202eada", body=body)
    root = f"/console/topics/{jobs.topic}/jobs"
    pages = {path: browser_like.get(f"{root}/j{path}").text for path in ("", "/part/body", "/part/curl", "/edit")}
    for path, page in pages.items():
        assert re.search("[\u202e\u2066]", page) is None, path
    assert "\\u202eada" in pages[""]
    assert html.unescape(pages["/part/body"]).count('"\\u202e00.1"') == 1
    form = fields_of(pages["/edit"], f"console/topics/{jobs.topic}/jobs/j/edit")
    text = html.unescape(pages["/edit"].partition("</textarea>")[0].rpartition(">")[2])
    saved = browser_like.post(f"{root}/j/edit", data={**form, "body": text.replace("00.1", "00.2")})
    assert saved.status_code == 303
    assert (jobs.get("j") or {})["body"] == {**body, "amount": "\u202e00.2"}


def test_what_only_the_application_can_read_is_shown_as_encrypted_and_cannot_be_written(
    browser_like: httpx.Client, jobs: Producer
) -> None:
    cipher = Cipher(Cipher.new_key("k2"))

    def sealed(value: object, part: str = "body") -> Any:
        return cipher.encrypt(value, topic=jobs.topic, part=part)

    headers = {"to": sealed("ada", "header:to"), "from": "bob"}
    jobs.fail(
        "j", sealed("x" * 500, "error"), body=sealed({"n": 1}), headers=headers
    )  # the log of attempts cuts it off
    root = f"/console/topics/{jobs.topic}/jobs"
    jobs.fail("dead", sealed("boom", "error"), dead=True)
    assert "A consumer buried it: an error that is encrypted with key k2. " in browser_like.get(f"{root}/dead").text
    of_dead = browser_like.get("/console/dead", params={"topics": jobs.topic}).text
    assert '<p class="group-error">encrypted with key k2</p>' in of_dead
    assert 'class="group-originals"' not in of_dead  # the same text, encrypted
    jobs.http.delete(f"/jobs/{jobs.topic}/dead").raise_for_status()
    pages = {path: browser_like.get(f"{root}{path}").text for path in ("", "/j", "/j/part/body", "/j/edit")}
    told = "encrypted with key k2"
    assert pages[""].count(told) == 2  # the error, and its title
    assert pages["/j"].count(told) == 3  # why it has not run, the header, and the error of the attempt
    assert "bob" in pages["/j"]
    assert "Encrypted with key <code>k2</code>: only the application can read it." in pages["/j/part/body"]
    assert "The body is encrypted with key k2, so only the application can write it" in pages["/j/edit"]
    assert browser_like.get(f"{root}/j/raw/body").json()["key"] == "k2"
    sent = {"action": "cancel", "scope": "ids", "ids": "j"}
    assert told in preview_of(browser_like, jobs.topic, sent).text
    copied = browser_like.post(f"{root}/j/copy")
    copy = jobs.get(copied.headers["location"].partition("?")[0].rpartition("/")[2])
    assert cipher.decrypt((copy or {})["body"], topic=jobs.topic) == {"n": 1}
