"""Forms of the console, as a browser without scripts sends them: what they store, refuse, keep and need."""

from __future__ import annotations

import contextlib
import html
import re
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import pytest

from deferd.contract.webhook_signature import BadSignature, verify
from tests.acceptance.console.conftest import OWN_PAGE, KeyedService, console
from tests.acceptance.console.job_pages import Producer, call
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess
from tests.push_receiver import Received, Receiver, receiver
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
NIGHTLY = {"topic": "reports", "cron": "30 2 * * *", "zone": "Europe/Berlin", "overlap": "skip", "catch_up": "all"}
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
EXACT = '{"n": 1.25, "b": 12345678901234567890123}'


def values_of(page: str) -> dict[str, str]:
    """What the form of a page has in its fields."""
    form = re.search(r'<form[^>]* id="form".*?</form>', page, re.DOTALL)
    assert form is not None
    found = {}
    for tag in re.findall(r"<input[^>]*>", form[0]):
        name, value = re.search(r' name="([^"]*)"', tag), re.search(r' value="([^"]*)"', tag)
        if name is not None:
            found[name[1]] = html.unescape(value[1]) if value is not None else ""
    for name, text in re.findall(r'<textarea[^>]* name="([^"]*)"[^>]*>\n?(.*?)</textarea>', form[0], re.DOTALL):
        found[name] = html.unescape(text)
    for name, options in re.findall(r'<select[^>]* name="([^"]*)"[^>]*>(.*?)</select>', form[0], re.DOTALL):
        chosen = re.search(r'<option value="([^"]*)" selected', options)
        found[name] = chosen[1] if chosen is not None else ""
    return found


def errors_of(page: str) -> dict[str, str]:
    """By the name of a field, the error beside it, which must be at the top of the page too."""
    fields = re.findall(r'id="hint-([^"]+)"><span class="field-error">([^<]*)<', page)
    top = re.search(r'<div class="error" role="alert">.*?</div>', page, re.DOTALL)
    for name, text in fields:
        assert top is not None
        assert f'#set-{name}"' in top[0], name
        assert text in top[0], name
    return {name: html.unescape(text) for name, text in fields}


def stored(service: ServiceProcess, path: str) -> Any:
    response = httpx.get(f"{service.url}{path}", verify=NO_TLS)
    return response.json() if response.status_code == 200 else None


# Schedules


def test_a_schedule_is_created_and_changed(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    form = values_of(browser_like.get("/console/new-schedule?topic=reports").text)
    assert (form["topic"], form["zone"], form["catch_up"]) == ("reports", "UTC", "last")
    job = {
        "job.body": EXACT,
        "job.tags": "a, b",
        "job.group": "g",
        "job.priority": "9",
        "job.ttl": "none",
        "job.ttr": "5m",
    }
    wanted = {**form, **NIGHTLY, "name": "forms.nightly", **job}
    created = browser_like.post("/console/new-schedule", data=wanted)
    assert (created.status_code, created.headers["location"]) == (303, "../console/schedules/forms.nightly")
    found = stored(without_keys, "/schedules/forms.nightly")
    assert {name: found[name] for name in NIGHTLY} == NIGHTLY
    job = found["job"]
    assert (job["tags"], job["ttl"], job["ttr"]) == (["a", "b"], None, 300)
    assert (job["group"], job["priority"]) == ("g", 9)

    path = "/console/schedules/forms.nightly/edit"
    form = values_of(browser_like.get(path).text)
    assert (form["cron"], form["overlap"], form["job.tags"], form["job.ttl"]) == ("30 2 * * *", "skip", "a, b", "none")
    changed = browser_like.post(path, data={**form, "cron": "", "at": "09:00, 17:30", "days": "Mon-Fri"})
    assert changed.status_code == 303
    found = stored(without_keys, "/schedules/forms.nightly")
    assert (found["at"], found["days"][-1], "cron" in found) == (["09:00", "17:30"], "fri", False)
    assert found["job"] == job
    exact = httpx.get(f"{without_keys.url}/schedules/forms.nightly", verify=NO_TLS).text
    assert EXACT.replace(" ", "") in exact


def test_a_refused_schedule_keeps_what_was_typed(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    wrong = {"zone": "Mars/Base", "job.headers": "{", "job.ttr": "0", "end_at": "soon", "max_runs": "0"}
    typed = {**NIGHTLY, "name": "forms.refused", "cron": "", "every": "5m", **wrong}
    refused = browser_like.post("/console/new-schedule", data=typed)
    assert refused.status_code == 422
    assert set(errors_of(refused.text)) == {"job.headers", "job.ttr", "end_at", "max_runs", "zone"}
    shown = values_of(refused.text)
    assert {name: shown[name] for name in typed} == typed
    fewer = {**typed, "job.headers": "", "job.ttr": "", "end_at": "", "max_runs": ""}
    refused = browser_like.post("/console/new-schedule", data={**fewer, "cron": "30 2 * * *"})
    assert (refused.status_code, "exactly one of" in refused.text) == (422, True)
    fewer = {**fewer, "every": "", "cron": "30 2"}
    refused = browser_like.post("/console/new-schedule", data=fewer)
    assert (refused.status_code, set(errors_of(refused.text))) == (422, {"cron", "zone"})
    refused = browser_like.post("/console/new-schedule", data={**fewer, "cron": "30 2 * * *"})
    assert "Mars/Base" in errors_of(refused.text)["zone"]
    refused = browser_like.post("/console/new-schedule", data={**NIGHTLY, "name": "a b"})
    assert "must match" in errors_of(refused.text)["name"]
    refused = browser_like.post("/console/new-schedule", data=NIGHTLY)
    assert errors_of(refused.text) == {"name": "is required"}
    assert stored(without_keys, "/schedules/forms.refused") is None


def test_a_new_schedule_replaces_no_other(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    call(without_keys, "PUT", "/schedules/forms.taken", {"topic": "reports", "every": 60})
    refused = browser_like.post("/console/new-schedule", data={**NIGHTLY, "name": "forms.taken"})
    assert (refused.status_code, errors_of(refused.text)) == (422, {"name": "is that of another schedule"})
    assert stored(without_keys, "/schedules/forms.taken")["every"] == 60


def test_a_schedule_that_was_changed_meanwhile_stays(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    call(without_keys, "PUT", "/schedules/forms.late", {"topic": "reports", "every": 60})
    path = "/console/schedules/forms.late/edit"
    form = values_of(browser_like.get(path).text)
    call(without_keys, "PUT", "/schedules/forms.late", {"topic": "reports", "every": 90})
    late = browser_like.post(path, data={**form, "every": "30"})
    assert (late.status_code, "changed meanwhile" in late.text) == (422, True)
    assert values_of(late.text)["every"] == "30"
    assert stored(without_keys, "/schedules/forms.late")["every"] == 90


def test_a_changed_schedule_stays_paused_and_keeps_what_the_form_lacks(
    without_keys: ServiceProcess, browser_like: httpx.Client
) -> None:
    job = {"durability": "memory"}
    call(without_keys, "PUT", "/schedules/forms.paused", {"topic": "reports", "every": 60, "paused": True, "job": job})
    path = "/console/schedules/forms.paused/edit"
    form = values_of(browser_like.get(path).text)
    assert browser_like.post(path, data={**form, "every": "2m"}).status_code == 303
    found = stored(without_keys, "/schedules/forms.paused")
    assert (found["every"], found["paused"], found["job"]["durability"]) == (120, True, "memory")


def test_the_next_runs_are_shown_before_anything_is_stored(
    without_keys: ServiceProcess, browser_like: httpx.Client
) -> None:
    typed = {**NIGHTLY, "name": "forms.preview", "topic": ""}
    runs = browser_like.post("/console/new-schedule?fragment=runs", data=typed).text
    assert "<html" not in runs
    next_runs, changes = runs.split("When clocks change")
    assert next_runs.count("<tr") == 13
    assert "02:30:00" in next_runs
    marked = re.findall(r'<tr class="changes-clock">\s*<td class="mono">(.*?)<', changes)
    assert sorted(re.sub(r"^\w+ \d+-(\d+)-\d+ ", r"\1 ", run).strip() for run in marked) in (
        ["03 03:00:00", "10 02:30:00"],
        ["03 03:00:00", "11 02:30:00"],  # the first run after a change on the last of October
        ["03 03:00:00"],
        ["10 02:30:00"],
        ["11 02:30:00"],
    )
    page = browser_like.post("/console/new-schedule", data={**typed, "then": "preview"})
    assert (page.status_code, page.text.count("<tr") > 13, values_of(page.text)["cron"]) == (200, True, "30 2 * * *")
    wrong = browser_like.post("/console/new-schedule?fragment=runs", data={**typed, "cron": "30 2 * *"})
    assert (wrong.status_code, "Cron expression" in wrong.text) == (200, True)
    assert stored(without_keys, "/schedules/forms.preview") is None


def test_an_interval_is_previewed_from_when_its_schedule_was_created(
    without_keys: ServiceProcess, browser_like: httpx.Client
) -> None:
    call(without_keys, "PUT", "/schedules/forms.every", {"topic": "reports", "every": 3600})
    planned = [
        run["utc"][:19].replace("T", " ") for run in stored(without_keys, "/schedules/forms.every/preview")["runs"]
    ]
    page = browser_like.get("/console/schedules/forms.every/edit").text
    assert planned[0] in page
    assert planned[11] in page


def test_a_key_without_put_can_change_no_schedule(with_keys: KeyedService) -> None:
    admin = with_keys.keys.tokens["admin"]
    call(with_keys.service, "PUT", "/schedules/forms.guarded", {"topic": "reports", "every": 60}, token=admin)
    with console(with_keys, "read") as reader:
        for path in ("/console/schedules", "/console/schedules/forms.guarded", "/console/new-schedule"):
            page = reader.get(path)
            assert re.search(r'disabled title="needs scope put"', page.text), path
        form = values_of(reader.get("/console/schedules/forms.guarded/edit").text)
        refused = reader.post("/console/schedules/forms.guarded/edit", data={**form, "every": "30"})
        assert (refused.status_code, "This needs scope <code>put</code>" in refused.text) == (403, True)
        other = {"Sec-Fetch-Site": "cross-site"}
        forged = reader.post("/console/new-schedule", data={**NIGHTLY, "name": "forged"}, headers=other)
        assert (forged.status_code, "did not come from a page" in forged.text) == (403, True)
    assert call(with_keys.service, "GET", "/schedules/forms.guarded", token=admin)["every"] == 60


def test_masked_fields_of_a_scheduled_job_are_not_shown_and_stay(masking: KeyedService) -> None:
    token = masking.keys.tokens["operator"]
    body = {"password": "hunter22-secret", "n": 1}
    definition = {"topic": "reports", "every": 60, "job": {"body": body, "headers": {"x": "y"}}}
    call(masking.service, "PUT", "/schedules/forms.masked", definition, token=token)
    with console(masking, "operator") as client:
        page = client.get("/console/schedules/forms.masked/edit")
        assert ("hunter22" in page.text, "The body of the job is masked" in page.text) == (False, True)
        form = values_of(page.text)
        assert "job.body" not in form
        sent = {**form, "every": "90", "job.body": "{}", "job.headers": '{"x": "z"}'}
        assert client.post("/console/schedules/forms.masked/edit", data=sent).status_code == 303
    found = call(masking.service, "GET", "/schedules/forms.masked", token=token)
    assert (found["every"], found["job"]) == (90, {"body": body, "headers": {"x": "z"}})


# Push


@pytest.fixture
async def target() -> AsyncIterator[Receiver]:
    async with receiver() as one:
        yield one


@pytest.fixture
async def pushing(pushing_service: ServiceProcess) -> AsyncIterator[httpx.AsyncClient]:
    """A browser without scripts at the console of a service that may push to this host."""
    async with httpx.AsyncClient(base_url=pushing_service.url, headers=OWN_PAGE, timeout=10, verify=NO_TLS) as client:
        yield client


def signers(request: Received, secrets: Iterable[str]) -> list[str]:
    """The secrets that signed a request."""
    signed = []
    for secret in secrets:
        with contextlib.suppress(BadSignature):
            verify([secret], request.headers, request.body, time.time())
            signed.append(secret)
    return signed


async def test_a_push_is_set_tested_and_removed_and_its_secret_rotated(
    pushing: httpx.AsyncClient, target: Receiver, topic: str
) -> None:
    path = f"/console/topics/{topic}/push"

    async def store(**typed: str) -> str:
        form = values_of((await pushing.get(path)).text)
        saved = await pushing.post(path, data={**form, **typed})
        assert saved.status_code == 303, errors_of(saved.text)
        tested = await pushing.post(f"{path}/test")
        assert (tested.status_code, "responded with status <strong>200</strong>" in tested.text) == (200, True)
        return tested.text

    async def new_secret() -> str:
        form = values_of((await pushing.get(path)).text)
        page = await pushing.post(path, data={**form, "url": target.url, "then": "secret"})
        typed = values_of(page.text)
        assert typed["url"] == target.url
        return typed["secrets.0"]

    old = await new_secret()
    assert (await pushing.get(f"/topics/{topic}/push")).status_code == 404  # only filled in
    page = await store(url=target.url, **{"secrets.0": old, "timeout": "5s"})
    assert old not in page
    new = await new_secret()
    assert new != old
    page = await store(**{"secrets.0": new, "secrets.1": old})
    assert "Two secrets sign each request" in page
    await store(timeout="6")
    await store(**{"secrets.0": new})
    assert [signers(request, (old, new)) for request in target.requests] == [[old], [old, new], [old, new], [new]]
    shown = (await pushing.get(f"/topics/{topic}/push")).json()
    assert (shown["url"], shown["timeout"], shown["secret_count"]) == (target.url, 6, 1)

    refused = await pushing.post(f"{path}/remove", data={"typed": "another"})
    assert refused.status_code == 303
    assert (await pushing.get(f"/topics/{topic}/push")).status_code == 200
    assert (await pushing.post(f"{path}/remove", data={"typed": topic})).status_code == 303
    assert (await pushing.get(f"/topics/{topic}/push")).status_code == 404


async def test_a_refused_push_keeps_what_was_typed_and_what_is_stored(pushing: httpx.AsyncClient, topic: str) -> None:
    path = f"/console/topics/{topic}/push"
    base = values_of((await pushing.get(path)).text)["base"]
    typed = {"base": base, "url": "ftp://x", "secrets.0": "whsec_short", "timeout": "soon", "rate": "0", "mode": "job",
             "headers": "host: x"}  # fmt: skip
    refused = await pushing.post(path, data=typed)
    assert set(errors_of(refused.text)) == {"url", "secrets.0", "timeout", "rate", "headers"}
    assert {name: values_of(refused.text)[name] for name in typed} == typed
    fine = {"base": base, "url": "https://hooks.example.net/", "mode": "job"}
    assert "--push-allow" in errors_of((await pushing.post(path, data={**fine, "secrets.0": SECRET})).text)["url"]
    fine["url"] = "https://hooks.example.com/"
    assert "is required" in errors_of((await pushing.post(path, data=fine)).text)["secrets.0"]
    sent = {**fine, "secrets.0": SECRET, "headers": "authorization: Bearer hidden7\nx-shop: 7"}
    assert (await pushing.post(path, data=sent)).status_code == 303

    page = (await pushing.get(path)).text
    assert ("hidden7" in page, values_of(page)["headers"]) == (False, "authorization:\nx-shop:")
    lost = await pushing.post(path, data={**values_of(page), "timeout": "7"})  # the values would be lost
    assert (lost.status_code, set(errors_of(lost.text))) == (422, {"headers"})
    late = await pushing.post(path, data={**sent, "timeout": "7"})
    assert (late.status_code, "changed meanwhile" in late.text) == (422, True)
    assert (await pushing.get(f"/topics/{topic}/push")).json()["timeout"] == 30


async def test_a_test_says_why_a_target_does_not_respond(pushing: httpx.AsyncClient, topic: str) -> None:
    body = {"url": "http://127.0.0.1:9/", "secrets": [SECRET]}
    (await pushing.put(f"/topics/{topic}/push", json=body)).raise_for_status()
    page = await pushing.post(f"/console/topics/{topic}/push/test")
    assert (page.status_code, page.text.count("no connection to the target")) == (200, 1)


def test_a_key_without_admin_sees_no_push(with_keys: KeyedService) -> None:
    call(with_keys.service, "POST", "/jobs", {"topic": "unpushed"}, token=with_keys.keys.tokens["put"])
    with console(with_keys, "read") as reader:
        topic = reader.get("/console/topics/unpushed").text
        assert re.search(r'<button[^>]*disabled title="needs scope admin">Push to a URL', topic)
        for method in ("GET", "POST"):
            page = reader.request(method, "/console/topics/unpushed/push")
            assert (page.status_code, "This needs scope <code>admin</code>" in page.text) == (403, True)
        for action in ("test", "remove"):
            assert reader.post(f"/console/topics/unpushed/push/{action}", data={"typed": "unpushed"}).status_code == 403


# Calendars

OFFICE = {
    "windows.0.days": "Mon-Fri",
    "windows.0.from": "09:00",
    "windows.0.to": "18:00",
    "windows.0.zone": "Europe/Berlin",
}


def test_a_calendar_is_created_changed_and_deleted(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    form = values_of(browser_like.get("/console/new-calendar").text)
    more = values_of(browser_like.post("/console/new-calendar", data={**form, **OFFICE, "then": "row"}).text)
    assert (more["windows.0.days"], more["windows.1.days"]) == ("Mon-Fri", "")
    sent = {**more, "name": "forms.office", "windows.1.from": "10:00", "windows.1.except": "2030-12-24, 2030-12-31"}
    assert browser_like.post("/console/new-calendar", data=sent).status_code == 303
    windows = stored(without_keys, "/calendars/forms.office")["windows"]
    assert windows == [
        {"zone": "Europe/Berlin", "days": ["mon", "tue", "wed", "thu", "fri"], "from": "09:00", "to": "18:00"},
        {"from": "10:00", "except": ["2030-12-24", "2030-12-31"]},
    ]

    path = "/console/calendars/forms.office"
    assert 'href="console/calendars/forms.office"' in browser_like.get("/console/schedules").text
    form = values_of(browser_like.get(path).text)
    first = {name: "" for name in form if name.startswith("windows.0.")}
    assert browser_like.post(path, data={**form, **first}).status_code == 303
    assert stored(without_keys, "/calendars/forms.office")["windows"] == windows[1:]
    late = browser_like.post(path, data=form)
    assert (late.status_code, "changed meanwhile" in late.text) == (422, True)
    assert stored(without_keys, "/calendars/forms.office")["windows"] == windows[1:]

    assert browser_like.post(f"{path}/delete", data={"typed": "office"}).status_code == 303
    assert stored(without_keys, "/calendars/forms.office") is not None
    assert browser_like.post(f"{path}/delete", data={"typed": "forms.office"}).status_code == 303
    assert stored(without_keys, "/calendars/forms.office") is None


def test_a_refused_calendar_keeps_what_was_typed(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    sent = {"name": "forms.wrong", **OFFICE, "windows.3.from": "9", "windows.3.except": "tomorrow"}
    refused = browser_like.post("/console/new-calendar", data=sent)
    assert (refused.status_code, set(errors_of(refused.text))) == (422, {"windows.1.from", "windows.1.except"})
    assert values_of(refused.text)["windows.1.from"] == "9"
    for wrong, field in (
        ({"windows.0.zone": "Mars/Base"}, "windows.0.zone"),
        ({"windows.0.days": "Mon-Someday"}, "windows.0.days"),
        ({"name": "a b"}, "name"),
        ({"name": ""}, "name"),
    ):
        refused = browser_like.post("/console/new-calendar", data={"name": "forms.wrong", **OFFICE, **wrong})
        assert (refused.status_code, set(errors_of(refused.text))) == (422, {field})
    assert browser_like.post("/console/new-calendar", data={"name": "forms.wrong"}).status_code == 422
    assert stored(without_keys, "/calendars/forms.wrong") is None


def test_a_new_calendar_replaces_no_other(without_keys: ServiceProcess, browser_like: httpx.Client) -> None:
    call(without_keys, "PUT", "/calendars/forms.taken", {"windows": [{"from": "10:00"}]})
    refused = browser_like.post("/console/new-calendar", data={"name": "forms.taken", **OFFICE})
    assert errors_of(refused.text) == {"name": "is that of another calendar"}
    assert stored(without_keys, "/calendars/forms.taken")["windows"] == [{"from": "10:00"}]


def test_a_key_without_admin_can_change_no_calendar(with_keys: KeyedService) -> None:
    admin = with_keys.keys.tokens["admin"]
    call(with_keys.service, "PUT", "/calendars/forms.guarded", {"windows": [{"from": "10:00"}]}, token=admin)
    with console(with_keys, "read") as reader:
        for path in ("/console/schedules", "/console/new-calendar", "/console/calendars/forms.guarded"):
            assert 'disabled title="needs scope admin"' in reader.get(path).text, path
        form = values_of(reader.get("/console/calendars/forms.guarded").text)
        for path, sent in (
            ("/console/calendars/forms.guarded", {**form, "windows.0.from": "11:00"}),
            ("/console/calendars/forms.guarded/delete", {"typed": "forms.guarded"}),
            ("/console/new-calendar", {"name": "forms.other", **OFFICE}),
        ):
            refused = reader.post(path, data=sent)
            assert (refused.status_code, "This needs scope <code>admin</code>" in refused.text) == (403, True), path
    calendars = call(with_keys.service, "GET", "/calendars", token=admin)["calendars"]
    assert [one for one in calendars if one["name"].startswith("forms.")] == [
        {"name": "forms.guarded", "windows": [{"from": "10:00"}]}
    ]


# A job


def test_tags_headers_and_options_of_a_job_are_changed(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600, body={"n": 1}, tags=["x"], headers={"tenant": "acme"}, ttl=900)
    path = f"/console/topics/{jobs.topic}/jobs/a/edit"
    before = jobs.get("a")
    assert before is not None
    form = values_of(browser_like.get(path).text)
    assert (form["tags"], form["ttr"], form["ttl"], form["max_attempts"]) == ("x", "60", "900", "none")
    page = browser_like.post(path, data=form, follow_redirects=True).text
    assert "Nothing was changed." in page
    assert jobs.get("a") == before
    sent = {**form, "tags": "x, y", "headers": '{"tenant": "other"}', "ttr": "2m", "ttl": "none", "max_attempts": "3"}
    sent |= {"group": "g", "priority": "2"}
    page = browser_like.post(path, data=sent, follow_redirects=True).text
    assert "Changed: tags, headers, group, priority, ttr, max_attempts, ttl." in page
    changed = {"tags": ["x", "y"], "headers": {"tenant": "other"}, "ttr": 120, "ttl": None, "max_attempts": 3}
    changed |= {"group": "g", "priority": 2}
    assert jobs.get("a") == {**before, **changed}
    form = values_of(browser_like.get(path).text)
    without = dict.fromkeys(("tags", "headers", "group", "priority", "max_attempts"), "")
    assert browser_like.post(path, data={**form, **without}).status_code == 303
    left = jobs.get("a") or {}
    assert (without.keys() & left.keys(), left["max_attempts"]) == ({"max_attempts"}, None)


def test_a_refused_change_of_a_job_keeps_what_was_typed(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600, body={"n": 1})
    path = f"/console/topics/{jobs.topic}/jobs/a/edit"
    before = jobs.get("a")
    form = values_of(browser_like.get(path).text)
    wrong = {"body": "{", "tags": "a b", "headers": "[]", "ttr": "", "ttl": "soon"}
    refused = browser_like.post(path, data={**form, **wrong})
    assert (refused.status_code, set(errors_of(refused.text))) == (422, {"body", "ttr", "ttl"})
    assert {name: values_of(refused.text)[name] for name in wrong} == wrong
    refused = browser_like.post(path, data={**form, "tags": "a b", "headers": "[]"})
    assert (refused.status_code, set(errors_of(refused.text))) == (422, {"tags", "headers"})
    assert jobs.get("a") == before


def test_a_job_that_was_changed_a_moment_ago_stays(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a", delay=600)
    path = f"/console/topics/{jobs.topic}/jobs/a/edit"
    form = values_of(browser_like.get(path).text)  # what is read for a page is kept for a second
    jobs.http.patch(f"/jobs/{jobs.topic}/a", json={"tags": ["late"]}).raise_for_status()
    late = browser_like.post(path, data={**form, "ttr": "90"})
    assert (late.status_code, "changed meanwhile" in late.text) == (422, True)
    assert (jobs.get("a") or {})["ttr"] == 60


def test_a_job_that_a_consumer_holds_is_not_changed(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a")
    path = f"/console/topics/{jobs.topic}/jobs/a/edit"
    form = values_of(browser_like.get(path).text)
    jobs.pop()
    refused = browser_like.post(path, data={**form, "ttr": "90"})
    assert (refused.status_code, "Nothing was changed" in refused.text) == (422, True)
    assert (jobs.get("a") or {})["ttr"] == 60


# Settings of many topics


def test_settings_of_many_topics_are_seen_before_they_are_stored(
    without_keys: ServiceProcess, browser_like: httpx.Client
) -> None:
    before = {"tenant.a": {"ttr": 30, "retain": 5}, "tenant.b": {"ttr": 90, "events": 10}, "other.c": {"ttr": 30}}
    for topic, settings in before.items():
        call(without_keys, "PUT", f"/topics/{topic}", settings)

    def settings_of(topic: str) -> dict[str, Any]:
        settings = stored(without_keys, f"/topics/{topic}")["settings"]
        return {name: value for name, value in settings.items() if value}

    wait_until(
        lambda: "2 of 2 topics change" in _preview_of_groups(browser_like, topics="tenant.*", ttr="45").text,
        10,
        "the list of all topics has the new ones",
    )
    typed = {"topics": "tenant.*, tenant.new", "ttr": "90", "retain": "default"}
    preview = _preview_of_groups(browser_like, **typed)
    rows = dict(re.findall(r'<th scope="row"><a[^>]*>([^<]*)</a></th>\s*<td class="wrap">(.*?)</td>', preview.text))
    assert list(rows) == ["tenant.a", "tenant.b", "tenant.new"]
    assert [text.count("→") for text in rows.values()] == [2, 0, 1]
    assert {topic: settings_of(topic) for topic in before} == before
    sent = {**values_of(preview.text), **typed}
    assert sent["seen"]
    call(without_keys, "PUT", "/topics/tenant.a", {"ttr": 31, "retain": 5})
    again = browser_like.post("/console/topic-settings", data=sent)
    assert (again.status_code, settings_of("tenant.a")["ttr"]) == (200, 31)  # it was changed since it was shown
    done = browser_like.post("/console/topic-settings", data={**values_of(again.text), **typed})
    assert done.status_code == 303
    after = {**before, "tenant.a": {"ttr": 90}, "tenant.new": {"ttr": 90}}
    assert {topic: settings_of(topic) for topic in after} == after


def _preview_of_groups(client: httpx.Client, **typed: str) -> httpx.Response:
    return client.post("/console/topic-settings", data=typed)


def test_refused_settings_of_many_topics_are_stored_for_none(browser_like: httpx.Client) -> None:
    for typed, field in (
        ({"topics": "tenant.*", "ttr": "soon"}, "ttr"),
        ({"topics": "tenant.*", "ttr": "0"}, "ttr"),
        ({"topics": "nobody.*", "ttr": "30"}, "topics"),
        ({"ttr": "30"}, "topics"),
    ):
        refused = _preview_of_groups(browser_like, **typed)
        assert (refused.status_code, set(errors_of(refused.text))) == (422, {field}), typed
        assert values_of(refused.text)["ttr"] == typed["ttr"]
    refused = _preview_of_groups(browser_like, topics="tenant.*")
    assert (refused.status_code, "at least one setting" in refused.text) == (422, True)


def test_a_topic_that_refuses_settings_is_named_and_the_others_have_them(
    without_keys: ServiceProcess, browser_like: httpx.Client
) -> None:
    call(without_keys, "PUT", "/topics/grown.a", {"partitions": 4})
    typed = {"topics": "grown.a, grown.b", "partitions": "2"}
    preview = _preview_of_groups(browser_like, **typed)
    done = browser_like.post("/console/topic-settings", data={**values_of(preview.text), **typed})
    assert (done.status_code, "Stored for 1 topic, but not for these" in done.text) == (422, True)
    assert "grown.a: partitions must be at least 4" in html.unescape(done.text)
    assert [stored(without_keys, f"/topics/grown.{one}")["settings"]["partitions"] for one in "ab"] == [4, 2]


# Pauses of many topics


def test_topics_of_a_pattern_are_paused_and_resumed_as_they_were_shown(
    without_keys: ServiceProcess, browser_like: httpx.Client
) -> None:
    for topic in ("pauses.a", "pauses.b", "pauses.held", "other.c"):
        call(without_keys, "POST", "/jobs", {"topic": topic})
    call(without_keys, "POST", "/topics/pauses.held/pause", {"reason": "held <before>"})
    path = "/console/topic-pauses"

    def shown() -> str:
        return browser_like.get(path, params={"topics": "pauses.*, pauses.mistyped"}).text

    wait_until(lambda: "4 topics: 2 hand out jobs, 1 is paused" in shown(), 10, "the list of all topics has them")
    page = shown()
    assert re.findall(r'<th scope="row"><a[^>]*>([^<]*)</a>', page) == [
        "pauses.a", "pauses.b", "pauses.held", "pauses.mistyped",
    ]  # fmt: skip
    assert "there is no such topic" in page
    assert "“held &lt;before&gt;”" in page

    def states() -> dict[str, tuple[bool, str | None]]:
        topics = {topic: stored(without_keys, f"/topics/pauses.{topic}") for topic in ("a", "b", "held", "mistyped")}
        return {topic: (view["paused"], view.get("paused_reason")) for topic, view in topics.items() if view}

    before = {"a": (False, None), "b": (False, None), "held": (True, "held <before>")}
    sent = {**values_of(page), "act": "pause", "reason": "the bank is closed"}
    for wrong in ({"seen": ""}, {"act": "purge"}, {"reason": "x" * 201}, {"topics": "nobody.*"}):
        refused = browser_like.post(path, data={**sent, **wrong})
        assert (refused.status_code, states()) == (422, before), wrong
    call(without_keys, "POST", "/topics/pauses.b/pause", {"reason": "meanwhile"})
    refused = browser_like.post(path, data=sent)
    assert "Nothing was done: the topics are not as they were shown." in refused.text
    assert states() == {**before, "b": (True, "meanwhile")}

    done = browser_like.post(path, data={**values_of(refused.text), "act": "pause"})
    assert done.status_code == 303
    after = {"a": (True, "the bank is closed"), "b": (True, "meanwhile"), "held": (True, "held <before>")}
    assert states() == after
    page = browser_like.get(path, params={"topics": sent["topics"]}).text
    assert "Paused 1 topic." in page
    resumed = browser_like.post(path, data={**values_of(page), "act": "resume"})
    assert (resumed.status_code, states()) == (303, dict.fromkeys(before, (False, None)))


def test_a_key_without_admin_pauses_no_topic(with_keys: KeyedService) -> None:
    call(with_keys.service, "POST", "/jobs", {"topic": "unpaused"}, token=with_keys.keys.tokens["put"])
    path, query = "/console/topic-pauses", {"topics": "unpaused"}
    with console(with_keys, "read") as reader:
        page = reader.get(path, params=query).text
        assert page.count('disabled title="needs scope admin"') == 1
        refused = reader.post(path, data={**values_of(page), "act": "pause"})
        assert (refused.status_code, "scope admin" in refused.text) == (403, True)
    token = with_keys.keys.tokens["admin"]
    assert not call(with_keys.service, "GET", "/topics/unpaused", token=token)["paused"]


def test_a_selection_is_in_the_url_or_else_what_the_filter_found(browser_like: httpx.Client) -> None:
    for path in ("/console/topic-pauses", "/console/topic-settings"):
        page = browser_like.get(f"{path}?like=pause&topics=b.two&topics=a.one")
        assert values_of(page.text)["topics"] == "b.two, a.one"
        assert values_of(browser_like.get(f"{path}?like=pause").text)["topics"] == "*pause*"
    topics = browser_like.get("/console/topics?name=pause").text
    assert '<input type="hidden" name="like" value="pause">' in topics


def test_a_pause_of_a_paused_topic_says_that_it_is_paused_already(browser_like: httpx.Client, jobs: Producer) -> None:
    jobs.put("a")
    path = f"/console/topics/{jobs.topic}"
    browser_like.post(f"{path}/pause", data={"reason": "the first"})
    again = browser_like.post(f"{path}/pause", data={"reason": "the second"}, follow_redirects=True)
    assert f"{jobs.topic} was paused already" in again.text
    assert "“the first”" in again.text


# An environment


def test_the_environment_is_on_each_page_and_typed_to_confirm(masking: KeyedService, topic: str) -> None:
    token = masking.keys.tokens["operator"]
    hours = {"windows": [{"zone": "UTC", "from": "08:00", "to": "18:00"}]}
    call(masking.service, "PUT", "/calendars/office", hours, token)
    call(masking.service, "PUT", "/schedules/nightly", {"topic": topic, "every": 3600}, token)
    jobs = [{"topic": topic, "id": f"j{number}", "delay": 600} for number in range(1001)]
    for begin in (0, 1000):
        call(masking.service, "POST", "/jobs/batch", {"jobs": jobs[begin : begin + 1000]}, token)
    assert "production" in httpx.get(f"{masking.url}/console/login", verify=NO_TLS).text
    with console(masking, "operator") as client:
        page = client.get("/console/topics").text
        assert "<title>Topics · production · deferd</title>" in page
        assert '<header class="top environment-red">' in page
        assert re.search(r'data-title="(\(\d+\) )?Now · production · deferd"', client.get("/").text)
        for path in ("/console/calendars/office", "/console/schedules/nightly"):
            name = path.rpartition("/")[2]
            assert f"<code>production/{name}</code>" in client.get(path).text
            refused = client.post(f"{path}/delete", data={"typed": name}, follow_redirects=True)
            assert f"type production/{name} to delete it" in refused.text
            deleted = client.post(f"{path}/delete", data={"typed": f"production/{name}"}, follow_redirects=True)
            assert "Deleted" in deleted.text
        bulk = {"action": "cancel", "state": "delayed", "all": "1"}
        preview = client.post(f"/console/topics/{topic}/bulk/preview", data=bulk, follow_redirects=True).text
        cutoff = re.search(r'name="cutoff" value="([^"]*)"', preview)
        assert cutoff is not None
        assert f'data-typed="production/{topic}"' in preview
        wanted = {**bulk, "cutoff": cutoff[1]}
        for typed, status in ((topic, 422), (f"production/{topic}", 303)):
            acted = client.post(f"/console/topics/{topic}/bulk", data={**wanted, "typed": typed})
            assert acted.status_code == status, acted.text


def test_a_key_without_admin_can_store_no_settings_of_many(with_keys: KeyedService) -> None:
    call(with_keys.service, "POST", "/jobs", {"topic": "unset"}, token=with_keys.keys.tokens["put"])
    typed = {"topics": "unset", "ttr": "77"}
    with console(with_keys, "read") as reader:
        assert 'disabled title="needs scope admin"' in reader.get("/console/topic-settings").text
        preview = reader.post("/console/topic-settings", data=typed)
        refused = reader.post("/console/topic-settings", data={**values_of(preview.text), **typed})
        assert (refused.status_code, "not for these" in refused.text) == (403, False)
    settings = call(with_keys.service, "GET", "/topics/unset", token=with_keys.keys.tokens["admin"])["settings"]
    assert settings["ttr"] is None
