"""Any request is bound to a call, or refused by an error that can be shown."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from deferd.api import problem_details
from deferd.api.app import create_app
from deferd.api.auth.admission import WITHOUT_KEY
from deferd.api.context import RequestContext
from deferd.api.incoming_request import AsgiRequest
from deferd.api.operation import OperationRoute
from deferd.api.request_body import parse_object
from deferd.contract import limits, model
from deferd.contract.errors import DeferdError, InvalidInput
from deferd.engine import script_arguments
from deferd.engine.record import Receipt
from deferd.settings import Settings
from tests.drawn_input import contents, drawn, json_objects, json_values, objects_with, plain_texts, texts

SERVICE = create_app(Settings(), "")
OPERATIONS = [route for route in SERVICE.routes if isinstance(route, OperationRoute)]


def sent_request(
    path_values: dict[str, str], *, query: bytes = b"", body: bytes = b"", headers: Sequence[tuple[bytes, bytes]] = ()
) -> AsgiRequest:
    """A request whose body has arrived."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    scope = {"method": "POST", "query_string": query, "headers": headers}
    return AsgiRequest(scope, receive, path_values, SERVICE.context.settings.max_body_bytes)


def bind(operation: OperationRoute, request: AsgiRequest) -> Mapping[str, Any] | DeferdError:
    """The arguments that the operation binds, or the error with which it refuses."""
    with pytest.raises((StopIteration, DeferdError)) as ended:
        operation.bind(RequestContext(SERVICE.context, request, WITHOUT_KEY)).send(None)  # nothing in it waits
    if isinstance(ended.value, StopIteration):
        arguments: Mapping[str, Any] = ended.value.value
        return arguments
    assert isinstance(ended.value, DeferdError)
    return ended.value


def bind_or_refuse(
    operation: OperationRoute, path_values: dict[str, str], query: bytes = b"", body: bytes = b""
) -> Mapping[str, Any] | None:
    """The arguments; None when the operation refuses the request, with a well-formed response."""
    bound = bind(operation, sent_request(path_values, query=query, body=body))
    if not isinstance(bound, DeferdError):
        return bound
    response = problem_details.response(bound)
    shown = json.loads(bytes(response.body))
    assert response.status_code == shown["status"]
    assert shown["status"] in ((422,) if isinstance(bound, InvalidInput) else (413, 415))
    return None


names = st.one_of(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True), plain_texts, st.just("a\n"))
numbers = st.one_of(st.sampled_from(["0", "1", "0.5", "61", "1e1", "-1", "0x1", " 1", "1_0", "٣", "nan"]), plain_texts)
parameters = st.lists(
    st.tuples(
        st.sampled_from(["wait", "count", "ttr", "consumer", "state", "limit", "cursor"]) | texts, numbers | texts
    ),
    max_size=4,
)
queries = st.one_of(
    parameters.map(lambda pairs: urlencode(pairs, errors="surrogatepass").encode()),
    st.binary(max_size=40).map(lambda raw: raw.replace(b" ", b"+")),
)
durations = st.one_of(st.integers(0, 10), st.floats(0, 1e9), st.sampled_from([0.1, 86400, 315_576_000, -1, 1e308]))
instants = st.one_of(
    st.datetimes().map(lambda at: f"{at.isoformat()}Z"),
    st.sampled_from(["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2030-02-30T00:00:00Z"]),
    st.from_regex(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", fullmatch=True),
)
policy = {
    "ttr": durations,
    "ttl": st.none() | durations,
    "retain": durations,
    "dead_retain": durations,
    "time_limit": st.none() | durations,
    "deadline": st.none() | durations,
    "max_attempts": st.none() | st.integers(1, 5),
    "backoff": objects_with(
        {
            "kind": st.sampled_from(["exponential", "fixed", "schedule"]),
            "base": durations,
            "cap": durations,
            "seconds": durations | st.lists(durations, max_size=3),
            "then": st.sampled_from(["dead", "repeat_last"]),
            "jitter": st.floats(0, 1),
        }
    ),
}
fields = {
    **policy,
    "topic": names,
    "id": names,
    "body": json_values,
    "delay": durations,
    "run_at": instants,
    "on_conflict": st.sampled_from(["keep", "replace", "reject"]),
    "receipt": st.from_regex(r"[0-9a-f]{12}\.[0-9]", fullmatch=True) | plain_texts,
    "result": json_values,
    "error": plain_texts,
    "max_jobs": st.integers(1, 9),
    "limit": st.integers(1, 9),
}
jobs = objects_with(fields)
bodies = st.one_of(
    st.one_of(
        jobs, st.fixed_dictionaries({"jobs": st.lists(jobs, max_size=3)}), objects_with({"ids": st.lists(names)})
    ).map(lambda value: json.dumps(value).encode()),
    contents,
)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@drawn(10)
@given(data=st.data())
def test_every_request_is_bound_or_refused(operation: OperationRoute, data: st.DataObject) -> None:
    path_values = {name: data.draw(names | texts) for name in operation.param_convertors}
    bind_or_refuse(operation, path_values, data.draw(queries), data.draw(bodies))


def body_fields(operation: OperationRoute) -> list[str]:
    return [] if operation.body_model is None else sorted(operation.body_model.model_fields)


@pytest.mark.parametrize(
    "operation", [one for one in OPERATIONS if one.body_model is not None], ids=lambda operation: operation.name
)
@drawn(10)
@given(data=st.data())
def test_an_object_with_known_fields_is_bound_or_refused(operation: OperationRoute, data: st.DataObject) -> None:
    known = {name: fields[name] for name in body_fields(operation) if name in fields}
    path_values = dict.fromkeys(operation.param_convertors, "orders")
    body = json.dumps(data.draw(objects_with(known))).encode()
    arguments = bind_or_refuse(operation, path_values, b"", body)
    if arguments is not None:
        for value in arguments.values():
            can_be_sent_to_the_store(value)


def can_be_sent_to_the_store(value: Any) -> None:
    """Parsed values can be encoded for scripts."""
    match value:
        case model.PutJob():
            script_arguments.encode_put(value)
        case model.PutBatch():
            for job in value.jobs:
                can_be_sent_to_the_store(job)
        case model.ChangeJob():
            script_arguments.when_args(value)
        case model.FinishJob():
            script_arguments.encode_finish("a", Receipt.of(value.receipt), value.result)


@drawn(200)
@given(value=json_objects, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_an_object_is_read_as_it_was_written(value: dict[str, Any], ascii_only: bool, indent: int | None) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert value == parse_object(raw)


@drawn(1000)
@given(raw=contents)
def test_bytes_are_an_object_or_refused_and_what_is_read_can_be_written(raw: bytes) -> None:
    try:
        value = parse_object(raw)
    except InvalidInput as refused:
        problem_details.response(refused)
        return
    assert value == json.loads(raw)
    json.dumps(value, allow_nan=False, ensure_ascii=False).encode()


@drawn(200)
@given(pairs=st.dictionaries(plain_texts, plain_texts, max_size=5))
def test_a_query_is_read_as_it_was_written(pairs: dict[str, str]) -> None:
    [pop] = [operation for operation in OPERATIONS if operation.name == "pop_jobs"]
    query = "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in pairs.items()).encode()
    bound = bind(pop, sent_request({"topic": "t"}, query=query))
    if isinstance(bound, InvalidInput):
        assert {field_error.path[1] for field_error in bound.field_errors} <= pairs.keys()
        for field_error in bound.field_errors:
            if field_error.value is not None:
                assert pairs[str(field_error.path[1])] == field_error.value
    else:
        assert not pairs.keys() - {"wait", "count", "ttr", "consumer", "request_id"}


hexadecimal = st.text("0123456789abcdef", min_size=1, max_size=33)


@drawn(200)
@given(
    values=st.lists(
        st.one_of(
            st.from_regex(model.TRACEPARENT_PATTERN, fullmatch=True).map(str.encode),
            st.lists(hexadecimal, max_size=5).map("-".join).map(str.encode),
            st.binary(max_size=60),
        ),
        max_size=2,
    )
)
def test_a_traceparent_is_the_one_header_that_is_valid_or_none(values: list[bytes]) -> None:
    request = sent_request({}, headers=[(b"traceparent", value) for value in values])
    found = request.traceparent()
    if found is not None:
        assert [found.encode()] == values
        assert re.fullmatch(model.TRACEPARENT_PATTERN, found)
        model.PutJob(topic="t", traceparent=found)  # is one that a body may have as well


@drawn(200)
@given(nonce=st.integers(0, 2**47 - 1), attempt=st.integers(1, 2**31))
def test_a_receipt_is_read_as_it_was_written(nonce: int, attempt: int) -> None:
    receipt = Receipt(nonce, attempt)
    assert receipt == Receipt.of(str(receipt))
    assert len(str(receipt)) <= limits.RECEIPT_MAX


@drawn(400)
@given(text=texts | st.from_regex(r"[0-9a-f-]{11,14}\.[-0-9]{1,25}", fullmatch=True) | st.just(None))
def test_a_text_is_one_receipt_or_one_that_no_delivery_has(text: str | None) -> None:
    receipt = Receipt.of(text)
    assert text == str(receipt) or receipt in (Receipt.of(None), Receipt.of("none"))
    assert (text is None) is (receipt == Receipt.of(None))


@drawn(200)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "", "POP"]) | texts,
    path=st.lists(st.sampled_from(["jobs", "topics", "a", "pop", "", "..", "a,b", "%2F"]) | texts, max_size=5).map(
        lambda steps: "/" + "/".join(steps)
    ),
)
def test_a_path_leads_to_an_operation_whose_parts_make_it_up_or_to_none(method: str, path: str) -> None:
    found = SERVICE.request_handler.find(method, path)
    if found is not None:
        operation, values = found
        assert path == operation.path_format.format(**values)
        assert not any("/" in value for value in values.values())
