"""Chains of requests made from the OpenAPI document: the ids of puts and the receipts of pops flow into later calls.

A longer run, with other draws each time: ``DEFERD_FUZZ=20 python -m pytest
tests/acceptance/api/test_schemathesis*.py --timeout=3600``.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis.specs.openapi.checks import (
    ensure_resource_availability,
    negative_data_rejection,
    positive_data_acceptance,
    use_after_free,
)

from deferd.contract.limits import DELAY_MAX_S
from tests.acceptance.api.test_schemathesis import contract, is_url_too_long, without_waiting
from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess
from tests.drawn_input import FACTOR

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forgotten_relays")]

METHODS = ("get", "post", "put", "patch", "delete")
OF_A_DELIVERY = ("finish_job", "release_job", "touch_job", "bury_job")
OF_DELIVERIES = ("finish_jobs", "check_jobs", "return_jobs")
TTL_LEAST_S = 60
NOT_OF_CHAINS = [
    positive_data_acceptance,  # see test_schemathesis
    negative_data_rejection,  # checked there: here links replace bad values by good ones
    ensure_resource_availability,  # a finish removes the job that was put
    use_after_free,  # a cancelled job may be put again
]
CALLS = 300 * max(FACTOR, 1)
SETTINGS = settings(
    max_examples=CALLS // 30,
    stateful_step_count=20,
    phases=[Phase.generate],
    database=None,
    deadline=None,
    suppress_health_check=[*HealthCheck],
)


class Source(NamedTuple):
    """A response with a job, its location (runtime expressions of OpenAPI links), and the operations that follow."""

    operation_id: str
    status: str
    targets: tuple[str, ...]
    id: str
    topic: str = "$request.path.topic"
    receipt: str | None = None


_PUT = ("pop_jobs", "pop_jobs_by_get", "get_job", "change_job", "cancel_job", "list_jobs", "set_topic", "put_job")
_AFTER_A_RETURN = ("pop_jobs", "get_job", "redrive_jobs", "cancel_job", "list_jobs", "release_job", "get_topic")
_LISTED = ("get_job", "cancel_job", "redrive_jobs", "purge_topic", "pop_jobs")
_OF_PATH = "$request.path.id"
SOURCES = (
    Source("put_job", "201", _PUT, "$response.body#/id", "$response.body#/topic"),
    Source("put_jobs", "200", _PUT, "$response.body#/results/0/id", "$response.body#/results/0/topic"),
    *(
        Source(
            pop,
            "200",
            (*OF_A_DELIVERY, *OF_DELIVERIES, "cancel_job"),
            *(f"$response.body#/jobs/0/{name}" for name in ("id", "topic", "receipt")),
        )
        for pop in ("pop_jobs", "pop_jobs_by_get")
    ),
    Source("touch_job", "200", OF_A_DELIVERY, _OF_PATH),
    Source("release_job", "200", _AFTER_A_RETURN, _OF_PATH),
    Source("bury_job", "200", _AFTER_A_RETURN, _OF_PATH),
    Source("redrive_jobs", "200", ("pop_jobs",), _OF_PATH),
    Source("list_jobs", "200", _LISTED, "$response.body#/jobs/0/id"),
    Source("get_topic", "200", ("pause_topic", "set_topic", "audit_topic", "repair_topic"), _OF_PATH),
    Source("pause_topic", "200", ("resume_topic", "pop_jobs"), _OF_PATH),
)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each operation with its path."""
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                yield path, methods[method]


def link(source: Source, target_id: str, path: str) -> dict[str, Any]:
    """The link from the job of `source` to the operation `target_id` at `path`."""
    made: dict[str, Any] = {"operationId": target_id}
    if target_id == "put_job":
        return {**made, "requestBody": {"topic": source.topic, "id": source.id}}
    made["parameters"] = {"path.topic": source.topic}
    if "{id}" in path:
        made["parameters"]["path.id"] = source.id
    if target_id in OF_DELIVERIES:
        made["requestBody"] = {"jobs": [{"id": source.id, "receipt": source.receipt}]}
    elif target_id == "redrive_jobs":
        made["requestBody"] = {"ids": [source.id]}
    elif target_id in OF_A_DELIVERY and source.receipt is not None:
        made["requestBody"] = {"receipt": source.receipt}
    return made


def with_links(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the links of SOURCES, and one from each page of a list to the next."""
    by_id = {operation["operationId"]: (path, operation) for path, operation in operations(document)}
    for source in SOURCES:
        links = by_id[source.operation_id][1]["responses"][source.status].setdefault("links", {})
        links |= {target: link(source, target, by_id[target][0]) for target in source.targets}
    next_page = {"path.topic": "$request.path.topic", "query.cursor": "$response.body#/next_cursor"}
    links = by_id["list_jobs"][1]["responses"]["200"]["links"]
    links["next_page"] = {"operationId": "list_jobs", "parameters": next_page}
    return document


def due_soon(body: Any) -> Any:
    """A put that is mostly due at once and does not expire at once: a job that is due in years is never popped."""
    if not isinstance(body, dict):
        return body
    jobs = body.get("jobs")
    if isinstance(jobs, list):
        return {**body, "jobs": [due_soon(job) for job in jobs]}
    if len(repr(body)) % 4:
        if type(body.get("delay")) in (int, float) and 0 <= body["delay"] <= DELAY_MAX_S:
            body = {**body, "delay": 0}
        if isinstance(body.get("run_at"), str):
            body = {**body, "run_at": "2000-01-01T00:00:00Z"}
        for field in ("ttl", "deadline"):
            if type(body.get(field)) in (int, float) and 0 < body[field] < TTL_LEAST_S:
                body = {**body, field: TTL_LEAST_S}
        if body.get("dead_retain") == 0:
            body = {**body, "dead_retain": 60}
    return body


@pytest.mark.timeout(600 * max(FACTOR, 1))
def test_sequences_of_requests_get_documented_responses(shared_service: ServiceProcess) -> None:
    """No 500, every response conforms to the document, and the sequences reach their targets."""
    document = with_links(contract())
    schema = schemathesis.openapi.from_dict(document)
    schema.config.phases.stateful.inference.algorithms = []  # by itself it links every call that names a topic
    outcomes: collections.Counter[tuple[str, int]] = collections.Counter()
    failures: list[Exception] = []

    class Chains(schema.as_state_machine()):  # type: ignore[misc]
        def setup(self) -> None:
            self.topics: set[str] = set()

        def get_call_kwargs(self, case: schemathesis.Case[Any]) -> dict[str, Any]:
            return {"base_url": shared_service.url}

        def before_call(self, case: schemathesis.Case[Any]) -> None:
            case.query = without_waiting(case)
            if case.path.startswith("/jobs"):
                case.body = due_soon(case.body)

        def validate_response(self, response: Any, case: schemathesis.Case[Any], **options: Any) -> None:
            outcomes[case.operation.definition.raw["operationId"], response.status_code] += 1
            self.topics |= topics_in(case, response)
            if is_url_too_long(response):
                return
            try:
                case.validate_response(
                    response, excluded_checks=NOT_OF_CHAINS, transport_kwargs={"base_url": shared_service.url}
                )
            except Exception as failure:
                failures.append(failure)
                raise

        def teardown(self) -> None:
            for topic in self.topics:  # so that the next chain finds an empty store too
                for method, path in (("DELETE", ""), ("POST", "/resume")):
                    httpx.request(method, f"{shared_service.url}/topics/{topic}{path}", timeout=10, verify=NO_TLS)

    while outcomes.total() < CALLS and not failures:
        # Chains cannot be repeated exactly: the service makes ids and receipts, and schemathesis draws by itself.
        with contextlib.suppress(FlakyStrategyDefinition):
            Chains.run(settings=SETTINGS)
    if failures:
        raise failures[0]
    print("responses:", *(f"{name} {status}: {count}" for (name, status), count in sorted(outcomes.items())))
    assert sum(outcomes[operation_id, 200] for operation_id in OF_A_DELIVERY) > 0, "no receipt has reached its job"
    assert "Traceback" not in shared_service.output()


def topics_in(case: schemathesis.Case[Any], response: Any) -> set[str]:
    """The topic of a successful request, if it has one."""
    if response.status_code not in (200, 201):
        return set()
    named = (case.path_parameters or {}).get("topic") or (
        case.body.get("topic") if isinstance(case.body, dict) else None
    )
    return set() if named is None else set(str(named).split(","))
