"""The limits of a key on the fast path of puts: what they refuse is left to the general path."""

from __future__ import annotations

import pytest

from deferd.api.auth.api_keys import NO_BOUNDS as NO_KEY_BOUNDS
from deferd.api.auth.api_keys import Bounds, Key
from deferd.api.auth.usage_limits import KeyUsage
from deferd.api.put_decoding import decode_batch, decode_put, encode_strings
from deferd.api.request_body import parse_object
from deferd.contract.errors import InvalidInput
from deferd.contract.model import PutJob
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.script_arguments import NO_BOUNDS, PutBounds, encode_put
from tests.unit.api.test_put_decoding import batch_of, without_chance

LIMITS = Bounds(max_retain=60, max_ttl=100, max_depth=3)


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ('"retain":60,"ttl":100', True),
        ('"retain":60.001', False),
        ('"retain":null', True),
        ('"ttl":100.001', False),
        ('"ttl":null', False),  # no bound
        ('"body":[[]]', True),
        ('"body":[[[]]]', False),
        ('"body":[[1],[2],{"a":"}"}]', True),  # more brackets than levels
        ('"body":"[[[[["', True),
    ],
)
def test_a_put_beyond_the_limits_of_its_key_is_left_to_the_general_path(fields: str, fits: bool) -> None:
    raw = b'{"topic":"t","id":"a",%b}' % fields.encode()
    value = parse_object(raw)
    usage = KeyUsage(Key("holder", b"", frozenset(), TopicPatterns(("*",)), bounds=LIMITS), None)
    refused = False
    try:
        usage.check_depth(value)
        usage.check_times({"job": PutJob.model_validate(value)})
    except InvalidInput:
        refused = True
    assert refused is not fits
    assert (decode_put(raw, NO_BOUNDS, LIMITS) is not None) is fits
    batch = b'{"jobs":[{"topic":"t"},%b]}' % raw
    in_batch = LIMITS if '"body"' not in fields else Bounds(max_depth=5)
    assert (decode_batch(batch, NO_BOUNDS, in_batch) is not None) is fits


def test_the_bounds_of_a_key_are_a_part_of_its_puts() -> None:
    bounds = PutBounds(max_jobs=7, dead_retain_ms=5, body_bytes=1000)
    for raw in (b'{"topic":"t","id":"a"}', b'{"topic":"t","id":"a","on_conflict":"append","tags":["x"],"retain":1}'):
        put = decode_put(raw, bounds, NO_KEY_BOUNDS)
        batch = decode_batch(batch_of(raw), bounds, NO_KEY_BOUNDS)
        assert put is not None
        assert batch is not None
        expected = without_chance(encode_put(PutJob.model_validate(parse_object(raw)), bounds))
        assert [without_chance(put), without_chance(batch.jobs[0])] == [expected] * 2


@pytest.mark.parametrize("bounds", [NO_BOUNDS, PutBounds(max_jobs=7), PutBounds(dead_retain_ms=5)])
def test_strings_are_encoded_as_their_json_would_be(bounds: PutBounds) -> None:
    batch = decode_batch(
        b'{"jobs":[{"topic":"t","body":"\xc3\xa9","delay":1.5},{"topic":"t","body":""}]}', bounds, LIMITS
    )
    assert batch is not None
    strings = encode_strings("t", [("é", 1500), ("", 0)], bounds)
    assert [without_chance(put, has_id=False) for put in strings] == [
        without_chance(put, has_id=False) for put in batch.jobs
    ]
