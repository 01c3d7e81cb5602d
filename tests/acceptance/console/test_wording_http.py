"""Sentences of pages whose numbers are 0, 1 and 2: nouns and verbs agree with them, and sentences are apart."""

from __future__ import annotations

import html
import re
from urllib.parse import urlencode

import httpx
import pytest

from deferd.console.views.jobs import ACTIONS
from tests.acceptance.console.job_pages import Producer
from tests.acceptance.console.test_console_jobs_http import fields_of, seen
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import wait_until

STATES = ("delayed", "ready", "reserved", "dead", "finished")
_NOT_TEXT = re.compile(r"<(script|style|code|pre|data|head|option)\b.*?</\1>|<input[^>]*>", re.DOTALL)
_INLINE = re.compile(r"</?(?:a|b|strong|em|small|span|time|kbd|label)\b[^>]*>")
_TAG = re.compile(r"<[^>]*>")
_NOUNS = (
    "jobs topics attempts alerts consumers keys groups runs times shards things others ones dates characters were are"
)
FAULTS = {
    "a plural after 1": re.compile(rf"(?<![\d,.:])\b1 (?:of them |[a-z]+ )?(?:{'|'.join(_NOUNS.split())})\b"),
    "a singular after another number": re.compile(
        r"(?<![\d,.:])\b(?:0|[2-9]) (?:of them |[a-z]+ )?(?:job|topic|is|was)\b"
    ),
    "sentences without a space between": re.compile(r"[a-z)][.!?;][A-Z0-9]"),
    "a space before punctuation": re.compile(r"\w [.,;:!?](?: |$)"),
    "double punctuation": re.compile(r"[.,;:][.,;:]"),
}


def faults_of(page: str) -> list[str]:
    """What is wrong in the texts of a page, as a browser shows them; code and what is typed do not count."""
    texts = _TAG.split(_INLINE.sub("", _NOT_TEXT.sub("<hr>", page)))
    lines = [" ".join(html.unescape(text).split()) for text in texts]
    return [f"{name}: {line}" for line in lines for name, fault in FAULTS.items() if fault.search(line)]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("<p>The 1 that you selected.1 of them are gone or do not apply.</p>", "sentences without a space between"),
        ("<p>The 1 that you selected. 1 of them are gone.</p>", "a plural after 1"),
        ("<p><strong>1</strong> dead jobs</p>", "a plural after 1"),
        ("<p>2 job is held</p>", "a singular after another number"),
        ("<p>snoozed 1 times</p>", "a plural after 1"),
        ("<p>It is due <b>now</b> .</p>", "a space before punctuation"),
    ],
)
def test_faults_are_found(text: str, fault: str) -> None:
    assert [found.partition(":")[0] for found in faults_of(text)][:1] == [fault]
    assert faults_of("<p>You selected 1 job. 1 of them is gone; 21 jobs are left, at 10:11 jobs too.</p>") == []


COUNTS = (0, 1, 2)


def topic_of(count: int) -> str:
    return f"wording-{count}"


def ids_of(count: int) -> dict[str, list[str]]:
    """The jobs in each state, in the topic that has so many of each."""
    return {state: [f"{state}-{number}" for number in range(count)] for state in STATES}


@pytest.fixture(scope="module")
def filled(without_keys: ServiceProcess) -> ServiceProcess:
    """The service with the topics, once the page of dead jobs lists them."""
    for count in COUNTS:
        with Producer(without_keys.url, topic_of(count)) as jobs:
            fill(jobs, count)
    dead = f"{without_keys.url}/dead"
    wait_until(lambda: topic_of(2) in httpx.get(dead, verify=NO_TLS).text, 10, "the group is listed")
    return without_keys


def fill(jobs: Producer, count: int) -> None:
    jobs.http.put(f"/topics/{jobs.topic}", json={"max_attempts": 9}).raise_for_status()
    ids = ids_of(count)
    for job_id in ids["finished"]:
        jobs.put(job_id, retain=600)
        [popped] = jobs.pop()
        receipt = {"receipt": popped["receipt"]}
        jobs.http.post(f"/jobs/{jobs.topic}/{job_id}/finish", json=receipt).raise_for_status()
    for job_id in ids["dead"]:
        jobs.fail(job_id, "no such order", dead=True)
    for job_id in ids["reserved"]:
        jobs.put(job_id)
        jobs.pop()
    if count:
        jobs.put(*ids["delayed"], delay=600, tags=["x"])
        jobs.put(*ids["ready"], tags=["x"])


@pytest.mark.parametrize("count", COUNTS)
def test_all_sentences_agree_with_their_numbers(filled: ServiceProcess, browser_like: httpx.Client, count: int) -> None:
    topic, ids = topic_of(count), ids_of(count)
    root, all_ids = f"/console/topics/{topic}", [job_id for state in STATES for job_id in ids[state]]
    group = urlencode({"topic": topic, "reason": "buried", "error": "no such order"})
    paths = [
        *("/", *(f"/console/{page}" for page in ("topics", "schedules", "tasks", "system", "system/audit"))),
        *(root, f"{root}/audit", f"{root}/jobs", f"{root}/jobs?tag=x", f"{root}/jobs?id=dead"),
        *(f"{root}/jobs?state={state}" for state in STATES),
        *(f"{root}/jobs/{job_id}" for job_id in (*all_ids, "none")),
        *(f"/console/{page}?topics={topic}" for page in ("dead", "activity", "search")),
        *(f"/console/{page}&topics={topic}" for page in ("dead?since=1h", "search?q=x", "search?q=nothing")),
        *(f"/console/dead/{action}?{group}" for action in ("redrive", "cancel")),
        f"/console/consumers?q={topic}",
    ]
    for name, action in ACTIONS.items():
        selections = [{"state": state, "all": "1"} for state in action.states] + [{"tag": "x", "all": "1"}]
        selections += [{"id_list": " ".join(some)} for some in (["gone", *all_ids], ids["delayed"], ids["reserved"])]
        paths += [f"{root}/bulk?{urlencode({'action': name, **selected})}" for selected in selections]
    pages = {path: browser_like.get(path, follow_redirects=True).text for path in paths}
    for name, state in (("run_now", "delayed"), ("redrive", "dead"), ("cancel", "reserved"), ("cancel", "ready")):
        link = f"{root}/bulk?action={name}&state={state}&all=1"
        preview = browser_like.get(link, follow_redirects=True).text
        if count:
            path = f"{root[1:]}/bulk"
            done = browser_like.post(f"/{path}", data={**fields_of(preview, path), "held": "cancel"})
            pages[f"notice of {link}"] = seen(browser_like, done)
    assert {path: faults for path, page in pages.items() if (faults := faults_of(page))} == {}
