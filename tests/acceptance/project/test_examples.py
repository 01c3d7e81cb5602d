"""The examples that the documents name, each with both of its outcomes, on a clock that is moved."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import redis

from deferd import Client, JobState
from deferd.contract.model import DeadReason
from deferd.store.data_dir import DataDirectory
from deferd.testing import ServiceForTests
from tests.acceptance.service_process import running_service
from tests.examples import close_unpaid_order, delete_in_24_hours, nightly_report, payment_notices

MERCHANT = "https://merchant.example/paid"


@pytest.fixture
def client(service: ServiceForTests) -> Iterator[Client]:
    with service.client() as client:
        yield client


class TestCloseUnpaidOrder:
    def test_an_order_that_is_not_paid_is_closed_after_30_minutes(
        self, service: ServiceForTests, client: Client
    ) -> None:
        orders: close_unpaid_order.Orders = {}
        close_unpaid_order.place(client, orders, "1042")
        service.clock.advance(minutes=29, seconds=50)
        assert close_unpaid_order.close_unpaid_orders(client, orders, wait=0) == []
        service.clock.advance(seconds=10)
        assert close_unpaid_order.close_unpaid_orders(client, orders, wait=0) == ["1042"]
        assert not close_unpaid_order.pay(client, orders, "1042")
        assert orders == {"1042": "closed"}

    def test_an_order_that_is_paid_stays(self, service: ServiceForTests, client: Client) -> None:
        orders: close_unpaid_order.Orders = {}
        close_unpaid_order.place(client, orders, "1042")
        service.clock.advance(minutes=29)
        assert close_unpaid_order.pay(client, orders, "1042")
        service.clock.advance(days=1)
        assert close_unpaid_order.close_unpaid_orders(client, orders, wait=0) == []
        assert orders == {"1042": "paid"}
        assert client.topic(close_unpaid_order.TOPIC).counts[JobState.DELAYED] == 0

    def test_an_order_that_is_paid_while_the_closer_has_its_job_stays(
        self, service: ServiceForTests, client: Client
    ) -> None:
        orders: close_unpaid_order.Orders = {}
        close_unpaid_order.place(client, orders, "1042")
        service.clock.advance(minutes=30)
        [_] = client.pop(close_unpaid_order.TOPIC, wait=0)  # by a closer that hangs at this moment
        assert close_unpaid_order.pay(client, orders, "1042")
        service.clock.advance(days=1)
        assert close_unpaid_order.close_unpaid_orders(client, orders, wait=0) == []
        assert orders == {"1042": "paid"}


class Diary:
    """What happened to the resources."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def delete(self, resource: str) -> None:
        self.entries.append(f"{resource} deleted")

    def notify(self, resource: str, days_left: int) -> None:
        self.entries.append(f"{resource} in {days_left} d")


class TestDeleteIn24Hours:
    def test_a_resource_is_deleted_after_24_hours(self, service: ServiceForTests, client: Client) -> None:
        diary = Diary()
        delete_in_24_hours.delete_in_24_hours(client, "disk-7")
        service.clock.advance(hours=23, minutes=59)
        assert delete_in_24_hours.run_due_job(client, diary, wait=0) == 0
        service.clock.advance(minutes=1)
        assert delete_in_24_hours.run_due_job(client, diary, wait=0) == 1
        assert diary.entries == ["disk-7 deleted"]

    def test_a_deletion_that_is_undone_does_not_happen(self, service: ServiceForTests, client: Client) -> None:
        delete_in_24_hours.delete_in_24_hours(client, "disk-7")
        service.clock.advance(hours=23)
        assert delete_in_24_hours.undo(client, "disk-7") == 1
        service.clock.advance(days=30)
        assert delete_in_24_hours.run_due_job(client, Diary(), wait=0) == 0

    def test_a_deletion_under_way_cannot_be_undone(self, service: ServiceForTests, client: Client) -> None:
        delete_in_24_hours.delete_in_24_hours(client, "disk-7")
        service.clock.advance(hours=24)
        [_] = client.pop(delete_in_24_hours.TOPIC, wait=0)
        with pytest.raises(delete_in_24_hours.UnderWay):
            delete_in_24_hours.undo(client, "disk-7")

    def test_a_trial_ends_on_day_30_after_three_notices(self, service: ServiceForTests, client: Client) -> None:
        diary = Diary()
        delete_in_24_hours.start_trial(client, "disk-7")
        delete_in_24_hours.start_trial(client, "disk-7")
        happened = {day: entries for day in range(1, 32) if (entries := self.next_day(service, client, diary))}
        assert happened == {
            23: ["disk-7 in 7 d"],
            28: ["disk-7 in 2 d"],
            29: ["disk-7 in 1 d"],
            30: ["disk-7 deleted"],
        }

    @pytest.mark.parametrize(("day", "notices", "cancelled"), [(1, 0, 4), (23, 1, 3), (29, 3, 1)])
    def test_one_call_cancels_all_that_is_left_of_a_trial(
        self, service: ServiceForTests, client: Client, day: int, notices: int, cancelled: int
    ) -> None:
        diary = Diary()
        delete_in_24_hours.start_trial(client, "disk-7")
        delete_in_24_hours.start_trial(client, "disk-70")
        for _ in range(day):
            self.next_day(service, client, diary)
        assert delete_in_24_hours.undo(client, "disk-7") == cancelled
        assert delete_in_24_hours.undo(client, "disk-7") == 0
        for _ in range(31 - day):
            self.next_day(service, client, diary)
        of_disk_7 = [entry for entry in diary.entries if entry.startswith("disk-7 ")]
        assert of_disk_7 == ["disk-7 in 7 d", "disk-7 in 2 d", "disk-7 in 1 d"][:notices]
        of_disk_70 = [entry for entry in diary.entries if entry.startswith("disk-70 ")]
        assert of_disk_70 == ["disk-70 in 7 d", "disk-70 in 2 d", "disk-70 in 1 d", "disk-70 deleted"]

    def next_day(self, service: ServiceForTests, client: Client, diary: Diary) -> list[str]:
        """Let a day pass; returns the entries of that day."""
        before = len(diary.entries)
        service.clock.advance(days=1)
        while delete_in_24_hours.run_due_job(client, diary, wait=0):
            pass
        return diary.entries[before:]


class TestPaymentNotices:
    def test_notices_end_when_the_merchant_responds(self, service: ServiceForTests, client: Client) -> None:
        sent: list[str] = []

        def send(url: str, payment: str) -> None:
            sent.append(f"{payment} to {url}")
            if len(sent) < 3:
                raise payment_notices.NoResponseFromMerchant("503")

        payment_notices.announce(client, "p-1", MERCHANT)
        payment_notices.announce(client, "p-1", MERCHANT)
        assert payment_notices.send_due_notice(client, send, wait=0) == 1
        service.clock.advance(minutes=2)
        assert payment_notices.send_due_notice(client, send, wait=0) == 1
        service.clock.advance(minutes=10)
        assert payment_notices.send_due_notice(client, send, wait=0) == 1
        service.clock.advance(days=2)
        assert payment_notices.send_due_notice(client, send, wait=0) == 0
        assert sent == [f"p-1 to {MERCHANT}"] * 3
        assert not any(client.topic(payment_notices.TOPIC).counts.values())

    def test_a_merchant_that_never_responds_gets_eight_notices_and_the_job_is_dead(
        self, service: ServiceForTests, client: Client
    ) -> None:
        sent_at = []

        def send(url: str, payment: str) -> None:
            sent_at.append(service.clock.now())
            raise payment_notices.NoResponseFromMerchant(f"{url} responded with 503")

        payment_notices.announce(client, "p-1", MERCHANT)
        assert payment_notices.send_due_notice(client, send, wait=0) == 1
        for wait in payment_notices.WAITS:
            service.clock.advance(wait - timedelta(seconds=10))
            assert payment_notices.send_due_notice(client, send, wait=0) == 0
            service.clock.advance(seconds=10)
            assert payment_notices.send_due_notice(client, send, wait=0) == 1
        service.clock.advance(days=2)
        assert payment_notices.send_due_notice(client, send, wait=0) == 0

        waits = [later - earlier for earlier, later in pairwise(sent_at)]
        assert [round(waited / timedelta(minutes=1)) for waited in waits] == [2, 10, 10, 60, 120, 360, 900]
        job = client.get(payment_notices.TOPIC, "p-1")
        assert (job.state, job.reason, job.attempts) == (JobState.DEAD, DeadReason.SCHEDULE, 8)
        assert job.last_error == f"{MERCHANT} responded with 503"

    def test_notices_begin_again_when_the_merchant_is_back(self, service: ServiceForTests, client: Client) -> None:
        def fail(url: str, payment: str) -> None:
            raise payment_notices.NoResponseFromMerchant("503")

        payment_notices.announce(client, "p-1", MERCHANT)
        while payment_notices.send_due_notice(client, fail, wait=0):
            service.clock.advance(days=1)
        assert client.redrive(payment_notices.TOPIC) == 1
        assert payment_notices.send_due_notice(client, lambda url, payment: None, wait=0) == 1
        assert not any(client.topic(payment_notices.TOPIC).counts.values())


class TestNightlyReport:
    @pytest.fixture
    def nights(self, service: ServiceForTests, client: Client) -> Iterator[Client]:
        # At noon, far from the night: a day of 23 or 25 hours has one report then too.
        service.clock.advance(hours=(36 - service.clock.now().hour) % 24)
        nightly_report.schedule_reports(client)
        yield client
        client.delete_schedule(nightly_report.NAME)

    @pytest.mark.slow
    def test_there_is_one_report_on_each_day_of_a_year_with_two_changes_of_the_clock(
        self, service: ServiceForTests, nights: Client
    ) -> None:
        made: list[date] = []
        for day in range(366):
            service.clock.advance(days=1)
            assert nightly_report.make_due_report(nights, made.append, wait=0) == 1
            if day % 100 == 0:
                nightly_report.schedule_reports(nights)  # changes nothing
        assert [later - earlier for earlier, later in pairwise(made)] == [timedelta(days=1)] * 365
        assert nights.schedule(nightly_report.NAME).runs == 366
        next_run_at = nights.schedule(nightly_report.NAME).next_run_at
        assert next_run_at is not None
        assert next_run_at.astimezone(ZoneInfo(nightly_report.ZONE)).hour == 3

    def test_a_report_that_fails_is_made_later_for_the_same_day(self, service: ServiceForTests, nights: Client) -> None:
        tried: list[date] = []

        def fail(day: date) -> None:
            tried.append(day)
            raise RuntimeError("the warehouse is away")

        service.clock.advance(days=1)
        with pytest.raises(RuntimeError):
            nightly_report.make_due_report(nights, fail, wait=0)
        service.clock.advance(minutes=10)
        assert nightly_report.make_due_report(nights, tried.append, wait=0) == 1
        assert tried == [tried[0]] * 2

    def test_a_night_is_skipped(self, service: ServiceForTests, nights: Client) -> None:
        made: list[date] = []
        skipped = nightly_report.skip_next_report(nights)
        for _ in range(2):
            service.clock.advance(days=1)
            nightly_report.make_due_report(nights, made.append, wait=0)
        assert skipped is not None
        assert made == [skipped + timedelta(days=1)]
        schedule = nights.schedule(nightly_report.NAME)
        assert (schedule.runs, schedule.skips, schedule.missed) == (1, 1, 0)

    @pytest.mark.slow
    def test_the_reports_of_an_outage_are_made_up_for(self, tmp_path: Path) -> None:
        made: list[date] = []
        with running_service("--test-clock", data_dir=tmp_path) as service, Client(service.url) as client:
            nightly_report.schedule_reports(client)
            with service.frozen(), redis.Redis(unix_socket_path=str(DataDirectory(service.data_dir).socket)) as store:
                store.incrby("deferd:{0}:clock", timedelta(days=3) // timedelta(milliseconds=1))
            nightly_report.schedule_reports(client)  # as a program does that starts at the same time
            while nightly_report.make_due_report(client, made.append, wait=2):
                pass
            schedule = client.schedule(nightly_report.NAME)
        assert len(made) == 3
        assert made == [made[0] + timedelta(days=days) for days in range(3)]
        assert abs(made[0] - datetime.now(UTC).date()) <= timedelta(days=1)
        assert (schedule.runs, schedule.missed) == (3, 0)
