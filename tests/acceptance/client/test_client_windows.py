"""Opening hours and spread in both clients and on the command line."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

import pytest

import deferd
from deferd import AsyncClient, CalendarNotFound, Client, InvalidInput, TopicSettings, Window, WindowDict
from deferd.engine.openings import spread_of
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.client.lossy_proxy import lossy_proxy
from tests.acceptance.service_process import ServiceProcess


def closed_now() -> WindowDict:
    """A window that opens in about two hours, for an hour."""
    begin = datetime.now(UTC) + timedelta(hours=2)
    return {"from": f"{begin:%H:%M}", "to": f"{begin + timedelta(hours=1):%H:%M}"}


def test_the_blocking_client_puts_and_changes_with_windows(shared_service: ServiceProcess, topic: str) -> None:
    window = closed_now()
    with Client(shared_service.url) as client:
        put = client.put(topic, id="a", window=Window.model_validate(window))
        assert f"{put.due_at:%H:%M}" == window["from"]
        assert put.asked_for is not None
        assert abs(put.asked_for - put.created_at) < timedelta(seconds=5)
        assert put.window == window
        changed = client.change(
            topic, "a", window=None, spread=timedelta(minutes=1), run_at=datetime(2030, 1, 1, tzinfo=UTC)
        )
        assert changed.due_at == datetime(2030, 1, 1, tzinfo=UTC) + timedelta(milliseconds=spread_of("a", 60_000))
        assert (changed.window, changed.spread) == (None, 60)
        several = client.put(
            topic, id="b", window=[{**window, "except": [date(2030, 1, 1)]}, {"from": "03:00", "to": "03:01"}]
        )
        assert several.window == [{**window, "except": ["2030-01-01"]}, {"from": "03:00", "to": "03:01"}]
        with pytest.raises(InvalidInput):
            client.put(topic, window={"zone": "Nowhere"})
        view = client.set_topic(topic, TopicSettings.model_validate({"window": window, "spread": 5}))
        assert (view.settings.spread, view.fields["settings"]["window"]) == (5, window)
        assert client.put(topic, id="c", window=None, spread=None).state == "ready"


async def test_the_asyncio_client_keeps_calendars(shared_service: ServiceProcess, topic: str) -> None:
    name = f"office.{topic}"
    async with AsyncClient(shared_service.url) as client:
        with pytest.raises(CalendarNotFound):
            await client.calendar(name)
        put = await client.put_calendar(name, [Window.model_validate(closed_now()), {"days": ["mon"], "to": "00:01"}])
        assert await client.calendar(name) == put == deferd.Calendar(name=name, windows=put.windows)
        assert put in await client.calendars()
        assert (await client.put(topic, window=name)).window == name
        await client.delete_calendar(name)
        with pytest.raises(CalendarNotFound):
            await client.delete_calendar(name)


async def test_a_placed_put_whose_response_was_lost_is_recognized(shared_service: ServiceProcess, topic: str) -> None:
    with lossy_proxy(shared_service.url) as proxy:
        async with AsyncClient(proxy.url) as client:
            proxy.lose_responses(1)
            put = await client.put(topic, id="a", window=closed_now(), spread=60, delay=1)
            assert put.asked_for is not None
            proxy.lose_responses(1)
            assert (
                await client.put(topic, id="b", spread=3600, run_at=datetime(2030, 1, 1, tzinfo=UTC))
            ).spread == 3600


def test_the_command_line_knows_windows_and_calendars(shared_service: ServiceProcess, topic: str) -> None:
    shell, window, name = Shell(shared_service.url), closed_now(), f"cli.{topic}"
    [job] = shell.json("put", topic, "--id", "a", "--window", json.dumps(window), "--spread", "1m")
    assert (job["window"], job["spread"]) == (window, 60)
    shown = shell.good("get", topic, "a")
    assert "asked for" in shown
    assert window["from"] in shown
    assert "asked for" in shell.good("put", topic, "--id", "b", "--window", json.dumps([window]))
    assert "there is no calendar" in shell.refused(3, "calendar", name)
    [made] = shell.json("calendar", name, "--set", json.dumps(window))
    assert made == {"name": name, "windows": [window]}
    assert made in shell.json("calendars")
    assert name in shell.good("calendars")
    assert window["from"] in shell.good("calendar", name)
    [view] = shell.json("topic", topic, "--window", name, "--spread", "10s")
    assert (view["settings"]["window"], view["settings"]["spread"]) == (name, 10)
    assert name in shell.good("topic", topic)
    [free] = shell.json("put", topic, "--id", "c", "--window", "none", "--spread", "none")
    assert free["state"] == "ready"
    [view] = shell.json("topic", topic, "--window", "none")
    assert (view["settings"]["window"], view["settings"]["spread"]) == (None, 10)
    [changed] = shell.json("change", topic, "a", "--window", "none", "--spread", "none", "--delay", "0")
    assert changed["state"] == "ready"
    shell.refused(2, "calendar", name, "--set", "[]", "--delete")
    assert shell.good("calendar", name, "--delete") == f"{name} deleted\n"
    shell.refused(2, "put", topic, "--window", "{")
