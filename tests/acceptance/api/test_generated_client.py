"""A client that `openapi-python-client` makes from openapi/openapi.yaml works."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.acceptance.api.generated_scenario import SEEN, service_without_store
from tests.acceptance.service_process import ServiceProcess

pytestmark = pytest.mark.slow

CONTRACT = Path(__file__).parents[3] / "openapi" / "openapi.yaml"
NAME = "deferd_by_a_stranger"

Part = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Part]:
    """Imports a module of the generated client."""
    folder = tmp_path_factory.mktemp("generated")
    programs = Path(sys.executable).parent
    done = subprocess.run(
        [
            *(programs / "openapi-python-client", "generate", "--path", CONTRACT),
            *("--output-path", folder / NAME, "--meta", "none", "--fail-on-warning"),
        ],
        env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    sys.path.insert(0, str(folder))
    try:
        yield lambda path: importlib.import_module(f"{NAME}.{path}")
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
            del sys.modules[name]


@pytest.fixture
def client(generated: Part, shared_service: ServiceProcess) -> Iterator[Any]:
    with generated("client").Client(base_url=shared_service.url, raise_on_unexpected_status=True) as client:
        yield client


@pytest.fixture
def client_without_store(generated: Part, tmp_path: Path) -> Iterator[Any]:
    with (
        service_without_store(tmp_path) as service,
        generated("client").Client(base_url=service.url, raise_on_unexpected_status=True) as client,
    ):
        yield client


def test_a_program_on_a_generated_client_works(
    generated: Part, client: Any, client_without_store: Any, topic: str
) -> None:
    """The scenario of all languages; see generated_scenario."""
    models = generated("models")
    put_job, pop_jobs, finish_job, cancel_job, pause_topic, resume_topic, put_schedule, delete_schedule = (
        generated(f"api.{name}").sync
        for name in (
            *("jobs.put_job", "consumers.pop_jobs", "consumers.finish_job", "jobs.cancel_job"),
            *("topics.pause_topic", "topics.resume_topic", "schedules.put_schedule", "schedules.delete_schedule"),
        )
    )

    def failure(problem: Any) -> dict[str, Any]:
        assert isinstance(problem, models.Problem)
        return {"status": problem.status, "code": problem.code}

    def pop_one() -> Any:
        [delivery] = pop_jobs(topic, client=client, wait=20.0, consumer="python").jobs
        return delivery

    job = models.PutJob(topic=topic, id="order-1", body={"order": 1}, delay=0.3, ttr=86399.999, retain=60.0)
    put = put_job(client=client, body=job)
    first = pop_one()
    finished = finish_job(topic, first.id, client=client, body=models.FinishJob(receipt=first.receipt, result="closed"))
    conflict = failure(put_job(client=client, body=job))

    backoffs = [
        models.ExponentialBackoff(models.ExponentialBackoffKind.EXPONENTIAL, base=3.0, cap=100.5, jitter=0.25),
        models.FixedBackoff(models.FixedBackoffKind.FIXED, seconds=1.5),
        models.ScheduleBackoff(
            models.ScheduleBackoffKind.SCHEDULE, seconds=[0.5, 120.0], then=models.ScheduleBackoffThen.REPEAT_LAST
        ),
    ]
    put_backoffs = [
        put_job(client=client, body=models.PutJob(topic=topic, backoff=backoff, delay=60.0)).backoff.to_dict()
        for backoff in backoffs
    ]
    paused = [pause_topic(topic, client=client).paused, resume_topic(topic, client=client).paused]

    put_job(client=client, body=models.PutJob(topic=topic, id="order-2"))
    second = pop_one()
    cancel_job(topic, second.id, client=client)
    gone = finish_job(topic, second.id, client=client, body=models.FinishJob(receipt=second.receipt))

    spec = models.PutSchedule(
        topic=topic,
        every=3600.0,
        window=[models.Window(from_="22:00", to="06:00")],
        job=models.ScheduledJob(max_attempts=3),
    )
    made = put_schedule(topic, client=client, body=spec)
    delete_schedule(topic, client=client)

    assert SEEN == {
        "put": put.state,
        "ttr": put.ttr,
        "popped": {"id": first.id, "attempt": first.attempt, "body": first.body},
        "finished": finished.state,
        "conflict": conflict,
        "backoffs": put_backoffs,
        "paused": paused,
        "gone": failure(gone),
        "schedule": {"every": made.every, "opens": made.window[0].from_, "max_attempts": made.job.max_attempts},
        "unavailable": failure(put_job(client=client_without_store, body=models.PutJob(topic=topic))),
    }


def test_a_lease_is_extended_and_a_result_kept(generated: Part, client: Any, topic: str) -> None:
    models = generated("models")
    put = generated("api.jobs.put_job").sync_detailed(
        client=client, body=models.PutJob(topic=topic, id="order-1", retain=60.0)
    )
    assert put.status_code == 201
    [delivery] = generated("api.consumers.pop_jobs_by_get").sync(topic, client=client, wait=5.0).jobs
    touched = generated("api.consumers.touch_job").sync(
        topic, delivery.id, client=client, body=models.TouchJob(receipt=delivery.receipt, ttr=600.0)
    )
    assert touched.reserved_until > delivery.reserved_until
    generated("api.consumers.finish_job").sync(
        topic, delivery.id, client=client, body=models.FinishJob(result="closed")
    )
    kept = generated("api.jobs.get_job").sync(topic, "order-1", client=client)
    assert (kept.state, kept.result) == ("finished", "closed")


def test_a_job_is_cancelled(generated: Part, client: Any, topic: str) -> None:
    models = generated("models")
    batch = models.PutBatch(jobs=[models.PutJob(topic=topic, id=name, delay=60.0) for name in "ab"])
    results = generated("api.jobs.put_jobs").sync(client=client, body=batch).results
    assert [("a", 201), ("b", 201)] == [(result.id, int(result.status)) for result in results]
    cancelled = generated("api.jobs.cancel_job").sync(topic, "a", client=client)
    assert cancelled.was == "delayed"
    view = generated("api.topics.get_topic").sync(topic, client=client)
    assert (view.counts.delayed, view.next_due_at is None) == (1, False)


def test_an_error_is_a_problem_with_its_code(generated: Part, client: Any, topic: str) -> None:
    models = generated("models")
    missing = generated("api.jobs.get_job").sync(topic, "nothing", client=client)
    assert isinstance(missing, models.Problem)
    assert (missing.status, missing.code) == (404, "job_not_found")
    refused = generated("api.jobs.put_job").sync(client=client, body=models.PutJob(topic="no topic"))
    assert (refused.code, refused.errors[0].field) == ("validation", "body.topic")
