"""Why a job has not run: over HTTP, through the client, as a command, and with keys."""

from __future__ import annotations

from deferd import Client
from deferd.contract.model import JobState
from tests.acceptance.api.keyed_service import KeysFile, call
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.http_calls import Http, moment, ok, refusal
from tests.acceptance.service_process import ServiceProcess


async def test_a_delayed_job(http: Http) -> None:
    job = await http.put_job("a", delay=60)
    found = ok(await http.get(http.job_path("a", "why")))
    [reason] = found.pop("reasons")
    assert found == {"topic": http.topic, "id": "a", "state": "delayed"}
    assert (reason["code"], reason["due_at"]) == ("not_due", job["due_at"])


async def test_a_dead_job_shows_when_it_died(http: Http) -> None:
    await http.bury("a")
    [reason] = ok(await http.get(http.job_path("a", "why")))["reasons"]
    assert (reason["code"], reason["error"]) == ("dead", "no use")
    assert reason["dead_at"] == (await http.get_job("a"))["dead_at"]
    assert moment(reason["dead_at"]) < moment(reason["kept_until"])


async def test_an_unknown_job_is_no_error(http: Http) -> None:
    await http.put_job("order-1042", delay=60)
    found = ok(await http.get(http.job_path("order-1043", "why")))
    assert (found["state"], found["reasons"][0]["code"]) == (None, "unknown_job")
    assert found["reasons"][0]["nearest"] == ["order-1042"]
    assert refusal(await http.get(http.job_path("-", "why")), "path.id")


async def test_client_and_command(http: Http, shared_service: ServiceProcess) -> None:
    await http.put_job("a", delay=60)
    shell = Shell(shared_service.url)
    with Client(shared_service.url) as client:
        explanation = client.why(http.topic, "a")
        assert (explanation.state, [one.code for one in explanation.reasons]) == (JobState.DELAYED, ["not_due"])
        assert client.get(http.topic, "a").dead_at is None
        assert client.why(http.topic, "b").state is None
    first, reason = shell.good("why", http.topic, "a").splitlines()
    assert first == f"{http.topic}/a is delayed"
    assert reason.startswith("  not_due: It is due in ")
    [fields] = shell.json("why", http.topic, "a")
    assert fields["reasons"][0]["code"] == "not_due"
    done = shell.run("why", http.topic, "b")
    assert (done.returncode, done.stderr) == (3, "")
    assert "unknown_job" in done.stdout


async def test_a_pause_names_the_key_that_asked_for_it(service: ServiceProcess, keys: KeysFile, topic: str) -> None:
    admin, shop = keys.tokens["admin"], keys.tokens["shop"]
    ours, theirs = f"shop.{topic}", f"bank.{topic}"
    for name in (ours, theirs):
        assert (await call(service, "POST", "/jobs", {"topic": name, "id": "j"}, token=admin)).status == 201
        assert (await call(service, "POST", f"/topics/{name}/pause", token=admin)).status == 200
    response = await call(service, "GET", f"/jobs/{ours}/j/why", token=shop)
    paused, *others = response.json()["reasons"]
    assert (paused["code"], paused["by"]) == ("paused", "admin")
    assert [reason["code"] for reason in others] == ["no_consumers", "behind"]
    shown = (await call(service, "GET", f"/topics/{ours}", token=admin)).json()
    assert (shown["paused_by"], shown["paused_at"]) == ("admin", paused["since"])
    assert (await call(service, "GET", f"/jobs/{theirs}/j/why", token=shop)).status == 403
    assert (await call(service, "GET", f"/jobs/{ours}/j/why", token=keys.tokens["put"])).status == 403
