"""What comes due: over HTTP, through the client, and as a command."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from deferd import Client
from tests.acceptance.cli.command_line import Shell, terminal
from tests.acceptance.http_calls import Http, moment, ok, refusal
from tests.acceptance.service_process import ServiceProcess


async def put_delayed(http: Http, *delays_s: float) -> None:
    for number, delay_s in enumerate(delays_s):
        await http.put_job(f"j{number}", delay=delay_s)


async def test_counts(http: Http) -> None:
    await put_delayed(http, 30, 90, 100, 500)
    begin = datetime.now(UTC) + timedelta(seconds=60)
    query = {"topics": http.topic, "from": begin.isoformat(), "to": (begin + timedelta(seconds=60)).isoformat()}
    found = ok(await http.get("/forecast", params={**query, "buckets": "2"}))
    assert moment(found["to"]) - moment(found["from"]) == pytest.approx(60)
    assert (found["bucket"], found["delayed"], found["before"], found["after"]) == (30, 4, 1, 1)
    assert sum(found["counts"]) == 2
    assert found["scheduled"] == [0, 0]
    due = {"delayed": 4, "before": 1, "after": 1, "counts": found["counts"], "scheduled": [0, 0]}
    assert found["topics"] == [{"topic": http.topic, **due, "handled": 0}]
    assert found["handled"] >= 0  # other tests use the service as well
    assert (found["left_out"], found["complete"], found["unreadable_shards"]) == (0, True, [])
    short = ok(await http.get("/forecast", params={**query, "limit": "0"}))
    assert (short["topics"], short["left_out"], short["delayed"]) == ([], 1, 4)
    everything = ok(await http.get("/forecast"))
    assert len(everything["counts"]) == 60
    assert everything["delayed"] == everything["before"] + everything["after"] + sum(everything["counts"])


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"from": "2030-01-01T00:00:00Z", "to": "2029-01-01T00:00:00Z"}, "query.to"),
        ({"to": "2020-01-01T00:00:00Z"}, "query.to"),
        ({"from": "today"}, "query.from"),
        ({"from_": "2030-01-01T00:00:00Z"}, "query.from_"),
        ({"buckets": "0"}, "query.buckets"),
        ({"buckets": "241"}, "query.buckets"),
        ({"limit": "1001"}, "query.limit"),
        ({"topics": "a,"}, "query.topics"),
    ],
)
async def test_invalid_parameters(http: Http, query: dict[str, str], field: str) -> None:
    assert refusal(await http.get("/forecast", params=query), field)


async def test_the_rate_of_limits_is_a_ceiling(http: Http, shared_service: ServiceProcess) -> None:
    limits = {"rate": {"count": 100, "per": 60, "burst": 10}, "max_in_flight": 5}
    ok(await http.put(http.topic_path(), json={"limits": limits}))
    await put_delayed(http, 100, 100)
    with Client(shared_service.url) as client:
        [topic] = client.forecast(topics=[http.topic], buckets=6).topics
        assert topic.rate_limit == 6000
    shell = Shell(shared_service.url)
    assert "; the rate of its limits allows 1,000" in shell.good("forecast", http.topic, "--buckets", "36")
    assert re.search(r"DELAYED +RATE/BAR +WHEN\n.* 2 +2 +1,000 ", shell.good("forecast", http.topic, "--buckets", "36"))


async def test_client_and_command(http: Http, shared_service: ServiceProcess) -> None:
    await put_delayed(http, 100, 100, 2000, 50_000)
    shell = Shell(shared_service.url)
    with Client(shared_service.url) as client:
        made = client.forecast(topics=[http.topic], buckets=6)
        assert (made.delayed, made.before, made.after, made.counts[0], len(made.counts)) == (4, 0, 1, 3, 6)
        assert made.ends_at - made.begins_at == timedelta(hours=6)
        assert made.bucket == 3600
        [topic] = made.topics
        assert (topic.topic, topic.delayed, topic.counts) == (http.topic, 4, made.counts)
        end = datetime.now(UTC) + timedelta(hours=24)
        assert client.forecast(topics=http.topic, end=end, limit=0).after == 0
    lines = shell.good("forecast", http.topic, "--buckets", "36").splitlines()
    assert len(lines) == 8 + 2 + 1 + 2
    assert lines[0].startswith("     2 █")
    assert lines[9] == "3 jobs due, 10m a bar; 1 after"
    assert lines[-2].split() == ["TOPIC", "DUE", "DELAYED", "WHEN"]
    assert lines[-1].split()[:3] == [http.topic, "3", "4"]
    [fields] = shell.json("forecast", http.topic, "--span", "24h")
    assert (fields["delayed"], fields["after"]) == (4, 0)
    assert "give one of" in shell.refused(2, "forecast", "--span", "1h", "--to", "2030-01-01T00:00Z")
    assert shell.good("forecast", "nothing").splitlines()[-1].startswith("0 jobs due")


async def test_planned_runs_of_a_schedule(http: Http, shared_service: ServiceProcess) -> None:
    name = f"s.{http.topic}"
    ok(await http.put(f"/schedules/{name}", json={"topic": http.topic, "every": 600}), 201)
    shell = Shell(shared_service.url)
    with Client(shared_service.url) as client:
        made = client.forecast(topics=[http.topic], buckets=6)
        assert (made.delayed, sum(made.counts), sum(made.scheduled)) == (1, 1, 35)
        assert made.topics[0].scheduled == made.scheduled
    lines = shell.good("forecast", http.topic, "--buckets", "6").splitlines()
    assert "1 job due, 1h a bar; 35 planned runs" in lines
    assert lines[0].startswith("     6 ")


@pytest.mark.parametrize("columns", [30, pytest.param(250, marks=pytest.mark.slow)])
def test_it_fits_the_terminal(shared_service: ServiceProcess, columns: int) -> None:
    with Client(shared_service.url) as client:
        topic = f"fit.{columns}"
        client.put_batch([{"topic": topic, "id": f"j{number}", "delay": 1 + 100 * number} for number in range(100)])
    with terminal(shared_service.url, "forecast", f"fit.{columns}", size=(40, columns)) as shown:
        assert shown.end() == 0
        bars = [line for line in shown.text.splitlines() if "█" in line]
        assert bars
        assert all(len(line.rstrip()) <= columns for line in bars)
