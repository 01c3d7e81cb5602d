"""Valid and invalid requests generated from the OpenAPI document: no 500, and no undocumented response."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import allow_header_conformance, positive_data_acceptance

from deferd.contract.limits import URL_MAX_BYTES
from tests.acceptance.service_process import ServiceProcess
from tests.drawn_input import FACTOR, counted
from tests.openapi_document import fields_that_may_be_null, openapi_document

pytestmark = [pytest.mark.slow(seconds=30), pytest.mark.usefixtures("forgotten_relays")]

EXAMPLES_PER_OPERATION = 5
"""Besides those at the bounds of each field, of which there are a hundred on average."""
WITHOUT_BOUNDS = {
    "include-operation-id": ["put_jobs", "preview_unsaved_schedule"],
    "phases": {"coverage": {"enabled": False}},
}
"""Their bodies consist of those of put_job and put_schedule, where each field is tried at its bounds."""
LONGER = max(FACTOR, 1)
STREAM_S = 1.0
"""How long a stream is read: what is kept is there at once, and most have no events."""
EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}


def contract() -> dict[str, Any]:
    """The document with four changes for the tests.

    It has no `default` responses, since with them any status counts as documented. The schema of an optional body
    allows `null`, which the document states only in a description, and an optional field of a request allows it where
    the document leaves it out. The schema of a stream, which is text, is that of each event in it: schemathesis
    compares them one by one.
    """
    document = copy.deepcopy(openapi_document())
    for operations in document["paths"].values():
        for operation in operations.values():
            del operation["responses"]["default"]
            body = operation.get("requestBody", {"required": True})
            if not body.get("required", False):
                content = body["content"]["application/json"]
                content["schema"] = {"anyOf": [content["schema"], {"type": "null"}]}
    schemas = document["components"]["schemas"]
    for of, name in fields_that_may_be_null():
        if of in schemas and "anyOf" not in (shown := schemas[of]["properties"][name]):
            schemas[of]["properties"][name] = {"anyOf": [shown, {"type": "null"}]}
    document["paths"]["/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"] = EVENT
    return document


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """One for all requests; without it, each would begin by reading certificates, proxies and `.netrc`."""
    with requests.Session() as session:
        session.trust_env = False
        yield session


@pytest.fixture
def api_schema(request: pytest.FixtureRequest) -> Any:
    """Read when the test runs: to prepare all operations takes seconds, which each process of xdist would spend."""
    request.node._nodeid = request.node.nodeid  # which schemathesis 4.32 reads and pytest 9.2 has under another name
    config = SchemathesisConfig.from_dict({"operations": [WITHOUT_BOUNDS]})
    return schemathesis.openapi.from_dict(contract(), config=config)


schema = schemathesis.pytest.from_fixture("api_schema")


def without_waiting(case: schemathesis.Case[Any]) -> Any:
    """The query of a call with a valid `wait` replaced by 0: a pop, or a get of a job, would wait up to a minute."""
    if not case.path.endswith("/pop") and case.operation.definition.raw["operationId"] != "get_job":
        return case.query
    values = dict(case.query or {})
    try:
        waits = 0 <= float(values.get("wait", 20)) <= 60
    except (TypeError, ValueError):
        waits = False
    return {**values, "wait": 0} if waits else values


def is_url_too_long(response: Any) -> bool:
    """Whether the request is refused before its operation is known, which the document of no operation contains."""
    return bool(response.status_code == 414 and len(response.request.url) > URL_MAX_BYTES)


@pytest.mark.hypothesis
@pytest.mark.timeout(600 * LONGER)  # all operations, as subtests of one test
@schema.parametrize()
@settings(
    max_examples=counted(EXAMPLES_PER_OPERATION),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)
def test_every_response_is_documented_and_none_is_a_500(
    case: schemathesis.Case[Any], shared_service: ServiceProcess, session: requests.Session
) -> None:
    case.query = without_waiting(case)
    # Left out: a schema cannot say that `delay` and `run_at` exclude each other, that a cursor must be one that the
    # service returned, that topics must be distinct, or that 5.0 is refused where a whole number is required.
    left_out: list[Any] = [positive_data_acceptance]
    if case.path == "/schedules/preview":  # a schedule may have this name, and then the path has its methods too
        left_out.append(allow_header_conformance)
    timeout_s = STREAM_S if case.path == "/events" else None
    response = case.call(base_url=shared_service.url, session=session, timeout=timeout_s)
    if not is_url_too_long(response):
        case.validate_response(response, excluded_checks=left_out)
