"""Sentences of pages whose numbers are 0, 1 and 2: nouns and verbs agree with them, and sentences are apart."""

from __future__ import annotations

import html
import re
from urllib.parse import urlencode, urljoin

import httpx
import pytest

from deferd.console.views.jobs import ACTIONS
from tests.acceptance.console.job_pages import Producer
from tests.acceptance.console.test_console_jobs_http import fields_of
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
    "sentences without a space between": re.compile(r"[a-z)][.!?:;][A-Z0-9]"),
    "a space before punctuation": re.compile(r"\w [.,;:!?](?: |$)"),
    "double punctuation": re.compile(r"[.,;:][.,;:]"),
    "a word twice": re.compile(r"\b([a-z]+) \1\b"),
    "a sentence of one noun": re.compile(r"\bjob\(s\)"),
}


def faults_of(page: str) -> list[str]:
    """What is wrong in the texts of a page, as a browser shows them; code and what is typed do not count."""
    text = _TAG.sub("\n", _INLINE.sub("", _NOT_TEXT.sub("\n", page)))
    lines = [" ".join(html.unescape(line).split()) for line in re.sub(r"\n(?=\s*[a-z])", " ", text).split("\n")]
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


@pytest.mark.parametrize("count", [0, 1, 2])
def test_all_sentences_agree_with_their_numbers(browser_like: httpx.Client, count: int) -> None:
    with Producer(str(browser_like.base_url), f"wording-{count}") as jobs:
        ids = {state: [f"{state}-{number}" for number in range(count)] for state in STATES}
        jobs.http.put(f"/topics/{jobs.topic}", json={"max_attempts": 9}).raise_for_status()
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
        if ids["dead"]:
            wait_until(lambda: jobs.topic in browser_like.get("/dead").text, 10, "the group is listed")
        root, all_ids = f"/console/topics/{jobs.topic}", [job_id for state in STATES for job_id in ids[state]]
        group = urlencode({"topic": jobs.topic, "reason": "buried", "error": "no such order"})
        paths = [
            *("/", *(f"/console/{page}" for page in ("topics", "schedules", "tasks", "system", "system/audit"))),
            *(root, f"{root}/audit", f"{root}/jobs", f"{root}/jobs?tag=x", f"{root}/jobs?id=dead"),
            *(f"{root}/jobs?state={state}" for state in STATES),
            *(f"{root}/jobs/{job_id}" for job_id in (*all_ids, "none")),
            *(f"/console/{page}?topics={jobs.topic}" for page in ("dead", "activity", "search")),
            *(f"/console/{page}&topics={jobs.topic}" for page in ("dead?since=1h", "search?q=x", "search?q=nothing")),
            *(f"/console/dead/{action}?{group}" for action in ("redrive", "cancel")),
            f"/console/consumers?q={jobs.topic}",
        ]
        paths += [
            f"{root}/bulk?{urlencode({'action': action, **selected})}"
            for action in ACTIONS
            for selected in (
                *({"state": state, "all": 1} for state in STATES),
                {"tag": "x", "all": 1},
                {"id_list": " ".join([*all_ids, "gone"])},
                {"id_list": " ".join(ids["delayed"]) or "gone"},
                {"id_list": " ".join(ids["reserved"]) or "gone"},
            )
        ]
        pages = {path: browser_like.get(path, follow_redirects=True).text for path in paths}
        for action, state in (("run_now", "delayed"), ("redrive", "dead"), ("cancel", "reserved"), ("cancel", "ready")):
            link = f"{root}/bulk?action={action}&state={state}&all=1"
            preview = browser_like.get(link, follow_redirects=True).text
            if count:
                path = f"{root[1:]}/bulk"
                done = browser_like.post(f"/{path}", data={**fields_of(preview, path), "held": "cancel"})
                seen = browser_like.get(urljoin(str(done.request.url), done.headers["location"]))
                pages[f"notice of {link}"] = seen.text
    found = {path: faults for path, page in pages.items() if (faults := faults_of(page))}
    assert found == {}
