"""Bodies on their fast paths are decoded as the models do it, or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from deferd.api import body_decoding
from deferd.api.auth.api_keys import NO_BOUNDS as NO_KEY_BOUNDS
from deferd.api.auth.api_keys import Bounds, Key
from deferd.api.auth.usage_limits import KeyUsage
from deferd.api.body_decoding import (
    EncodedBatch,
    decode_batch,
    decode_bury,
    decode_finishes,
    decode_put,
    decode_release,
    decode_touch,
    encode_strings,
)
from deferd.api.request_body import parse_object
from deferd.contract import limits
from deferd.contract.errors import InvalidInput
from deferd.contract.model import BuryJob, FinishBatch, FinishJob, PutBatch, PutJob, ReleaseJob, TouchJob
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.record import Receipt, to_ms
from deferd.engine.script_arguments import (
    NO_BOUNDS,
    EncodedFinish,
    EncodedPut,
    EncodedRelease,
    PutBounds,
    encode_bury,
    encode_finish,
    encode_put,
    encode_release,
    encode_touch,
    receipt_bytes,
)
from tests.drawn_input import damaged, drawn, json_values
from tests.random_draws import by_number, either, json_value, lists, one_of, some_of, text_up_to

NONCE = slice(10, 18)
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
USUAL = [
    b'{"topic":"t"}',
    b'{"topic":"t","id":null,"body":null,"delay":null}',
    b'{"topic":"orders.close","id":"order-1042","body":{"order":1042},"delay":86400}',
    b'{"topic":"t","id":"a","on_conflict":"keep","body":[1,2.50,1e5,-0,-0.0,1E400e,"x"]}'.replace(b"1E400e,", b""),
    b'{"topic":"t","id":"a","run_at":"2020-01-31T09:30:00.123456Z"}',
    b'{"topic":"t","id":"a","run_at":"2016-12-31T18:59:60-05:00"}',
    b'{"topic":"t","id":"a","ttr":0.1,"max_attempts":null,"ttl":null,"retain":0}',
    b'{"topic":"t","id":"a","ttr":86400,"max_attempts":1000000,"ttl":0.001,"retain":315576000}',
    b'{"topic":"t","id":"a","durability":"replicated:9","traceparent":"%b"}' % TRACEPARENT.encode(),
    b' { "topic" : "t" , "id" : "a" , "body" : { "a" : 1 , "b" : [ ] , "a" : 2 } }\n',
    '{"topic":"t","id":"a","body":"\\ud83d\\ude00\\u00e9é\\n\\/"}'.encode(),
    b'{"topic":"t","id":"a","body":123456789012345678901234567890}',
    b'{"topic":"t","id":"a","body":[1.7976931348623157e308,5e-324,0.1,1e22,1e23,9007199254740993.0,1e-7]}',
    b'{"topic":"t","topic":"u","id":"a","delay":3,"delay":0.0005}',
    b'{"topic":"t","id":"a","body":%b1%b}' % (b"[" * 190, b"]" * 190),
    b'{"topic":"t","id":"a","body":[1e-400,-1e-400,0e999999999999,1e-99999999999999999999,9007199254740993e0]}',
    b'{"topic":"t","id":"a","body":%b}' % (b"1" * 4300),
    b'{"topic":"t","id":"a","delay":-1e-400}',
    b'{"topic":"t","id":"a","delay":0.00049999,"ttr":0.09999999999999999999,"ttl":0.00099999999999999999999}',
    b'{"topic":"t","id":"a","run_at":"0001-01-01T00:00:00+23:59"}',
    b'{"topic":"t","id":"a","run_at":"1969-12-31T23:59:59.9Z"}',
    rb'{"\u0074opic":"t","id":"a","body":{"\u0000":"\u0000","":1,"":2}}',
    b'{"topic":"t","id":"a","id":null,"max_attempts":3,"max_attempts":null}',
    b'{"topic":"t","id":"a","window":{"zone":"Europe/Berlin","days":["mon"],"from":"09:00","to":"24:00"}}',
    b'{"topic":"t","id":"a","window":[{"from":"09:00","except":["2026-12-24"]}, {"to" : "08:00"}],"spread":0.0005}',
    b'{"topic":"t","id":"a","window":"office","ttr":1,"spread":86400,"traceparent":"%b"}' % TRACEPARENT.encode(),
    b'{"topic":"t","id":"a","window":null,"spread":null}',
    b'{"topic":"t","id":"a","spread":null}',
    b'{"topic":"t","id":"a","window":{"from":"09:00","from":"10:00"}}',
    b'{"topic":"t","id":"a","window":{},"window":{"zone":"UTC","from":"00:00","days":null}}',
    b'{"topic":"t","backoff":{"kind":"fixed"}}',
    b'{"topic":"t","tags":["x"]}',
    b'{"topic":"t","tags":[]}',
    b'{"topic":"t","headers":{"x":"y"}}',
    b'{"topic":"t","headers":null}',
    b'{"topic":"t","group":"customer-7"}',
    b'{"topic":"t","group":"%b","priority":9,"tags":["x"],"headers":{"x":"y"}}' % (b"g" * 128),
    b'{"topic":"t","id":"a","on_conflict":"append","max_items":2,"max_wait":60,"priority":1,"unique_for":1}',
    b'{"topic":"t","group":null,"priority":0}',
    b'{"topic":"t","batch":"b"}',
    b'{"topic":"t","batch":"%b","tags":["x","batch:b"],"on_end":{"topic":"t"},"ttr":1}' % (b"b" * 58),
    b'{"topic":"t","batch":null,"tags":["x"]}',
    b'{"topic":"t","group":null,"priority":null,"ttr":1}',
    b'{"topic":"t","id":"a","conflict_with":"any"}',
    b'{"topic":"t","id":"a","conflict_with":"live"}',
    b'{"topic":"t","id":"a","unique_for":60}',
    b'{"topic":"t","id":"a","on_conflict":"append"}',
    b'{"topic":"t","id":"a","on_conflict":"append","max_items":5}',
    b'{"topic":"t","id":"a","on_conflict":"keep","if_reserved":"after"}',
    b'{"topic":"t","id":"a","if_reserved":"refuse"}',
    b'{"topic":"t","id":"a","unique_for":null}',
    b'{"topic":"t","id":"a","on_conflict":"replace","max_wait":60}',
    b'{"topic":"t","backoff":{"kind":"exponential","base":1.00049,"jitter":0.1}}',
    b'{"topic":"t","backoff":{"kind":"schedule","seconds":[1,2.5,60],"then":"repeat_last"},"retain":5,"ttr":30}',
    b'{"topic":"t","backoff":null,"ttl":null}',
    b'{"topic":"t","id":"a","tags":["customer:17","trial"],"headers":{"tenant":"acme","":"x"}}'.replace(
        b',"":"x"', b""
    ),
    '{"topic":"t","headers":{"Tenant é":"","b":"ü😀"},"tags":null}'.encode(),
    b'{"topic":"t","headers":{"a":"%b"}}' % (b"x" * 4095),
    b'{"topic":"t","tags":["%b"]}' % b'","'.join(b"t%d" % number for number in range(8)),
    b'{"topic":"t","id":"a","on_conflict":"append","max_items":10000,"max_wait":60,"delay":60,"tags":["x"],"ttr":1}',
    b'{"topic":"t","id":"a","on_conflict":"replace","if_reserved":"after","conflict_with":"live","unique_for":0.001}',
    b'{"topic":"t","on_conflict":"replace","conflict_with":"live","max_wait":null,"max_items":null}',
    b'{"topic":"t","id":"a","on_conflict":"append","body":{"n":1},"traceparent":"%b"}' % TRACEPARENT.encode(),
]
LEFT_TO_THE_GENERAL_PATH = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b'{"topic":"t","body":1e999}',
    b'{"topic":"t","body":[-1e999]}',
    b'{"topic":"t","body":%b.5}' % (b"9" * 400),
    b'{"topic":"t","body":NaN}',
    b'{"topic":"t","body":-Infinity}',
    b'{"topic":"t","body":"\xff"}',
    b'{"topic":"t","body":"\xed\xa0\x80"}',
    b'{"topic":"t","body":{"\xff":1}}',
    rb'{"topic":"t","body":"\ud800"}',
    rb'{"topic":"t","body":"\udc00\ud800"}',
    b'{"topic":"t","body":"\x01"}',
    b'{"topic":"t","body":01}',
    b'{"topic":"t","body":1}x',
    b'\xef\xbb\xbf{"topic":"t"}',
    b'{"topic":"t","body":%b1%b}' % (b"[" * 191, b"]" * 191),
    b'{"topic":"t","body":%b1%b}' % (b'[{"a":' * 100_000, b"}]" * 100_000),
    b'{"topic":"t","body":%b}' % (b"9" * 5000),
    b'{"topic":"t","delay":true}',
    b'{"topic":"t","delay":"1"}',
    b'{"topic":"t","delay":-0.001}',
    b'{"topic":"t","delay":315576000.001}',
    b'{"topic":"t","delay":1e400}',
    b'{"topic":"t","max_attempts":1.0}',
    b'{"topic":"t","max_attempts":0}',
    b'{"topic":"t","max_attempts":-0}',
    b'{"topic":"t","max_attempts":1e2}',
    b'{"topic":"t","max_attempts":99999999999999999999}',
    b'{"topic":"t","body":%b}' % (b"1" * 4301),
    b'{"topic":"t","body":1.7976931348623159e308}',
    b'{"topic":"t"}\x00',
    b'\x0b{"topic":"t"}',
    rb'{"topic":"t","id":"a\u0000"}',
    b'{"topic":"t","run_at":"2020-01-31T24:00:00Z"}',
    b'{"topic":"t","max_attempts":true}',
    b'{"topic":"t","ttr":0.09}',
    b'{"topic":"t","ttl":0}',
    b'{"topic":"t","retain":-1}',
    b'{"topic":"t","on_conflict":null}',
    b'{"topic":"t","on_conflict":"Keep"}',
    b'{"topic":"t","delay":1,"run_at":"2020-01-31T09:30:00Z"}',
    b'{"topic":"t","run_at":"2020-01-31T09:30:00"}',
    b'{"topic":"t","run_at":"9999-01-31T09:30:00Z"}',
    b'{"topic":"t","run_at":1}',
    b'{"topic":"t","id":""}',
    b'{"topic":"t","id":"-a"}',
    rb'{"topic":"t","id":"a\nb"}',
    rb'{"topic":"t","id":"a\n"}',
    b'{"topic":"t","id":"%b"}' % (b"a" * 256),
    rb'{"topic":"t\n"}',
    b'{"topic":""}',
    b'{"topic":null}',
    b'{"topic":"%b"}' % (b"a" * 129),
    b'{"topic":"t","durability":"replicated:10"}',
    b'{"topic":"t","durability":""}',
    b'{"topic":"t","traceparent":"%b-"}' % TRACEPARENT.encode(),
    b'{"topic":"t","traceparent":""}',
    b'{"topic":"t","backoff":{"kind":"none"}}',
    b'{"topic":"t","backoff":{"kind":"fixed","seconds":-1}}',
    b'{"topic":"t","backoff":{"kind":"fixed","seconds":1e999}}',
    b'{"topic":"t","backoff":"fixed:10"}',
    b'{"topic":"t","tags":["x","x"]}',
    b'{"topic":"t","tags":["-"]}',
    rb'{"topic":"t","tags":["x\n"]}',
    b'{"topic":"t","tags":"x"}',
    b'{"topic":"t","tags":[null]}',
    b'{"topic":"t","tags":["%b"]}' % (b"x" * 65),
    b'{"topic":"t","tags":["%b"]}' % b'","'.join(b"t%d" % number for number in range(9)),
    b'{"topic":"t","headers":{"":"y"}}',
    rb'{"topic":"t","headers":{"x\n":"y"}}',
    rb'{"topic":"t","headers":{"x":"\u0085"}}',
    b'{"topic":"t","headers":{"x":1}}',
    b'{"topic":"t","headers":{"a":"%b"}}' % (b"x" * 4096),
    '{"topic":"t","headers":{"a":"%s"}}'.replace("%s", "é" * 2048).encode(),
    b'{"topic":"t","headers":{%b}}' % b",".join(b'"h%d":""' % number for number in range(17)),
    b'{"topic":"t","group":""}',
    b'{"topic":"t","batch":""}',
    b'{"topic":"t","batch":"%b"}' % (b"b" * 59),
    rb'{"topic":"t","batch":"b\n"}',
    b'{"topic":"t","id":"a","batch":"b","on_conflict":"append"}',
    b'{"topic":"t","id":"a","batch":"b","on_conflict":"keep","if_reserved":"after"}',
    b'{"topic":"t","group":"a b"}',
    rb'{"topic":"t","group":"a\n"}',
    b'{"topic":"t","group":"%b"}' % (b"g" * 129),
    b'{"topic":"t","priority":10}',
    b'{"topic":"t","priority":-1}',
    b'{"topic":"t","priority":1.0}',
    b'{"topic":"t","priority":"1"}',
    b'{"topic":"t","id":"a","conflict_with":null}',
    b'{"topic":"t","id":"a","conflict_with":"dead"}',
    b'{"topic":"t","unique_for":60}',
    b'{"topic":"t","id":"a","unique_for":0}',
    b'{"topic":"t","on_conflict":"append"}',
    b'{"topic":"t","id":null,"on_conflict":"append"}',
    b'{"topic":"t","id":"a","max_items":5}',
    b'{"topic":"t","id":"a","on_conflict":"append","max_items":0}',
    b'{"topic":"t","id":"a","on_conflict":"append","max_items":2.0}',
    b'{"topic":"t","id":"a","if_reserved":"after"}',
    b'{"topic":"t","on_conflict":"keep","if_reserved":"after"}',
    b'{"topic":"t","id":"a","on_conflict":"keep","max_wait":60}',
    b'{"topic":"t","on_conflict":"replace","max_wait":60}',
    b'{"topic":"t","id":"a","on_conflict":"replace","max_wait":60,"delay":60.001}',
    b'{"topic":"t","unknown":1}',
    b'{"topic":"t","window":{"zone":"Europe/Atlantis"}}',
    b'{"topic":"t","window":{"from":"09:00","to":"09:00"}}',
    b'{"topic":"t","window":{"from":"9:00"}}',
    b'{"topic":"t","window":{"except":[0]}}',
    b'{"topic":"t","window":[]}',
    b'{"topic":"t","window":"a b"}',
    b'{"topic":"t","window":1}',
    b'{"topic":"t","window":{"zone":"\\ud800"}}',
    b'{"topic":"t","window":{"zone":1e999}}',
    b'{"topic":"t","spread":-1}',
    b'{"topic":"t","spread":86400.1}',
    b'{"topic":"t","spread":"1"}',
    b'{"topic":"t","window":"\xff","window":null}',
    b'{"topic":"t","backoff":"\xed\xa0\x80","backoff":null}',
    b'{"topic":"t","backoff":{"\xff":1},"backoff":{"kind":"fixed"}}',
]


def general(raw: bytes) -> list[EncodedPut] | None:
    """What the general path stores for a batch; None when it refuses."""
    try:
        return [encode_put(job) for job in PutBatch.model_validate(parse_object(raw)).jobs]
    except (InvalidInput, ValidationError):
        return None


def without_chance(put: EncodedPut, *, has_id: bool = True) -> tuple[Any, ...]:
    """A put without its nonce, and without its id when that is random."""
    job = bytearray(put.job)
    job[NONCE] = bytes(8)
    shown_id = put.id if has_id else re.fullmatch("[0-9a-f]{32}", put.id) is not None
    return put.topic, shown_id, put.durability, bytes(job), put.to_place


def compare(raw: bytes) -> bool:
    """Whether a batch takes the fast path; then it must give what the general path gives."""
    fast = decode_batch(raw, NO_BOUNDS, NO_KEY_BOUNDS)
    if fast is None:
        return False
    slow = general(raw)
    assert slow is not None, f"the general path refuses {raw!r}"
    has_id = [job.get("id") is not None for job in parse_object(raw)["jobs"]]
    assert [without_chance(put, has_id=has) for put, has in zip(fast.jobs, has_id, strict=True)] == [
        without_chance(put, has_id=has) for put, has in zip(slow, has_id, strict=True)
    ], raw
    return True


def batch_of(*puts: bytes) -> bytes:
    return b'{"jobs":[%b]}' % b",".join(puts)


@pytest.mark.parametrize("raw", USUAL)
def test_a_usual_put_takes_the_fast_path_and_is_stored_as_on_the_general_one(raw: bytes) -> None:
    assert compare(batch_of(raw))
    put = decode_put(raw, NO_BOUNDS, NO_KEY_BOUNDS)
    assert put is not None
    has_id = parse_object(raw).get("id") is not None
    expected = encode_put(PutJob.model_validate(parse_object(raw)))
    assert without_chance(expected, has_id=has_id) == without_chance(put, has_id=has_id)


@pytest.mark.parametrize("raw", LEFT_TO_THE_GENERAL_PATH, ids=lambda raw: repr(raw[:50]))
def test_an_unusual_put_is_left_to_the_general_path(raw: bytes) -> None:
    assert decode_put(raw, NO_BOUNDS, NO_KEY_BOUNDS) is None
    assert decode_batch(batch_of(raw), NO_BOUNDS, NO_KEY_BOUNDS) is None
    assert decode_batch(batch_of(USUAL[0], raw), NO_BOUNDS, NO_KEY_BOUNDS) is None


@pytest.mark.parametrize("count", [0, 1, limits.BATCH_MAX, limits.BATCH_MAX + 1])
def test_a_batch_has_1_to_1000_puts(count: int) -> None:
    raw = batch_of(*[b'{"topic":"t"}'] * count)
    assert compare(raw) is (1 <= count <= limits.BATCH_MAX)


def test_a_large_batch_takes_the_fast_path_too() -> None:
    puts = [b'{"topic":"t","id":"a%d","body":"%b","delay":%d}' % (number, b"x" * 1000, number) for number in range(300)]
    assert compare(batch_of(*puts))


def test_jobs_of_a_batch_have_their_own_options_in_their_own_order() -> None:
    options = [
        b'"headers":{"a":"1","b":"2"}',
        b'"headers":{"b":"2","a":"1"}',
        b'"window":{"from":"09:00"},"tags":["x","y"]',
        b'"window":{"from":"10:00"},"tags":["y","x"]',
        b'"backoff":{"kind":"fixed","seconds":1}',
        b'"backoff":{"kind":"fixed","seconds":2}',
        b'"on_conflict":"append"',
        b'"delay":1',
    ]
    assert compare(batch_of(*[b'{"topic":"t","id":"a%d",%b}' % job for job in enumerate(options + options)]))
    without_id = b'{"topic":"t","on_conflict":"append"}'
    assert (
        decode_batch(batch_of(b'{"topic":"t","id":"a","on_conflict":"append"}', without_id), NO_BOUNDS, NO_KEY_BOUNDS)
        is None
    )


def test_one_wrong_id_between_others_is_found() -> None:
    ids = [rb"a", rb"b\nc", rb"d"]
    assert (
        decode_batch(batch_of(*[b'{"topic":"t","id":"%b"}' % job_id for job_id in ids]), NO_BOUNDS, NO_KEY_BOUNDS)
        is None
    )


def test_the_trace_context_of_the_header_is_taken_only_without_one_in_the_put() -> None:
    other = "00-" + "1" * 32 + "-" + "2" * 16 + "-00"
    named = b'{"topic":"t","id":"a","traceparent":"%b"}' % TRACEPARENT.encode()
    for raw, expected in ((b'{"topic":"t","id":"a"}', other), (named, TRACEPARENT)):
        put = decode_put(raw, NO_BOUNDS, NO_KEY_BOUNDS, other)
        assert put is not None
        assert without_chance(put) == without_chance(encode_put(PutJob(topic="t", id="a", traceparent=expected)))
        assert decode_put(raw, NO_BOUNDS, NO_KEY_BOUNDS) is not None


def test_every_nonce_is_another_one() -> None:
    batch = decode_batch(batch_of(*USUAL), NO_BOUNDS, NO_KEY_BOUNDS)
    assert isinstance(batch, EncodedBatch)
    assert len({put.job[NONCE] for put in batch.jobs}) == len(USUAL)


def test_the_fast_path_knows_each_field() -> None:
    assert set(body_decoding._Put.__struct_fields__) == PutJob.model_fields.keys()


# Fuzz

NUMBERS = (
    "0 -0 1 10 1.0 1.50 1e0 1E+2 1e-7 -0.0 1e23 1e308 1e309 01 1. 0.30000000000000004 123456789.123456789123 2e-324"
    " 9007199254740993 9223372036854775808 18446744073709551616 -9223372036854775809 111111111111111111111111111111"
)
VALUES = {
    "topic": ['"t"', '"a.b:c_d-e"', '""', "null", "1", '"-"', '"t\\n"', '"\\u0074"', '"é"'],
    "id": ['"a"', '"A9._:-"', "null", '""', '"-"', '"a\\nb"', '"a b"', "5"],
    "delay": ["0", "1", "0.0005", "1.5", "null", "-1", "true", '"1"', "315576000", "315576001", "-0", "-0.0", "1e2"],
    "run_at": ['"2020-01-31T09:30:00Z"', '"2020-01-31t09:30:00.123456789+01:00"', "null", '"2020"', "5",
               '"2016-12-31T23:59:60Z"', '"9000-01-01T00:00:00Z"', '"2020-02-30T00:00:00Z"'],
    "on_conflict": ['"reject"', '"keep"', '"replace"', '"append"', "null", '"no"', "1"],
    "traceparent": [f'"{TRACEPARENT}"', "null", '"x"', f'"{TRACEPARENT}\\n"'],
    "durability": ['"memory"', '"fsync"', '"replicated:3"', "null", '"x"', '"replicated:0"'],
    "ttr": ["0.1", "60", "null", "0", "86400.5", "1.0005", "true"],
    "max_attempts": ["1", "null", "0", "1.0", "1000000", "1000001", "false"],
    "ttl": ["0.001", "5", "null", "0", "1e9"],
    "retain": ["0", "5.5", "null", "-1", '"1"'],
    "backoff": ['{"kind":"fixed"}', "null", '{"kind":"exponential","base":1.5,"cap":60.0005}',
                '{"kind":"fixed","seconds":-1}', '{"kind":"schedule","seconds":[1,2],"jitter":0.1}',
                '{ "kind":"fixed","kind":"exponential"}', "{}"],
    "tags": ['["x"]', '["a","b:c"]', "[]", "null", '["x","x"]', '["-"]', '"x"', '["\\u0061"]'],
    "headers": ['{"a":"b"}', "{}", "null", '{"":"x"}', '{"a":"b","a":"c"}', '{"a":1}',
                '{"\\u00e9":"\\n"}', '{"é":"😀"}'],
    "dead_retain": ["0", "5", "null", "-1"],
    "time_limit": ["0.1", "5", "null", "0"],
    "deadline": ["0.001", "5", "null", "0"],
    "conflict_with": ['"any"', '"live"', "null"],
    "max_items": ["5", "0", "null", "10001"],
    "if_reserved": ['"refuse"', '"after"', "null"],
    "max_wait": ["60", "1000000000", "null", "0.001"],
    "unique_for": ["60", "0", "null", "1e9"],
    "batch": ['"b"', '"-b"', "null", "1"],
    "window": ['{"from":"09:00"}', '[{"to":"08:30"},{"zone":"Asia/Kathmandu","days":["sun"]}]', '"office"', "{}",
               "null", '{"from":"24:00"}', '"-"', '[]', '{"zone":"No/Where"}',
               '{ "except": ["2026-12-24"], "from":"01:00" }'],
    "spread": ["0", "60", "0.0005", "null", "-1", "86401", '"1"'],
    "unknown": ["1"],
}  # fmt: skip


spaces = one_of("", "", "", "", "", "", " ", "\n", "\t ")


def any_body(chance: Random) -> str:
    if chance.random() < 0.3:
        return chance.choice(NUMBERS.split())
    separators = (spaces(chance) + "," + spaces(chance), spaces(chance) + ":" + spaces(chance))
    return json.dumps(json_value(chance), ensure_ascii=chance.random() < 0.5, separators=separators)


def any_put(chance: Random) -> bytes:
    """Mostly a valid one, in any form that JSON allows."""
    names = ["topic", "id", "body"]
    if chance.random() < 0.8:
        names += chance.sample(("delay", "on_conflict"), k=chance.randrange(3))
    else:
        names += chance.choices(sorted(VALUES), k=chance.randrange(5))
    chance.shuffle(names)
    members = []
    for name in names:
        values = VALUES.get(name) or [any_body(chance)]
        value = values[0] if chance.random() < 0.7 else chance.choice(values)
        members.append(f'{spaces(chance)}"{name}"{spaces(chance)}:{spaces(chance)}{value}')
    return ("{" + ",".join(members) + "}").encode()


def any_batch(chance: Random) -> bytes:
    raw = batch_of(*(any_put(chance) for _ in range(1 if chance.random() < 0.7 else 3)))
    return damaged(chance, raw) if chance.random() < 0.25 else raw


@pytest.mark.parametrize(("seed", "count"), [(1, 2_000), pytest.param(2, 40_000, marks=pytest.mark.slow)])
def test_what_takes_the_fast_path_is_stored_as_on_the_general_one(seed: int, count: int) -> None:
    """The rarest of ten planted faults were found by 16,000 batches."""
    chance = Random(seed)
    assert sum(compare(any_batch(chance)) for _ in range(count)) > count / 5


@drawn(300)
@given(body=json_values, ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_every_body_is_stored_as_on_the_general_path(body: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps({"jobs": [{"topic": "t", "id": "a", "body": body}]}, ensure_ascii=ascii_only, indent=indent)
    raw = text.encode(errors="surrogatepass")
    assert compare(raw) is (general(raw) is not None)


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


RECEIPT = "0123456789ab.1"
USUAL_FINISHES = [
    b'{"id":"a"}',
    b'{"id":"a","receipt":null,"result":null}',
    b'{"id":"a","receipt":"0123456789ab.1"}',
    b'{"id":"a","receipt":"7fffffffffff.999999999","result":{"a":[1,1.0],"a":2}}',
    b'{"id":"a","receipt":""}',
    b'{"id":"a","receipt":"0123456789AB.1"}',
    b'{"id":"a","receipt":"0123456789ab.01"}',
    b'{"id":"a","receipt":"0123456789ab.0"}',
    b'{"id":"a","receipt":"0123456789ab.4294967295"}',
    b'{"id":"a","receipt":"0123456789ab.4294967294"}',
    b'{"id":"a","receipt":"0123456789ab.99999999999"}',
    b'{"id":"a","receipt":"1000000000000.1"}',
    b'{"id":"a","receipt":"%b.1"}' % (b"f" * 60),
    b'{"id":"a","receipt":"-12345678901.1"}',
    rb'{"id":"a","receipt":"0123456789ab.1\n0123456789ab.1"}',
    '{"id":"a","receipt":"\uff10123456789ab.1"}'.encode(),
]
LEFT_FINISHES = [
    b"{}",
    b'{"id":null}',
    b'{"id":""}',
    b'{"id":"a","receipt":1}',
    b'{"id":"a","receipt":"%b"}' % (b"a" * 65),
    b'{"id":"a","result":1e999}',
    b'{"id":"a","result":"\xff"}',
    b'{"id":"a","result":%b1%b}' % (b"[" * 191, b"]" * 191),
    b'{"id":"a","other":1}',
]


def generally_finished(raw: bytes) -> list[EncodedFinish] | None:
    try:
        items = FinishBatch.model_validate(parse_object(raw)).jobs
    except (InvalidInput, ValidationError):
        return None
    return [encode_finish(item.id, Receipt.of(item.receipt), item.result) for item in items]


@pytest.mark.parametrize("raw", USUAL_FINISHES)
def test_a_usual_finish_is_sent_as_on_the_general_path(raw: bytes) -> None:
    for batch in (batch_of(raw), batch_of(raw, USUAL_FINISHES[2]), batch_of(USUAL_FINISHES[3], raw)):
        finishes = decode_finishes(batch, NO_BOUNDS, NO_KEY_BOUNDS)
        assert finishes is not None
        assert generally_finished(batch) == finishes.jobs


@pytest.mark.parametrize("raw", LEFT_FINISHES)
def test_an_unusual_finish_is_left_to_the_general_path(raw: bytes) -> None:
    for batch in (batch_of(raw), batch_of(USUAL_FINISHES[2], raw)):
        assert decode_finishes(batch, NO_BOUNDS, NO_KEY_BOUNDS) is None


def test_a_receipt_that_no_delivery_can_have_never_matches() -> None:
    for text in ("1000000000000.1", "0123456789ab.4294967295", "f" * 60 + ".1", "", "x"):
        assert receipt_bytes(Receipt.of(text)) == bytes(6) + b"\xff" * 4
    assert receipt_bytes(Receipt.of(RECEIPT)) == bytes.fromhex("ab8967452301") + b"\x01\0\0\0"


def usual_id(chance: Random) -> str:
    return chance.choice("aZ0") + "".join(chance.choices("aZ0._:-", k=chance.randint(0, 20)))


def written_receipt(chance: Random) -> str:
    nonce = chance.choices("0123456789abcdef", k=chance.choice((11, 12, 12, 12, 13)))
    attempt = chance.choices("0123456789", k=chance.randint(1, 11))
    return f"{''.join(nonce)}.{''.join(attempt)}"


any_receipt = either(one_of(None), text_up_to(20), written_receipt)


def any_finish(chance: Random) -> dict[str, Any]:
    return {"id": either(usual_id, text_up_to(3))(chance)} | some_of({"receipt": any_receipt, "result": json_value})(
        chance
    )


@drawn(2000)
@given(items=by_number(lists(any_finish, 0, 3)))
def test_every_finish_is_sent_as_on_the_general_path(items: list[Any]) -> None:
    raw = json.dumps({"jobs": items}).encode()
    finishes = decode_finishes(raw, NO_BOUNDS, NO_KEY_BOUNDS)
    assert generally_finished(raw) == (None if finishes is None else finishes.jobs)


JITTER_BYTES = 8


def released(raw: bytes) -> Any:
    release = ReleaseJob.model_validate(parse_object(raw))
    delay_ms = None if release.delay is None else to_ms(release.delay)
    receipt = Receipt.of(release.receipt)
    return encode_release("a", receipt, delay_ms=delay_ms, error=release.error, counts=release.count)


def touched(raw: bytes) -> Any:
    touch = TouchJob.model_validate(parse_object(raw))
    ttr_ms = None if touch.ttr is None else to_ms(touch.ttr)
    return encode_touch("a", Receipt.of(touch.receipt), ttr_ms, touch.progress)


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
    return _sent(fast(raw, NO_KEY_BOUNDS, "a")), _sent(expected)


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
USUAL_DELIVERIES = {
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
    "touch": [
        *(*COMMON, b'{"ttr":null}', b'{"ttr":1}', b'{"ttr":30.5}', b'{"ttr":86400}'),
        *(b'{"progress":null}', b'{"progress":0.25}', b'{"progress":{"done":1e3},"ttr":5}'),
        b'{"progress":"%b"}' % (b"x" * 1022),
    ],
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
    "touch": [
        *(b'{"ttr":0}', b'{"ttr":86401}', b'{"ttr":[]}', b'{"delay":5}'),
        b'{"progress":"%b"}' % (b"x" * 1023),
        b'{"progress":%b%b}' % (b"[" * 191, b"]" * 191),
    ],
    "bury": [b'{"delay":5}'],
}
for refused in REFUSED.values():
    refused += [b"", b"null", b"[]", b"{", b'{"receipt":1}', b'{"receipt":"%b"}' % (b"x" * 65), b'{"receipt":"\xff"}']
for verb_with_error in ("release", "bury"):
    REFUSED[verb_with_error] += [b'{"error":1}', b'{"error":"%b"}' % (b"x" * 10_001), rb'{"error":"\ud800"}']


@pytest.mark.parametrize(("verb", "raw"), [(verb, raw) for verb, some in USUAL_DELIVERIES.items() for raw in some])
def test_a_usual_call_is_sent_as_on_the_general_path(verb: str, raw: bytes) -> None:
    fast, general = both_ways(verb, raw)
    assert fast is not None
    assert fast == general


@pytest.mark.parametrize(("verb", "raw"), [(verb, raw) for verb, some in REFUSED.items() for raw in some])
def test_what_is_refused_is_left_to_the_general_path(verb: str, raw: bytes) -> None:
    assert both_ways(verb, raw) == (None, None)


def test_a_number_in_a_string_is_left_to_the_general_path() -> None:
    for verb, raw in (("release", b'{"delay":"5"}'), ("touch", b'{"ttr":"5"}')):
        assert VERBS[verb][0](raw, NO_KEY_BOUNDS, "a") is None


def test_the_fast_paths_know_each_field_but_puts() -> None:
    for kind, model in (
        (body_decoding._Release, ReleaseJob),
        (body_decoding._Touch, TouchJob),
        (body_decoding._Bury, BuryJob),
        (body_decoding._Finish, FinishJob),
    ):
        names = {field.name for field in msgspec.structs.fields(kind)}
        assert names == model.model_fields.keys() - {"put"}


def test_the_jitter_of_each_release_is_another() -> None:
    releases = [decode_release(b"{}", NO_KEY_BOUNDS, "a") for _ in range(10)]
    assert len({release.start for release in releases if release is not None}) == 10


def any_seconds(chance: Random) -> float | None:
    amounts = chance.uniform(-1, limits.DELAY_MAX_S * 1.1), chance.randint(-1, 90_000), chance.random()
    return chance.choice((None, *amounts))


any_call = some_of(
    {
        "receipt": any_receipt,
        "count": one_of(True, False, None),
        "delay": any_seconds,
        "ttr": any_seconds,
        "error": either(one_of(None), text_up_to(50)),
        "other": json_value,
    }
)


FIELDS_OF_CALLS = st.sampled_from(
    [["receipt", "count", "delay", "error"], ["receipt", "ttr"], ["receipt", "error"], ["receipt", "ttr", "other"]]
)
"""Those of each verb, and some that it does not have."""


@drawn(1000)
@given(verb=st.sampled_from(sorted(VERBS)), body=by_number(any_call), fields=FIELDS_OF_CALLS)
def test_every_call_is_sent_as_on_the_general_path(verb: str, body: dict[str, Any], fields: list[str]) -> None:
    raw = json.dumps({name: value for name, value in body.items() if name in fields}).encode()
    fast, general = both_ways(verb, raw)
    assert fast == general
