"""The OpenAPI document: it is the one in the repository, valid, and complete for clients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from deferd.api import operation, problem_details
from deferd.api.openapi import document
from deferd.api.openapi.__main__ import CORE_FILE, FOLDER, render
from deferd.api.openapi.document import CORE, model_of, schema_examples
from deferd.contract import bulk_model, flow, model, windows
from deferd.contract.fields import NULL_IS_NONE
from deferd.contract.operations import batches, now, push, relays, schedules_and_calendars
from deferd.contract.operations.jobs import Job
from deferd.contract.operations.operation import all_operations
from deferd.contract.operations.response import Response
from deferd.contract.scopes import Scope
from tests.openapi_document import openapi_document

DOCUMENT = openapi_document()
CORE_DOCUMENT: dict[str, Any] = yaml.load(CORE_FILE.read_bytes(), yaml.CSafeLoader)
SCHEMAS = DOCUMENT["components"]["schemas"]
EXAMPLES = schema_examples()
OPERATIONS = {row.id: row for row in all_operations() if not row.path.startswith("/testing/")}


def operations() -> Iterator[dict[str, Any]]:
    for methods in DOCUMENT["paths"].values():
        yield from methods.values()


DESCRIBED = {described["operationId"]: described for described in operations()}


def codes_of(response: dict[str, Any]) -> set[str]:
    return set(response["content"]["application/problem+json"]["examples"])


def subclasses(struct: type[Response]) -> Iterator[type[Response]]:
    for subclass in struct.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def model_named(name: str) -> type[BaseModel]:
    for struct in subclasses(Response):
        if (struct.schema_name or struct.__name__) == name:
            return model_of(struct)
    for module in (
        document,
        model,
        flow,
        windows,
        now,
        push,
        batches,
        relays,
        schedules_and_calendars,
        bulk_model,
        operation,
    ):
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    raise AssertionError(f"no model is called {name}")


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for inner in node.values():
            yield from nodes(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from nodes(inner)


def test_the_files_are_the_documents_of_the_application() -> None:
    drifted = "it has drifted: run `python -m deferd.api.openapi`"
    for name, text in render().items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, drifted


def test_the_documents_are_openapi_3_1() -> None:
    from openapi_spec_validator import validate  # noqa: PLC0415 (it takes a second)

    for one in (DOCUMENT, CORE_DOCUMENT):
        assert one["openapi"].startswith("3.1")
        validate(one)


def test_the_core_is_a_part_of_the_document() -> None:
    """As it stands there, complete, and with nothing that no operation of it refers to."""
    for path, methods in CORE_DOCUMENT["paths"].items():
        assert methods.items() <= DOCUMENT["paths"][path].items()
    for kind, of_kind in CORE_DOCUMENT["components"].items():
        assert of_kind.items() <= DOCUMENT["components"][kind].items()
    used = {node["$ref"] for node in nodes(CORE_DOCUMENT) if "$ref" in node}
    there = {f"#/components/{kind}/{name}" for kind, of_kind in CORE_DOCUMENT["components"].items() for name in of_kind}
    assert used == there - {"#/components/securitySchemes/key"}


def test_the_core_has_the_calls_of_the_page_of_ten_calls() -> None:
    page = (FOLDER.parent / "docs" / "ten-calls.md").read_text(encoding="utf-8")
    called = re.findall(r"^curl -sS(?: -X (\S+))?( --json)? .*localhost:8000(/[^' ?>\n]*)", page, re.MULTILINE)
    described = {
        described["operationId"]: (method, re.compile(re.sub(r"\{.*?\}", "[^/]+", path)))
        for path, methods in CORE_DOCUMENT["paths"].items()
        for method, described in methods.items()
    }
    found = {
        name
        for given, body, path in called
        for name, (method, pattern) in described.items()
        if method == (given.lower() or ("post" if body else "get")) and pattern.fullmatch(path)
    }
    assert found == described.keys() == CORE


def test_the_document_has_the_operations_of_the_contract() -> None:
    assert sorted(DESCRIBED) == sorted(OPERATIONS)


def test_every_operation_has_texts() -> None:
    for name, described in DESCRIBED.items():
        assert described["summary"], name
        assert described["description"], name
        assert described["tags"][0] in {tag["name"] for tag in DOCUMENT["tags"]}, name
        assert all(response["description"] for response in described["responses"].values()), name


def test_every_parameter_is_described() -> None:
    for name, described in DESCRIBED.items():
        for parameter in described.get("parameters", ()):
            assert parameter["description"], (name, parameter["name"])
            assert parameter["schema"] != {}, (name, parameter["name"])


def test_every_error_of_an_operation_is_a_problem() -> None:
    for name, described in DESCRIBED.items():
        for status, response in described["responses"].items():
            if status >= "400":
                content = response["content"]["application/problem+json"]
                assert content["schema"] == {"$ref": "#/components/schemas/Problem"}, name
                assert status == "default" or content["examples"], name


def test_every_operation_has_a_default_error_response() -> None:
    for name, described in DESCRIBED.items():
        assert list(described["responses"])[-1] == "default", name


def test_every_operation_documents_the_errors_of_the_contract() -> None:
    for name, described in DESCRIBED.items():
        errors = set(OPERATIONS[name].all_errors)
        responses = described["responses"]
        documented = {code for status in responses if "400" <= status <= "599" for code in codes_of(responses[status])}
        assert errors <= documented, name
        assert {code for code in errors if problem_details.BY_CODE[code].status == 422} == codes_of(responses["422"]), (
            name
        )


def test_every_operation_documents_the_errors_of_a_body() -> None:
    for name, described in DESCRIBED.items():
        has_body = "requestBody" in described
        assert has_body == ("413" in described["responses"]), name
        assert has_body == ("415" in described["responses"]), name


def test_every_operation_documents_whether_the_body_is_optional() -> None:
    for name, described in DESCRIBED.items():
        if "requestBody" in described:
            required = described["requestBody"].get("required", False)
            replaces = OPERATIONS[name].method in {"PUT", "PATCH"}
            reference = described["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            schema = SCHEMAS[reference.rpartition("/")[2]]
            assert required == (replaces or bool(schema.get("required"))), name
            assert required != (
                "optional; `null` means the same as no body" in described["requestBody"].get("description", "").lower()
            ), name
            assert described["requestBody"]["content"]["application/json"]["schema"].keys() == {"$ref"}, name


def test_every_operation_documents_that_the_store_may_be_unavailable() -> None:
    for name, described in DESCRIBED.items():
        needs_store = name not in ("check_health", "get_metrics")
        assert needs_store == ("503" in described["responses"]), name
        if needs_store:
            assert "Retry-After" in described["responses"]["503"]["headers"], name


def test_every_operation_documents_the_required_scope() -> None:
    for name, described in DESCRIBED.items():
        if name in ("check_health", "check_readiness"):
            assert described["security"] == [], name
            assert not {"401", "403", "429"} & described["responses"].keys(), name
            continue
        [needed, none] = described["security"]
        [[scheme, [scope]]] = needed.items()
        assert none == {}, name  # a service may have no keys
        assert DOCUMENT["components"]["securitySchemes"][scheme]["scheme"] == "bearer", name
        assert scope in set(Scope), name
        for status, code in (("401", "unauthorized"), ("403", "forbidden"), ("429", "rate_limited")):
            assert code in codes_of(described["responses"][status]), name
        assert {"WWW-Authenticate"} == described["responses"]["401"]["headers"].keys(), name
        assert {"Retry-After", "RateLimit", "RateLimit-Policy"} == described["responses"]["429"]["headers"].keys(), name


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_are_valid(name: str) -> None:
    for example in EXAMPLES[name]:
        model_named(name).model_validate(example)
    assert DOCUMENT["components"]["schemas"][name]["examples"] == EXAMPLES[name]


def test_every_request_and_response_has_an_example() -> None:
    used = {
        content["schema"]["$ref"].rpartition("/")[2]
        for described in operations()
        for part in (described.get("requestBody", {}), *described["responses"].values())
        for media_type, content in part.get("content", {}).items()
        if media_type == "application/json"
    }
    assert used <= EXAMPLES.keys()


@pytest.mark.parametrize("code", sorted(DOCUMENT["components"]["examples"]))
def test_examples_of_problems_are_valid(code: str) -> None:
    example = DOCUMENT["components"]["examples"][code]["value"]
    assert document.Problem.model_validate(example).code == code
    assert example.keys() <= SCHEMAS["Problem"]["properties"].keys()


def requested_schemas() -> set[str]:
    """The names of the schemas of which bodies of requests are made."""
    found: set[str] = set()
    left = [described.get("requestBody", {}) for described in operations()]
    while left:
        names = {node["$ref"].rpartition("/")[2] for node in nodes(left.pop()) if "$ref" in node} - found
        found |= names
        left += [SCHEMAS[name] for name in names if name in SCHEMAS]
    return found & set(SCHEMAS)


def test_every_number_of_a_request_that_counts_nothing_names_its_unit() -> None:
    """Counts are integers."""
    of_bodies = [field for name in requested_schemas() for field in SCHEMAS[name].get("properties", {}).items()]
    of_queries = [(one["name"], one) for described in operations() for one in described.get("parameters", ())]
    texts = {
        (name, described.get("description", ""))
        for name, described in of_bodies + of_queries
        if any(node.get("type") == "number" for node in nodes(described))
    }
    assert {"ttr", "delay", "jitter", "timeout", "wait"} <= {name for name, _ in texts}
    assert [] == [text for text in texts if not re.search(r"\b(seconds?|fraction)\b", text[1], re.IGNORECASE)]


def test_numbers_have_the_format_of_the_service() -> None:
    """Generators choose the size of a number without a format."""
    for node in nodes(DOCUMENT):
        if node.get("type") == "number":
            assert node["format"] == "double", node
    counts = SCHEMAS["Counts"]["properties"].values()
    assert {("integer", "int64")} == {(count["type"], count["format"]) for count in counts}
    assert "format" not in SCHEMAS["Problem"]["properties"]["status"]


def test_fields_of_requests_have_no_default() -> None:
    """Some generators require a field with a default; descriptions name the default instead."""
    for name, schema in SCHEMAS.items():
        for field, described in schema.get("properties", {}).items():
            assert "default" not in described, (name, field)
    fields = SCHEMAS["ScheduleBackoff"]["properties"]
    assert fields["then"]["description"] == "What follows the last wait. Default: `dead`."
    assert fields["jitter"]["description"].endswith(" Default: 0.")


BACKOFFS = {"exponential": "ExponentialBackoff", "fixed": "FixedBackoff", "schedule": "ScheduleBackoff"}


def test_a_backoff_is_always_a_reference_to_its_schema() -> None:
    """In Go only a named union can be set."""
    assert SCHEMAS["Backoff"]["oneOf"] == [{"$ref": f"#/components/schemas/{name}"} for name in BACKOFFS.values()]
    reference = "#/components/schemas/Backoff"
    for name in ("PutJob", "ChangeJob", "Job", "StoredJob", "Delivery"):
        assert SCHEMAS[name]["properties"]["backoff"]["$ref"] == reference
    assert SCHEMAS["TopicSettings"]["properties"]["backoff"]["anyOf"] == [{"$ref": reference}, {"type": "null"}]


def test_the_kinds_of_a_backoff_differ_in_an_enum_and_without_a_discriminator() -> None:
    """In Rust a discriminator takes `kind` out of the object that needs it, and a const is any text."""
    assert "discriminator" not in SCHEMAS["Backoff"]
    for kind, name in BACKOFFS.items():
        assert SCHEMAS[name]["properties"]["kind"] == {"type": "string", "const": kind, "enum": [kind]}


def test_a_list_in_a_choice_has_a_name() -> None:
    """In Rust the variant of one without a name is named by its type, with colons."""
    choices = [choice for node in nodes(DOCUMENT) for choice in node.get("oneOf", ())]
    assert [] == [choice for choice in choices if choice.get("type") == "array"]
    assert SCHEMAS["WindowList"]["items"] == {"$ref": "#/components/schemas/Window"}


def test_enums_are_closed_in_requests_only() -> None:
    """Clients in Java, Python and Rust cannot read a response with a value that its enum does not list."""
    requested = requested_schemas()
    for name, schema in SCHEMAS.items():
        for node in nodes(schema):
            assert "x-extensible-enum" not in node or name not in requested, name
            assert "enum" not in node or name in requested or "const" in node, name
    assert SCHEMAS["JobState"]["x-extensible-enum"] == list(model.JobState)
    [states] = [one["schema"] for one in DESCRIBED["list_jobs"]["parameters"] if one["name"] == "state"]
    assert states["enum"] == list(model.JobState)


def test_no_type_has_the_name_of_a_class_that_java_imports() -> None:
    hidden = {"Boolean", "Double", "Enum", "Error", "Integer", "Iterable", "Long", "Number", "Object", "Process"}
    hidden |= {"Record", "Runtime", "String", "System", "Thread", "Void"}
    assert not hidden & SCHEMAS.keys()


def test_optional_fields_of_requests_are_null_only_where_that_says_something() -> None:
    """Elsewhere it is as to leave them out. In Rust such a field is an option in an option.

    For lists and maps it is offered all the same: without, clients in Java send empty ones, which may be refused.
    """
    nullable = {
        (name, field)
        for name in requested_schemas()
        for field, described in SCHEMAS[name].get("properties", {}).items()
        if {"type": "null"} in described.get("anyOf", ())
        and not {"array", "object"} & {kind.get("type") for kind in described["anyOf"]}
    }
    shown_as_stored = {"ScheduledJob", "TopicSettings"}
    says_something = {(name, field) for name in ("PutJob", "ChangeJob") for field in NULL_IS_NONE}
    says_something |= {("ChangeJob", "group"), ("ChangeJob", "priority")}
    assert {one for one in nullable if one[0] not in shown_as_stored} == says_something


def test_the_schema_lists_all_error_codes() -> None:
    assert SCHEMAS["ProblemCode"]["x-extensible-enum"] == sorted(problem_details.BY_CODE)
    for name in ("Problem", "PutResult", "CancelResult", "FinishResult"):
        assert SCHEMAS[name]["properties"]["code"]["$ref"] == "#/components/schemas/ProblemCode"


def test_internal_keys_are_removed() -> None:
    assert [] == [node for node in nodes(DOCUMENT) if "x-name" in node]


def test_every_reference_has_a_target() -> None:
    for node in nodes(DOCUMENT):
        if "$ref" in node:
            _, section, kind, name = node["$ref"].split("/")
            assert name in DOCUMENT[section][kind]


def test_the_error_schema_of_fastapi_is_removed() -> None:
    assert not {"HTTPValidationError", "ValidationError"} & DOCUMENT["components"]["schemas"].keys()


def test_optional_fields_of_responses_are_never_null() -> None:
    job = DOCUMENT["components"]["schemas"]["Job"]
    text = model_of(Job).model_fields["last_error"].description
    assert job["properties"]["last_error"] == {"type": "string", "description": text}
    assert {"max_attempts", "ttl"} <= set(job["required"])
