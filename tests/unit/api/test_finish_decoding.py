"""The fast path of finishes gives the store what the general path gives it, byte for byte, or leaves it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from deferd.api.auth.api_keys import NO_BOUNDS as NO_KEY_BOUNDS
from deferd.api.delivery_decoding import decode_finishes
from deferd.api.request_body import parse_object
from deferd.contract import limits
from deferd.contract.errors import InvalidInput
from deferd.contract.model import FinishBatch
from deferd.engine.record import Receipt
from deferd.engine.script_arguments import NO_BOUNDS, EncodedFinish, encode_finish, receipt_bytes
from tests.drawn_input import drawn
from tests.unit.api.test_put_decoding import batch_of, json_values

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


@drawn(1000)
@given(
    items=st.lists(
        st.fixed_dictionaries(
            {"id": st.from_regex(limits.ID_PATTERN, fullmatch=True) | st.text(max_size=3)},
            optional={
                "receipt": st.none()
                | st.text(max_size=20)
                | st.from_regex(r"[0-9a-f]{11,13}\.[0-9]{1,11}", fullmatch=True),
                "result": json_values,
            },
        ),
        max_size=3,
    )
)
def test_every_finish_is_sent_as_on_the_general_path(items: list[Any]) -> None:
    raw = json.dumps({"jobs": items}).encode()
    finishes = decode_finishes(raw, NO_BOUNDS, NO_KEY_BOUNDS)
    assert generally_finished(raw) == (None if finishes is None else finishes.jobs)
