"""Forms of the console, as a browser without scripts sends them: what they store, refuse, keep and need."""

from __future__ import annotations

import html
import re
from typing import Any

import httpx
import pytest

from tests.acceptance.console.conftest import KeyedService, console
from tests.acceptance.console.job_pages import call
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess

pytestmark = pytest.mark.slow
NIGHTLY = {"topic": "reports", "cron": "30 2 * * *", "zone": "Europe/Berlin", "overlap": "skip", "catch_up": "all"}
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
    job = {"job.body": EXACT, "job.tags": "a, b", "job.ttl": "none", "job.ttr": "5m"}
    wanted = {**form, **NIGHTLY, "name": "forms.nightly", **job}
    created = browser_like.post("/console/new-schedule", data=wanted)
    assert (created.status_code, created.headers["location"]) == (303, "../console/schedules/forms.nightly")
    found = stored(without_keys, "/schedules/forms.nightly")
    assert {name: found[name] for name in NIGHTLY} == NIGHTLY
    job = found["job"]
    assert (job["tags"], job["ttl"], job["ttr"]) == (["a", "b"], None, 300)

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
