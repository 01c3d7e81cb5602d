"""A client that `openapi-python-client` makes from openapi/openapi.yaml works, as a stranger's would."""

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

from tests.acceptance.service_process import ServiceProcess

CONTRACT = Path(__file__).parents[2] / "openapi" / "openapi.yaml"
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


def test_a_job_goes_round(generated: Part, client: Any, topic: str) -> None:
    models = generated("models")
    backoff = models.FixedBackoff(kind="fixed", seconds=5.0)
    job = models.PutJob(topic=topic, id="order-1", body={"order": 1}, delay=0.1, retain=60.0, backoff=backoff)
    put = generated("api.jobs.put_job").sync_detailed(client=client, body=job)
    assert put.status_code == 201
    assert (put.parsed.id, put.parsed.state, put.parsed.backoff) == ("order-1", models.JobState.DELAYED, backoff)
    [delivery] = generated("api.consumers.pop_jobs").sync(topic, client=client, wait=5.0).jobs
    assert (delivery.id, delivery.body, delivery.attempt) == ("order-1", {"order": 1}, 1)
    touched = generated("api.consumers.touch_job").sync(
        topic, delivery.id, client=client, body=models.TouchJob(receipt=delivery.receipt, ttr=600.0)
    )
    assert touched.reserved_until > delivery.reserved_until
    generated("api.consumers.finish_job").sync(
        topic, delivery.id, client=client, body=models.FinishJob(receipt=delivery.receipt, result="closed")
    )
    kept = generated("api.jobs.get_job").sync(topic, "order-1", client=client)
    assert (kept.state, kept.result) == (models.JobState.FINISHED, "closed")


def test_a_job_is_taken_back(generated: Part, client: Any, topic: str) -> None:
    models = generated("models")
    batch = models.PutBatch(jobs=[models.PutJob(topic=topic, id=name, delay=60.0) for name in "ab"])
    results = generated("api.jobs.put_jobs").sync(client=client, body=batch).results
    assert [("a", 201), ("b", 201)] == [(result.id, int(result.status)) for result in results]
    cancelled = generated("api.jobs.cancel_job").sync(topic, "a", client=client)
    assert cancelled.was == models.JobState.DELAYED
    view = generated("api.topics.get_topic").sync(topic, client=client)
    assert (view.counts.delayed, view.next_due_at is None) == (1, False)


def test_an_error_is_a_problem_with_its_code(generated: Part, client: Any, topic: str) -> None:
    models = generated("models")
    missing = generated("api.jobs.get_job").sync(topic, "nothing", client=client)
    assert isinstance(missing, models.Problem)
    assert (missing.status, missing.code) == (404, "job_not_found")
    refused = generated("api.jobs.put_job").sync(client=client, body=models.PutJob(topic="no topic"))
    assert (refused.code, refused.errors[0].field) == ("validation", "body.topic")
