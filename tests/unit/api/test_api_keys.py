"""Keys: their format, its errors, topic patterns, and how the key of a token is found."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from starlette.routing import Route

from deferd.api.app import create_app
from deferd.api.auth.api_keys import (
    KEYS_MAX,
    NO_BOUNDS,
    Bounds,
    Key,
    KeyRing,
    KeysRefused,
    Limit,
    hash_of,
    no_topics,
    parse_keys,
)
from deferd.api.operation import OperationRoute
from deferd.contract.scopes import Scope
from deferd.contract.topic_patterns import TopicPatterns
from deferd.settings import Settings
from tests.openapi_document import openapi_document

TOKEN = "deferd_a-token"


def entry(**fields: str) -> str:
    """One key; the fields are TOML, an empty one is omitted."""
    values = {"name": '"shop"', "hash": f'"{hash_of(TOKEN)}"', "scopes": '["put"]', **fields}
    return "[[key]]\n" + "".join(f"{name} = {value}\n" for name, value in values.items() if value)


def refusal(text: str) -> str:
    with pytest.raises(KeysRefused) as caught:
        parse_keys(text)
    return str(caught.value)


def test_a_key_is_read_from_its_entry() -> None:
    [key] = parse_keys(entry(scopes='["put", "cancel"]', topics='["a.*"]', requests_per_second="2.5", burst="7"))
    assert key.name == "shop"
    assert key.digest == hashlib.sha256(TOKEN.encode()).digest()
    assert key.scopes == {Scope.PUT, Scope.CANCEL}
    assert key.topics.match("a.b")
    assert not key.topics.match("b")
    assert key.limit == Limit(2.5, 7)


def test_the_default_is_all_topics_and_no_limit() -> None:
    [key] = parse_keys(entry())
    assert key.topics.everything
    assert key.limit is None


def test_the_limits_of_a_key_are_read() -> None:
    bounds = {
        "max_jobs": 1,
        "max_jobs_total": 2,
        "max_waiting_pops": 0,
        "max_body_bytes": 3,
        "max_batch": 4,
        "max_depth": 5,
    }
    [key] = parse_keys(entry(**{name: str(value) for name, value in bounds.items()}))
    assert key.bounds == Bounds(**bounds)
    [key] = parse_keys(entry(max_depth="7"))
    assert key.bounds == Bounds(max_depth=7)
    [key] = parse_keys(entry())
    assert key.bounds == NO_BOUNDS


def test_admin_includes_every_scope() -> None:
    for scope in Scope:
        [key] = parse_keys(entry(scopes=f'["{scope}"]'))
        assert key.scopes == frozenset(Scope if scope is Scope.ADMIN else [scope])


def test_the_default_burst_is_one_second_of_requests() -> None:
    assert [key.limit for key in parse_keys(entry(requests_per_second="2.5"))] == [Limit(2.5, 3)]
    assert [key.limit for key in parse_keys(entry(requests_per_second="0.1"))] == [Limit(0.1, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has 0 keys and must have 1 to"),
        ("[[key]", "not valid TOML (at line 1, column"),
        ("x = 1", "[[key]] tables only"),
        (entry() + "[other]\n", "[[key]] tables only"),
        ("key = 5", "[[key]] tables only"),
        ("key = [5]", "[[key]] tables only"),
        (entry(name=""), "key 1: `name` must be 1 to 64"),
        (entry(name='"a b"'), "key 1: `name` must be 1 to 64"),
        (entry(name='"a\\nb"'), "key 1: `name` must be 1 to 64"),
        (entry(hash=""), "key 1 (shop): `hash` must be sha256:"),
        (entry(hash='"sha256:abc"'), "key 1 (shop): `hash` must be sha256:"),
        (entry(hash=f'"md5:{"a" * 64}"'), "key 1 (shop): `hash` must be sha256:"),
        (entry(scopes=""), "`scopes` must be a list of one or more of put, pop, cancel, read, admin"),
        (entry(scopes="[]"), "`scopes` must be"),
        (entry(scopes='["put", "write"]'), "`scopes` must be"),
        (entry(scopes="[1]"), "`scopes` must be"),
        (entry(topics="[]"), "`topics` must be a list of patterns"),
        (entry(topics='["a b"]'), "`topics` must be a list of patterns"),
        (entry(topics='"a"'), "`topics` must be a list of patterns"),
        (entry(topics=f'["{"a" * 129}"]'), "`topics` must be a list of patterns"),
        (entry(requests_per_second="0"), "`requests_per_second` must be a number from 0.001"),
        (entry(requests_per_second="nan"), "`requests_per_second` must be a number from 0.001"),
        (entry(requests_per_second="inf"), "`requests_per_second` must be a number from 0.001"),
        (entry(requests_per_second="true"), "`requests_per_second` must be a number from 0.001"),
        (entry(burst="5"), "`burst` needs `requests_per_second`"),
        (entry(requests_per_second="5", burst="0"), "`burst` must be a whole number from 1"),
        (entry(requests_per_second="5", burst="1.5"), "`burst` must be a whole number from 1"),
        (entry(max_jobs="0"), "`max_jobs` must be a whole number from 1 to 1000000000"),
        (entry(max_waiting_pops="-1"), "`max_waiting_pops` must be a whole number from 0"),
        (entry(max_body_bytes="1e3"), "`max_body_bytes` must be a whole number from 0"),
        (entry(max_batch="1001"), "`max_batch` must be a whole number from 1 to 1000"),
        (entry(max_depth="true"), "`max_depth` must be a whole number from 1 to 200"),
        (entry(scope='["put"]'), "an unknown field; the fields are name, hash, scopes, topics"),
        (entry() + entry(hash=f'"{hash_of("x")}"'), "two keys have the name 'shop'"),
        (entry() + entry(name='"other"'), "the keys 'shop' and 'other' have the same hash"),
    ],
)
def test_an_invalid_entry_is_refused_with_the_reason(text: str, message: str) -> None:
    assert message in refusal(text)


def test_the_number_of_keys_is_bounded() -> None:
    many = "".join(entry(name=f'"k{n}"', hash=f'"{hash_of(str(n))}"') for n in range(KEYS_MAX + 1))
    assert f"it has {KEYS_MAX + 1} keys and must have 1 to {KEYS_MAX}" in refusal(many)


@pytest.mark.parametrize(
    "text",
    [
        entry(hash=f'"{TOKEN}"'),
        entry(hash=TOKEN),
        entry(name=f'" {TOKEN}"'),
        entry(topics=f'["{TOKEN} "]'),
        entry(**{TOKEN: "1"}),
        entry() + f"{TOKEN} = 1\n{TOKEN} = 1\n",
        f"[{TOKEN}]\n[{TOKEN}]\n",
        TOKEN,
    ],
)
def test_a_token_pasted_into_the_keys_is_not_shown(text: str) -> None:
    assert TOKEN not in refusal(text)


def test_a_key_shows_nothing_of_its_token() -> None:
    [key] = parse_keys(entry())
    shown = repr(key) + repr(KeyRing([key]))
    assert "shop" in shown
    assert "digest" not in shown
    assert key.digest.hex() not in shown


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [
        ("orders", "orders", True),
        ("orders", "orders.x", False),
        ("orders.*", "orders.close", True),
        ("orders.*", "orders", False),
        ("*.close", "orders.closed", False),
        ("a*b*c", "aXbYbZc", True),
        ("a*b*c", "acb", False),
        ("aa*aa", "aaa", False),
        ("a*b*b", "ab", False),
        ("*ab*ab*", "aab", False),
        ("a.c", "abc", False),
        ("", "x", False),
    ],
)
def test_a_pattern_matches_whole_topics(pattern: str, topic: str, fits: bool) -> None:
    assert TopicPatterns([pattern]).match(topic) is fits


@pytest.mark.parametrize(("patterns", "everything"), [(["*"], True), (["a", "**"], True), (["a*"], False), ([], False)])
def test_a_star_alone_matches_everything(patterns: list[str], everything: bool) -> None:
    assert TopicPatterns(patterns).everything is everything


@pytest.mark.timeout(60)  # with backtracking it would take years
def test_a_pattern_of_many_stars_is_fast() -> None:
    assert not TopicPatterns(["*a" * 60 + "*b"]).match("a" * 128)


def test_a_token_finds_its_key_each_time() -> None:
    ring = KeyRing(parse_keys("".join(entry(name=f'"k{n}"', hash=f'"{hash_of(f"t{n}")}"') for n in range(5))))
    for _ in range(2):
        assert [ring.find(f"t{n}".encode()) for n in range(5)] == list(ring.keys)


@pytest.mark.parametrize("token", [b"", b"t", TOKEN.encode() + b" ", TOKEN.upper().encode(), b"x" * 10_000, b"\xff"])
def test_another_token_finds_none(token: bytes) -> None:
    ring = KeyRing(parse_keys(entry()))
    assert ring.find(token) is None
    assert ring.find(TOKEN.encode()) is not None
    assert ring.find(token) is None


def test_the_hash_is_not_accepted_as_a_token() -> None:
    [key] = parse_keys(entry())
    ring = KeyRing([key])
    assert ring.find(hash_of(TOKEN).encode()) is None
    assert ring.find(key.digest) is None
    assert ring.find(key.digest.hex().encode()) is None


def test_unknown_tokens_are_not_cached() -> None:
    ring = KeyRing(parse_keys(entry()))
    ring.find(TOKEN.encode())
    for n in range(100):
        ring.find(b"%d" % n)
    assert len(ring._verified) == 1


ROUTES = create_app(Settings(test_clock=True), "").routes
OPERATIONS = {
    operation.permission.operation: operation for operation in ROUTES if isinstance(operation, OperationRoute)
}
FORGET_PAST = "DELETE /testing/past"
"""It empties the list of changes, for tests."""
NOT_IN_THE_DOCUMENT = dict.fromkeys(("GET /testing/clock", "POST /testing/clock", FORGET_PAST), "admin")


def scopes_of_the_document() -> dict[str, str | None]:
    """By method and path: what the OpenAPI document in the repository says, which people read when it changes."""
    paths = openapi_document()["paths"]
    securities = {
        f"{method.upper()} {path}": operation["security"]
        for path, operations in paths.items()
        for method, operation in operations.items()
    }
    return {name: security[0]["key"][0] if security else None for name, security in securities.items()}


def key(*patterns: str) -> Key:
    return Key("k", b"", frozenset(Scope), TopicPatterns(patterns))


def test_every_operation_requires_the_scope_that_the_document_names() -> None:
    wanted = scopes_of_the_document() | NOT_IN_THE_DOCUMENT
    assert {name: operation.permission.scope for name, operation in OPERATIONS.items()} == wanted
    assert {name for name, scope in wanted.items() if scope is None} == {"GET /healthz", "GET /readyz"}


def test_what_is_audited_is_in_the_list_of_changes_too() -> None:
    audited = [operation.permission for operation in OPERATIONS.values() if operation.permission.is_audited]
    assert [permission.operation for permission in audited if permission.recorded is None] == [FORGET_PAST]


def test_every_change_but_what_consumers_do_is_in_the_list_of_changes() -> None:
    changes = [operation.permission for operation in OPERATIONS.values() if operation.methods != {"GET"}]
    missing = {it.operation for it in changes if it.recorded is None and it.scope is not Scope.POP}
    assert missing == {"POST /jobs/batch", "POST /schedules/preview", "PUT /relays/{name}", FORGET_PAST}


def test_changes_of_single_jobs_are_in_the_list_only_if_people_make_them() -> None:
    recorded = {name: operation.permission.recorded for name, operation in OPERATIONS.items()}
    ways = {name: it.via for name, it in recorded.items() if it is not None}
    assert ways["POST /jobs"] == {"console"}
    by_people = frozenset(("console", "cli"))
    assert ways["POST /topics/{topic}/cancel"] == by_people
    assert {via for name, via in ways.items() if "/jobs/{topic}/{id}" in name} == {by_people}


def test_every_other_route_is_a_page() -> None:
    """The gate requires scope read for each of them."""
    pages = {route.path for route in ROUTES if isinstance(route, Route) and not isinstance(route, OperationRoute)}
    assert {path.partition("/docs")[0] or "/docs" for path in pages} == {"/openapi.json", "/docs"}


def test_a_path_with_a_topic_requires_a_key_for_it() -> None:
    for name, operation in OPERATIONS.items():
        if "{topic}" in name:
            assert operation.permission.denied_topic(key("a.*"), {"topic": "b"}) == "b", name
            assert operation.permission.denied_topic(key("a.*"), {"topic": "a.b"}) is None, name


def schemas_in(value: Any, known: set[str]) -> set[str]:
    """The names of all schemas of the document that a part of it refers to."""
    if isinstance(value, dict):
        name = str(value.get("$ref", "")).rpartition("/")[2]
        if name and name not in known:
            known.add(name)
            schemas_in(openapi_document()["components"]["schemas"][name], known)
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        schemas_in(part, known)
    return known


def test_whoever_sets_what_an_end_puts_needs_a_key_for_its_topic() -> None:
    may_set = {
        f"{method.upper()} {path}"
        for path, operations in openapi_document()["paths"].items()
        for method, operation in operations.items()
        if "OnEnd" in schemas_in(operation.get("requestBody"), set())
    }
    checked = {name for name, operation in OPERATIONS.items() if operation.permission.ends_into is not no_topics}
    assert may_set - checked == {"POST /schedules/preview"}
    assert len(checked) == 6
