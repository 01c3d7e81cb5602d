"""The pages of a key with a rate limit: nothing hidden shows when it is used up, and an action still has room."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterator

import httpx
import pytest

from tests.acceptance.console.conftest import KeyedService, console
from tests.acceptance.console.job_pages import SECRETS, Producer
from tests.acceptance.console.test_console_jobs_http import fields_of, seen

SECRET = SECRETS[0]


@contextlib.contextmanager
def producer(service: KeyedService, topic: str) -> Iterator[Producer]:
    with Producer(service.url, topic, service.keys.tokens["operator"]) as jobs:
        yield jobs


@pytest.mark.slow
def test_no_region_has_the_value_when_the_limit_is_used_up(masking: KeyedService) -> None:
    with producer(masking, "refused") as jobs:
        jobs.fail("dead", f"no user {SECRET}", dead=True, body={"password": SECRET})
        jobs.fail("later", f"no user {SECRET}", body={"password": SECRET})
    statuses = set()
    with console(masking, "slow") as client:
        for number in range(60):
            job_id = ("dead", "later")[number % 2]
            for path in (f"jobs/{job_id}?fragment=why&n={number}", f"jobs/{job_id}", "jobs?state=dead&fragment=rows"):
                response = client.get(f"/console/topics/refused/{path}")
                statuses.add(response.status_code)
                assert SECRET not in html.unescape(response.text), (number, path)
    assert statuses >= {200, 429}


def cancel_all(client: httpx.Client, topic: str, ids: list[str]) -> tuple[str, httpx.Response]:
    """Preview a cancel of these jobs and confirm it: the preview, and the response."""
    preview = client.post(f"/console/topics/{topic}/bulk/preview", data={"action": "cancel", "ids": ids})
    fields = fields_of(preview.text, f"console/topics/{topic}/bulk")
    return preview.text, client.post(f"/console/topics/{topic}/bulk", data=fields)


def test_a_selection_larger_than_the_limit_is_cancelled_without_an_undo(masking: KeyedService) -> None:
    ids = [f"j{number}" for number in range(60)]
    with producer(masking, "many") as jobs, console(masking, "limited") as client:
        jobs.put(*ids, delay=3600)
        preview, done = cancel_all(client, "many", ids)
        assert "You can undo it" not in preview
        page = seen(client, done)
        assert "60 of 60 cancelled." in page
        assert "can't be undone: the rate limit" in page
        assert jobs.counts()["delayed"] == 0


def test_a_selection_within_the_limit_can_be_undone(masking: KeyedService) -> None:
    ids = [f"j{number}" for number in range(12)]
    with producer(masking, "some") as jobs:
        jobs.put(*ids, delay=3600)
        with console(masking, "another") as client:
            preview, done = cancel_all(client, "some", ids)
            assert "You can undo it" in preview
            assert "Cancelled 12 jobs." in seen(client, done)


def test_a_list_with_masks_leaves_room_for_actions(masking: KeyedService) -> None:
    """It reads no more than one without masks."""
    with producer(masking, "failing") as jobs, console(masking, "lister") as client:
        for number in range(30):
            jobs.fail(f"j{number}", "mailbox full", dead=True, body={"password": SECRET})
        for number in range(3):
            page = client.get(f"/console/topics/failing/jobs?state=dead&n={number}")
            assert page.status_code == 200
            assert "mailbox full" not in page.text
            assert "•••••" in page.text
        _, done = cancel_all(client, "failing", ["j1", "j2"])
        assert "2 of 2 cancelled." in seen(client, done)
