"""A client with a cipher: what its requests have encrypted in them, and what it makes of responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from msgspec import UNSET, convert

from deferd import AsyncClient, Cipher, Client, InvalidInput, JobRef, PayloadTooLarge, Undecryptable, Worker
from deferd.client.async_client import ApiMethods
from deferd.client.encrypted_calls import EncryptingSender
from deferd.client.http1 import HttpResponse
from deferd.client.job_requests import put
from deferd.client.requests import ApiRequest
from deferd.contract.limits import ERROR_TEXT_MAX
from deferd.contract.operations.inspection import Explanation
from deferd.contract.operations.jobs import Delivery, Job, PutResults
from deferd.contract.operations.schedules_and_calendars import Schedule
from tests.deliveries import FIELDS
from tests.openapi_document import openapi_document

OLD, NEW = Cipher.new_key("old"), Cipher.new_key("new")
CIPHER = Cipher(NEW, OLD, headers=True, errors=True)
TOPIC = "orders.close"
HELD = JobRef(TOPIC, "a", "1.1")
PLAIN = "ada@example.com"
"""What no request may have in it."""


class Service:
    """Keeps the requests of a client, and responds with what a test says, by default an error."""

    def __init__(self) -> None:
        self.requests: list[ApiRequest[Any]] = []
        self.response: tuple[int, Any] = (422, {"code": "validation", "detail": "no"})

    async def exchange(self, _url: str, request: ApiRequest[Any]) -> HttpResponse:
        self.requests.append(request)
        status, content = self.response
        return HttpResponse(status, json.dumps(content).encode(), None, b"application/json")

    async def sleep(self, _seconds: float) -> None: ...

    async def close(self) -> None: ...

    @property
    def sent(self) -> Any:
        return json.loads(self.requests[-1].body or b"")


@pytest.fixture
def service() -> Service:
    return Service()


def client_of(service: Service, cipher: Cipher = CIPHER) -> ApiMethods:
    transport = cast("Any", service)
    sender = EncryptingSender(transport, ["http://service"], retry_for_s=0, cipher=cipher)
    return ApiMethods(transport, sender, cipher=cipher)


@pytest.fixture
def client(service: Service) -> ApiMethods:
    return client_of(service)


CALLS: dict[str, Any] = {
    "put": lambda client: client.put(TOPIC, {"to": PLAIN}, headers={"to": PLAIN}),
    "put_batch": lambda client: client.put_batch([{"topic": TOPIC, "body": PLAIN, "headers": {"to": PLAIN}}]),
    "change": lambda client: client.change(TOPIC, "a", body=PLAIN, headers={"to": PLAIN}),
    "finish": lambda client: client.finish(HELD, PLAIN),
    "finish_put": lambda client: client.finish(HELD, PLAIN, put=[{"topic": TOPIC, "body": PLAIN}]),
    "finish_many": lambda client: client.finish_many(TOPIC, [{"id": "a", "receipt": "1.1", "result": PLAIN}]),
    "release": lambda client: client.release(HELD, error=f"no {PLAIN}"),
    "bury": lambda client: client.bury(HELD, error=f"no {PLAIN}"),
    "put_schedule": lambda client: client.put_schedule("s", TOPIC, every=60, job={"body": PLAIN}),
    "preview_schedule": lambda client: client.preview_schedule(
        {"topic": TOPIC, "every": 60, "job": {"body": PLAIN, "headers": {"to": PLAIN}}}
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_no_request_has_what_is_encrypted_in_it(service: Service, client: ApiMethods, call: Any) -> None:
    with pytest.raises(InvalidInput):
        await call(client)
    body = service.requests[-1].body or b""
    assert b"deferd:encrypted" in body
    assert PLAIN.encode() not in body
    assert TOPIC in body.decode() + service.requests[-1].path


def test_each_request_with_parts_of_a_job_is_among_these(service: Service, client: ApiMethods) -> None:
    """A new operation of the API that takes a body, a result, an error or headers has to be encrypted, too."""
    called = set()
    for call in CALLS.values():
        with pytest.raises(InvalidInput):
            asyncio.run(call(client))
        request = service.requests[-1]
        called.add((request.method, len(request.path.split("/")), request.path.split("/")[-1]))
    document = openapi_document()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if "requestBody" in operation and "redrive" not in path and not path.endswith("/push"):
                [content] = operation["requestBody"]["content"].values()
                if {"body", "result", "error", "headers"} & set(names_in(content["schema"], document)):
                    last = path.split("/")[-1]
                    last = {"{id}": "a", "{name}": "s"}.get(last, last)
                    assert (method.upper(), len(path.split("/")), last) in called, f"{method} {path}"


def names_in(schema: Any, document: Any, seen: tuple[str, ...] = ()) -> Iterator[str]:
    """The names of the members that a schema has, at any depth, without those of `on_end`: no parts of jobs."""
    if isinstance(schema, list):
        for one in schema:
            yield from names_in(one, document, seen)
    elif isinstance(schema, dict):
        if (name := schema.get("$ref", "").split("/")[-1]) and name not in seen:
            yield from names_in(document["components"]["schemas"][name], document, (*seen, name))
        members = {name: inner for name, inner in schema.get("properties", {}).items() if name != "on_end"}
        yield from members
        for inner in (*members.values(), *(schema.get(key) for key in ("items", "anyOf", "oneOf"))):
            yield from names_in(inner, document, seen)


async def test_other_fields_and_other_topics_are_sent_as_they_are(service: Service) -> None:
    client = client_of(service, Cipher(NEW, topics="orders.*"))
    with pytest.raises(InvalidInput):
        await client.put(TOPIC, 1, id="a", tags=["x"], headers={"to": PLAIN}, delay=5)
    sent = service.sent
    assert sent.pop("body").keys() == {"deferd:encrypted", "key", "data"}
    assert sent == {"topic": TOPIC, "id": "a", "tags": ["x"], "headers": {"to": PLAIN}, "delay": 5}
    with pytest.raises(InvalidInput):
        await client.release(JobRef(TOPIC, "a", "1.1"), error="boom")
    assert service.sent == {"error": "boom", "receipt": "1.1"}
    with pytest.raises(InvalidInput):
        await client.put("hooks", {"n": 1}, id="a")
    assert service.sent == {"topic": "hooks", "id": "a", "body": {"n": 1}}


async def test_a_long_error_is_cut_so_that_the_service_takes_it(service: Service, client: ApiMethods) -> None:
    with pytest.raises(InvalidInput):
        await client.release(HELD, error="x" * ERROR_TEXT_MAX)
    error = service.sent["error"]
    assert len(error) <= ERROR_TEXT_MAX
    assert set(CIPHER.decrypt(error, topic=TOPIC, part="error")) == {"x"}


async def test_an_unchanged_schedule_is_sent_unchanged(service: Service, client: ApiMethods) -> None:
    for _ in range(2):
        with pytest.raises(InvalidInput):
            await client.put_schedule("s", TOPIC, every=60, job={"body": PLAIN, "headers": {"to": PLAIN}})
    first, second = service.requests
    assert first.body == second.body
    with pytest.raises(InvalidInput):
        await client.put_schedule("s", TOPIC, every=60, job={"body": "other"})
    assert service.sent["job"]["body"]["data"][:16] != json.loads(first.body or b"")["job"]["body"]["data"][:16]


async def test_a_job_without_a_body_has_an_encrypted_one(service: Service, client: ApiMethods) -> None:
    def body_of(job: Any) -> Any:
        return Cipher(NEW, required=True).decrypt(job["body"], topic=TOPIC)

    with pytest.raises(InvalidInput):
        await client.put_batch([{"topic": TOPIC}])
    assert body_of(service.sent["jobs"][0]) is None
    with pytest.raises(InvalidInput):
        await client.put_schedule("s", TOPIC, every=60)
    assert body_of(service.sent["job"]) is None
    with pytest.raises(InvalidInput):
        await client.change(TOPIC, "a", ttr=5)
    assert service.sent == {"ttr": 5}


async def test_a_body_that_is_no_json_is_refused(client: ApiMethods, service: Service) -> None:
    with pytest.raises(InvalidInput, match="cannot be written as JSON"):
        await client.put(TOPIC, float("nan"))
    outcome = await client._sender.try_to_send(put({"topic": TOPIC, "body": float("nan")}))
    assert isinstance(outcome.error, InvalidInput)  # not raised: in a batch it would be of the call that sends it
    assert not service.requests


async def test_a_request_that_is_too_large_says_what_encryption_adds(client: ApiMethods, service: Service) -> None:
    service.response = (413, {"code": "payload_too_large", "detail": "x", "limit_bytes": 1000})
    with pytest.raises(PayloadTooLarge, match=r"larger than 1000 bytes \(the request has 1,\d+ bytes .* 1,\d+ without"):
        await client.change(TOPIC, "a", body="x" * 1000)


def job(**fields: Any) -> dict[str, Any]:
    return {**FIELDS, "topic": TOPIC, **fields}


def read(content: dict[str, Any], kind: Any = Job, cipher: Cipher = CIPHER) -> Any:
    """What a client makes of a response."""
    service = Service()
    service.response = (200, content)
    request = ApiRequest("GET", "/x", lambda text: convert(json.loads(text), kind))
    return asyncio.run(client_of(service, cipher).send(request))


def test_all_parts_of_a_job_are_decrypted() -> None:
    def sealed(value: Any, part: str = "body") -> Any:
        return CIPHER.encrypt(value, topic=TOPIC, part=part)

    ended = {"attempt": 1, "ended_at": "2030-01-31T09:30:02.000Z", "how": "released"}
    log = [{**ended, "error": sealed("boom", "error")}, {**ended, "error": sealed("boom" * 200, "error")[:500]}]
    follow_up = {"body": sealed(7), "created_at": FIELDS["created_at"], "due_at": FIELDS["due_at"]}
    found = read(
        job(
            body=sealed({"n": 1}),
            result=sealed([2], "result"),
            headers={"to": sealed("ada", "header:to"), "plain": "x"},
            last_error=sealed("boom", "error"),
            attempts_log=log,
            followed_by=follow_up,
        )
    )
    assert (found.body, found.result, found.headers, found.last_error) == (
        {"n": 1},
        [2],
        {"to": "ada", "plain": "x"},
        "boom",
    )
    assert [one.error for one in found.attempts_log] == ["boom", log[1]["error"]]  # the service has cut that off
    assert found.followed_by.body == 7
    assert found.fields["body"] == {"n": 1}
    without = read({name: value for name, value in job().items() if name != "body"})
    assert without.body is UNSET


def test_items_that_puts_with_append_have_collected_are_decrypted_one_by_one() -> None:
    items = [CIPHER.encrypt(1, topic=TOPIC), {"plain": 2}, Cipher(OLD).encrypt([3], topic=TOPIC)]
    assert read(job(body=items, items=3)).body == [1, {"plain": 2}, [3]]
    assert read(job(body=CIPHER.encrypt([1], topic=TOPIC), items=2)).body == [1]  # the response to such a put
    assert read(job(body=items)).body == items  # a producer without a cipher has put a list


def test_the_end_of_another_job_is_decrypted_by_the_topic_of_that() -> None:
    end = {
        "topic": "orders",
        "id": "a",
        "outcome": "dead",
        "result": CIPHER.encrypt(1, topic="orders", part="result"),
        "error": CIPHER.encrypt("boom", topic="orders", part="error"),
        "headers": {"to": CIPHER.encrypt("ada", topic="orders", part="header:to")},
        "body": CIPHER.encrypt({"n": 1}, topic="orders"),
    }
    opened = {**end, "result": 1, "error": "boom", "headers": {"to": "ada"}, "body": {"n": 1}}
    assert read(job(body=end)).body == opened
    collected = {"topic": "orders", "id": "a", "outcome": "finished", "body": [end["body"], end["body"]]}
    assert read(job(body=collected)).body["body"] == [{"n": 1}, {"n": 1}]
    moved = read(job(body={**end, "topic": "other"}))
    with pytest.raises(Undecryptable, match="of topic 'other'"):
        _ = moved.body
    inside = read(job(body=CIPHER.encrypt(end, topic=TOPIC)))  # the application has put it: it is what it is
    assert inside.body == end


@pytest.mark.parametrize("kind", [Job, Delivery])
@pytest.mark.parametrize("part", ["body", "result", "header:to"])
def test_a_job_that_cannot_be_decrypted_says_why_when_it_is_read(kind: type[Job], part: str) -> None:
    sealed = Cipher(Cipher.new_key("gone")).encrypt("x", topic=TOPIC, part=part)
    parts = {"headers": {"to": sealed}} if part.startswith("header") else {part: sealed}
    error = CIPHER.encrypt("boom", topic=TOPIC, part="error")
    found = read(job(**parts, last_error=error), kind)
    assert isinstance(found, kind)
    assert (found.id, found.state, found.last_error) == ("a", "reserved", "boom")
    for name in ("body", "result", "headers"):
        with pytest.raises(Undecryptable, match=f"the {part} of a job of topic 'orders.close' .* key 'gone'"):
            getattr(found, name)
    assert found.fields.items() >= parts.items()
    assert "x" not in repr(found)


def test_one_job_that_cannot_be_decrypted_leaves_the_others_of_a_pop_alone() -> None:
    sealed = [Cipher(key).encrypt(1, topic=TOPIC) for key in (NEW, Cipher.new_key("gone"), OLD)]
    first, second, third = read(cast("Any", [job(body=body) for body in sealed]), list[Delivery])
    assert (first.body, third.body) == (1, 1)
    assert JobRef(second.topic, second.id, second.receipt) == JobRef(TOPIC, "a", FIELDS["receipt"])


def test_results_schedules_and_reasons_are_decrypted() -> None:
    body = CIPHER.encrypt(1, topic=TOPIC)
    result = {"topic": TOPIC, "id": "a", "status": 201}
    results = read({"results": [{**result, "job": job(body=body)}, result]}, PutResults).results
    assert results[0].job.body == 1
    text = CIPHER.encrypt("ada", topic=TOPIC, part="header:to")
    example = {**Schedule.schema_examples[0], "topic": TOPIC, "job": {"body": body, "headers": {"to": text}}}
    assert read(example, Schedule).job == {"body": 1, "headers": {"to": "ada"}}
    example["job"] = {"body": Cipher(Cipher.new_key("gone")).encrypt(1, topic=TOPIC)}
    assert read(example, Schedule).job == example["job"]
    error = CIPHER.encrypt("boom", topic=TOPIC, part="error")
    why = {"topic": TOPIC, "id": "a", "state": "dead", "reasons": [{"code": "dead", "text": "", "error": error}]}
    assert read(why, Explanation).reasons[0].error == "boom"


def test_a_client_of_each_kind_takes_a_cipher() -> None:
    with Client("http://127.0.0.1:1", cipher=CIPHER) as client:
        assert client._methods.cipher is CIPHER
        assert isinstance(client._methods._sender, EncryptingSender)
    with pytest.raises(ValueError, match="give the cipher to that"):  # it would not be used
        Worker(AsyncClient, cipher=CIPHER)
