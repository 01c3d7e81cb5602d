"""The fast paths of releases, touches and burials give the store what the general path does, or leave it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from deferd.api import delivery_decoding
from deferd.api.auth.api_keys import NO_BOUNDS, Bounds
from deferd.api.delivery_decoding import decode_bury, decode_release, decode_touch
from deferd.api.request_body import parse_object
from deferd.contract import limits
from deferd.contract.errors import InvalidInput
from deferd.contract.model import BuryJob, FinishJob, ReleaseJob, TouchJob
from deferd.engine.record import Receipt
from deferd.engine.script_arguments import EncodedRelease, encode_bury, encode_release, encode_touch
from deferd.engine.stored_fields import to_ms
from tests.drawn_input import drawn
from tests.unit.api.test_put_decoding import json_values

JITTER_BYTES = 8


def released(raw: bytes) -> Any:
    release = ReleaseJob.model_validate(parse_object(raw))
    delay_ms = None if release.delay is None else to_ms(release.delay)
    receipt = Receipt.of(release.receipt)
    return encode_release("a", receipt, delay_ms=delay_ms, error=release.error, counts=release.count)


def touched(raw: bytes) -> Any:
    touch = TouchJob.model_validate(parse_object(raw))
    return encode_touch("a", Receipt.of(touch.receipt), None if touch.ttr is None else to_ms(touch.ttr))


def buried(raw: bytes) -> Any:
    bury = BuryJob.model_validate(parse_object(raw))
    return encode_bury("a", Receipt.of(bury.receipt), bury.error)


VERBS: dict[str, tuple[Callable[[bytes, Bounds, str], Any], Callable[[bytes], Any]]] = {
    "release": (decode_release, released),
    "touch": (decode_touch, touched),
    "bury": (decode_bury, buried),
}
"""For each verb the fast and the general path."""


def both_ways(verb: str, raw: bytes) -> tuple[Any, Any]:
    """What is sent on the fast path and on the general one, each None if it is refused, without the jitter."""
    fast, general = VERBS[verb]
    try:
        expected = general(raw)
    except (InvalidInput, ValidationError):
        expected = None
    return _sent(fast(raw, NO_BOUNDS, "a")), _sent(expected)


def _sent(call: Any) -> Any:
    if not isinstance(call, EncodedRelease):
        return call
    return call.id, call.start[:-JITTER_BYTES], call.error, call.counts, call.placed


COMMON = [
    b"{}",
    b'{"receipt":null}',
    b'{"receipt":"0123456789ab.1"}',
    b'{"receipt":"x","receipt":"0123456789ab.2"}',
    b'{"receipt":""}',
    b'{"receipt":"%b"}' % (b"x" * 64),
]
ERRORS = [b'{"error":null}', b'{"error":""}', rb'{"error":"\u00e9\n\u0000"}', b'{"error":"%b"}' % (b"x" * 10_000)]
USUAL = {
    "release": [
        *COMMON,
        *ERRORS,
        b'{"delay":0}',
        b'{"delay":-0.0,"count":true}',
        b'{"delay":1.0004}',
        b'{"delay":315576000}',
        b'{"delay":null}',
        b'{"count":false,"delay":0.1}',
        b'{"delay":5,"receipt":"0123456789ab.1","count":false,"error":"502"}',
    ],
    "touch": [*COMMON, b'{"ttr":null}', b'{"ttr":1}', b'{"ttr":30.5}', b'{"ttr":86400}'],
    "bury": [*COMMON, *ERRORS],
}
REFUSED = {
    "release": [
        b'{"delay":-1}',
        b'{"delay":315576001}',
        b'{"delay":1e999}',
        b'{"delay":true}',
        b'{"delay":{}}',
        b'{"count":false}',
        b'{"count":false,"delay":null}',
        b'{"delay":0.0999,"count":false}',
        b'{"count":null}',
        b'{"count":0}',
        b'{"count":"true"}',
        b'{"ttr":5}',
    ],
    "touch": [b'{"ttr":0}', b'{"ttr":86401}', b'{"ttr":[]}', b'{"delay":5}'],
    "bury": [b'{"delay":5}'],
}
for refused in REFUSED.values():
    refused += [b"", b"null", b"[]", b"{", b'{"receipt":1}', b'{"receipt":"%b"}' % (b"x" * 65), b'{"receipt":"\xff"}']
for verb_with_error in ("release", "bury"):
    REFUSED[verb_with_error] += [b'{"error":1}', b'{"error":"%b"}' % (b"x" * 10_001), rb'{"error":"\ud800"}']


@pytest.mark.parametrize(("verb", "raw"), [(verb, raw) for verb, some in USUAL.items() for raw in some])
def test_a_usual_call_is_sent_as_on_the_general_path(verb: str, raw: bytes) -> None:
    fast, general = both_ways(verb, raw)
    assert fast is not None
    assert fast == general


@pytest.mark.parametrize(("verb", "raw"), [(verb, raw) for verb, some in REFUSED.items() for raw in some])
def test_what_is_refused_is_left_to_the_general_path(verb: str, raw: bytes) -> None:
    assert both_ways(verb, raw) == (None, None)


def test_a_number_in_a_string_is_left_to_the_general_path() -> None:
    for verb, raw in (("release", b'{"delay":"5"}'), ("touch", b'{"ttr":"5"}')):
        assert VERBS[verb][0](raw, NO_BOUNDS, "a") is None


def test_the_fast_paths_know_each_field_but_puts() -> None:
    for kind, model in (
        (delivery_decoding._Release, ReleaseJob),
        (delivery_decoding._Touch, TouchJob),
        (delivery_decoding._Bury, BuryJob),
        (delivery_decoding._Finish, FinishJob),
    ):
        names = {field.name for field in msgspec.structs.fields(kind)}
        assert names == model.model_fields.keys() - {"put"}


def test_the_jitter_of_each_release_is_another() -> None:
    releases = [decode_release(b"{}", NO_BOUNDS, "a") for _ in range(10)]
    assert len({release.start for release in releases if release is not None}) == 10


RECEIPTS = st.none() | st.text(max_size=20) | st.from_regex(r"[0-9a-f]{11,13}\.[0-9]{1,11}", fullmatch=True)
SECONDS = st.none() | st.floats(-1, limits.DELAY_MAX_S * 1.1) | st.integers(-1, 90_000) | st.floats(0, 1)


@drawn(1000)
@given(
    verb=st.sampled_from(sorted(VERBS)),
    body=st.fixed_dictionaries(
        {},
        optional={
            "receipt": RECEIPTS,
            "count": st.booleans() | st.none(),
            "delay": SECONDS,
            "ttr": SECONDS,
            "error": st.none() | st.text(max_size=50),
            "other": json_values,
        },
    ),
    keeps=st.sets(st.sampled_from(["receipt", "count", "delay", "ttr", "error", "other"])),
)
def test_every_call_is_sent_as_on_the_general_path(verb: str, body: dict[str, Any], keeps: set[str]) -> None:
    raw = json.dumps({name: value for name, value in body.items() if name in keeps}).encode()
    fast, general = both_ways(verb, raw)
    assert fast == general
