"""Keys: their format, its errors, topic patterns, and how the key of a token is found."""

from __future__ import annotations

import hashlib

import pytest

from deferd.api.auth.api_keys import KEYS_MAX, NO_BOUNDS, Bounds, KeyRing, KeysRefused, Limit, hash_of, parse_keys
from deferd.contract.scopes import Scope
from deferd.contract.topic_patterns import TopicPatterns

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
        ("orders.*", "orders.", True),
        ("orders.*", "orders", False),
        ("orders.*", "xorders.close", False),
        ("*.close", "orders.close", True),
        ("*.close", "orders.closed", False),
        ("a*b*c", "abc", True),
        ("a*b*c", "aXbYbZc", True),
        ("a*b*c", "acb", False),
        ("a*b", "a", False),
        ("aa*aa", "aaa", False),
        ("aa*aa", "aaaa", True),
        ("a**b", "axb", True),
        ("*ab*ab*", "abab", True),
        ("*ab*ab*", "aab", False),
        ("a.c", "abc", False),
        ("", "x", False),
    ],
)
def test_a_pattern_matches_whole_topics(pattern: str, topic: str, fits: bool) -> None:
    assert TopicPatterns([pattern]).match(topic) is fits


def test_one_of_several_patterns_is_enough() -> None:
    patterns = TopicPatterns(["a", "b.*"])
    assert [topic for topic in ("a", "b.c", "c") if patterns.match(topic)] == ["a", "b.c"]


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
