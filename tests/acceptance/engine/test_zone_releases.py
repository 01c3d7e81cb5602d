"""A service that is restarted with another release of the package `tzdata`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from deferd import Client
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import wait_until
from tests.zone_releases import ZONE, make_release, tzif

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def is_next(client: Client, name: str, at: datetime) -> bool:
    return client.schedule(name).next_run_at == at


def cron_at(local: datetime) -> str:
    return f"{local.second} {local.minute} {local.hour} * * *"


@pytest.mark.slow
def test_each_local_time_has_its_run_once_over_restarts_with_other_releases(tmp_path: Path) -> None:
    """Two hours ahead of UTC, then three, then two again."""
    by_two = {"PYTHONPATH": str(make_release(tmp_path / "two", "2099.1", tzif(2)))}
    by_three = {"PYTHONPATH": str(make_release(tmp_path / "three", "2099.2", tzif(3)))}
    service = ServiceProcess(tmp_path / "service", environment=by_two)
    with service, Client(service.url) as client:
        now = datetime.now(UTC).replace(microsecond=0)
        soon, later = now + timedelta(seconds=2), now + HOUR / 2
        for name, at in (("soon", soon), ("later", later)):
            client.put_schedule(name, name, cron=cron_at(at + 2 * HOUR), zone=ZONE, start_at=now - DAY)
        assert client.schedule("later").next_run_at == later
        [job] = client.pop("soon", wait=10)
        client.finish(job)
        for environment, next_soon, next_later in (
            (by_three, soon + DAY - HOUR, later + DAY - HOUR),
            (by_two, soon + DAY, later + DAY),
        ):
            service.stop()
            service.environment = environment
            service.start()
            for name, at in (("soon", next_soon), ("later", next_later)):
                wait_until(partial(is_next, client, name, at), 10, f"the next run of {name} is at {at}")
        # Clocks showed its time half an hour before the release with three hours came.
        assert [job.id for job in client.pop("later", count=10, wait=0)] == [f"later:{later - HOUR:%Y%m%dT%H%M%SZ}"]
        assert client.pop("soon", count=10, wait=0) == []
        assert [client.schedule(name).runs for name in ("soon", "later")] == [1, 1]
