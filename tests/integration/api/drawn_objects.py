"""Bodies of puts and of calls on deliveries, drawn: usual fields and values, rare ones, and such as are refused."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from deferd.contract.limits import VALUE_DEPTH_MAX


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


NUMBERS = [
    *(b"0", b"-0", b"-1", b"1e3", b"1E5", b"1e308", b"1000", b"1000.0", b"1000.0004", b"1" * 308),
    *(b"12345678901234567890", b"123456789012345678901234567890"),
]
"""None is a time that may pass during an example."""
FRACTIONS = [b"1", b"1.0", b"0.1", b"1.5e-9", b"5e-324", b"0.30000000000000004"]
OTHERS = [
    *(b"null", b"true", b'"x"', b'""', b'"\\u00e9"', b'"\\ud83d\\ude00"', b'"a\\/b"', b'"\xc3\xa9"', b'"\\u0000"'),
    *(b'"1e999"', b"[]", b"{}", b'{"a":1,"a":2}', b'{"b": [1, 2.50, {"c": null}], "a": "\\n"}'),
    *(b"[" * depth + b"]" * depth for depth in (149, 150, 151, 197, 198)),
]
REFUSED = [
    *(b"1e999", b"-1e999", b"1" * 320, b"NaN", b"Infinity", b"-Infinity", b"01", b"+1", b".5", b"5.", b"0x1", b"[1,]"),
    *(b'"\\ud800"', b'"\\udc00x"', b'"\\x"', b'"\xff"', b'"\xed\xa0\x80"', b'"\t"', b""),
    *(b"[" * depth + b"]" * depth for depth in (199, 200, 201, 400)),
]
GENERATED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
).map(text)


def mostly(*usual: bytes) -> st.SearchStrategy[bytes]:
    """One of the usual values, and one time in twelve any other."""
    anything = st.sampled_from([*NUMBERS, *OTHERS, *REFUSED])
    return st.integers(0, 11).flatmap(lambda choice: st.sampled_from(usual) if choice else anything)


IDS = [
    b'"a"',
    b'"b"',
    b'"A.b_c:d-1"',
    b'"-a"',
    b'"a b"',
    b'"a\\n"',
    b'"\xc3\xa9"',
    b'"%b"' % (b"x" * 255),
    b'"%b"' % (b"x" * 256),
]
INSTANTS = [b'"2020-01-01T00:00:00Z"', b'"2030-01-01T00:00:00.5+02:00"', b'"2099-01-01T00:00:00Z"', b'"soon"', b"5"]
FIELDS = {
    b"id": mostly(b'"a"', b'"b"') | mostly(*IDS),
    b"body": mostly(*NUMBERS, *FRACTIONS, *OTHERS) | GENERATED,
    b"delay": mostly(b"0", b"1000", b"1000.5", b"315576000", b"null") | mostly(b"315576001", b"-1", *NUMBERS),
    b"run_at": mostly(*INSTANTS),
    b"on_conflict": mostly(b'"reject"', b'"keep"', b'"replace"') | mostly(b'"append"'),
    b"traceparent": mostly(b'"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"', b"null"),
    b"durability": mostly(b'"memory"', b'"fsync"', b'"replicated:1"', b"null"),
    b"ttr": mostly(b"60", b"86400", b"30.5") | mostly(b"0.05", b"86401"),
    b"max_attempts": mostly(b"1", b"3", b"null") | mostly(b"3.0", b"0"),
    b"ttl": mostly(b"100000", b"1000.001", b"null"),
    b"retain": mostly(b"0", b"1000", b"null"),
    b"dead_retain": mostly(b"0", b"1000", b"null") | mostly(b"-1"),
    **dict.fromkeys((b"time_limit", b"deadline"), mostly(b"100000", b"null") | mostly(b"0")),
    b"backoff": mostly(b'{"kind":"fixed","seconds":5}', b'{"kind":"x"}'),
    b"tags": mostly(b'["x"]', b'["x","customer:7"]', b"[]", b"null") | mostly(b'["x","x"]', b'["-x"]', b'"x"'),
    b"headers": mostly(b'{"tenant":"acme"}', b"{}", b"null") | mostly(b'{"":"x"}', b'{"a":1}', b'{"a":"\\u0007"}'),
    b"group": mostly(b'"customer-7"', b"null") | mostly(b'"-x"', b'""'),
    b"priority": mostly(b"0", b"1", b"9", b"null") | mostly(b"10", b"1.0"),
    b"put": mostly(b'[{"topic":"{t}","id":"b"}]', b"[]", b"null", b'[{"topic":"{t}","id":"b","tags":["x"]}]'),
    b"other": mostly(b"1"),
    b"receipt": mostly(b'"{receipt}"') | mostly(b'"0123456789ab.1"', b'"x"', b'"%b"' % (b"x" * 65)),
    b"result": mostly(*NUMBERS, *FRACTIONS, *OTHERS) | GENERATED,
    b"count": mostly(b"true", b"false") | mostly(b"null", b"1", b'"true"'),
    b"error": mostly(b'"502"', b'"a\\nb"', b'""', b"null") | mostly(b'"%b"' % (b"x" * 4096), b'"%b"' % (b"x" * 4097)),
}
FIELDS |= dict.fromkeys((b"unique_for", b"max_wait", b"max_items"), mostly(b"0", b"1000", b"null"))
FIELDS |= {b"batch": mostly(b'"b"', b"null") | mostly(b'"-b"', b"1")}
FIELDS |= {b"conflict_with": mostly(b'"any"', b'"live"'), b"if_reserved": mostly(b'"after"', b'"refuse"')}
SPACE = st.sampled_from([b""] * 12 + [b" ", b"\r\n", b"\t", b"\x0b", b"\xef\xbb\xbf"])


@st.composite
def objects(draw: st.DrawFn, usual: tuple[bytes, ...]) -> bytes:
    """A JSON object of usual fields, sometimes with another one, a repeated one or a changed byte."""
    names = draw(st.lists(st.sampled_from(usual), unique=True, max_size=4))
    if draw(st.integers(0, 9)) == 0:
        names += draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=2))
    space = draw(SPACE)
    values = [draw(FIELDS[name]) for name in names]
    if len(set(names)) < len(names):  # a value that a later one replaces may be nested deeper: see api/body_decoding.py
        values = [b"[]" if value.count(b"[") > VALUE_DEPTH_MAX else value for value in values]
    members = [b'"%b":%b%b' % (name, space, value) for name, value in zip(names, values, strict=True)]
    if b"on_conflict" in usual and draw(st.integers(0, 19)):
        members.insert(0, b'"topic":"{t}"')
    raw = b"%b{%b}%b" % (draw(SPACE), (b"," + space).join(members), space)
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(raw) - 1))
        raw = raw[:at] + draw(st.binary(max_size=1)) + raw[at + 1 :]
    return raw


GENERAL_FIELDS = {b"backoff", b"dead_retain", b"time_limit", b"deadline", b"tags", b"headers"}
OF_DELIVERIES = {b"receipt", b"result", b"put", b"count", b"error"}
PUT_FIELDS = tuple(sorted(FIELDS.keys() - GENERAL_FIELDS - OF_DELIVERIES - {b"other"}))
BODIES = st.one_of(objects(PUT_FIELDS), objects((b"id", b"body", b"delay", b"on_conflict")))
FINISHES = st.one_of(
    objects((b"receipt", b"result")), st.sampled_from([b"", b"null", b"{}", b'{"receipt":"{receipt}"}'])
)
RELEASES = (
    objects((b"receipt", b"count", b"error"))
    .filter(lambda raw: b'"delay"' not in raw)
    .map(lambda raw: raw.replace(b"{", b'{"delay":1000,', 1).replace(b",}", b"}"))
)
"""All have this delay: none, and the default of 2 seconds, may pass during an example."""
ENDS = {
    b"finish": FINISHES,
    b"release": RELEASES,
    b"touch": objects((b"receipt", b"ttr")),
    b"bury": objects((b"receipt", b"error")),
}
"""By the verb."""
