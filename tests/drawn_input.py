"""Strategies of the fuzz tests: texts, bytes and JSON values that people, clients and attackers may send.

The draws are the same in each run. ``-m hypothesis`` makes a tenth of them, ``--hypothesis-profile full`` all, and
``DEFERD_FUZZ=N`` N times as many, other ones in each run::

    python -m pytest -m hypothesis -n 4
    python -m pytest -m hypothesis --hypothesis-profile full
    DEFERD_FUZZ=50 python -m pytest -m hypothesis tests/unit/*/test_parsers_*.py
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.random_draws import by_number, either, json_object, json_scalar, json_value, plain_text

Value = TypeVar("Value")
Refusal = TypeVar("Refusal", bound=Exception)

FACTOR = int(os.environ.get("DEFERD_FUZZ", "0"))
"""How many times all draws a longer run makes; 0 in the suite itself."""
FULL = "full"
"""The Hypothesis profile with all draws; tests/conftest.py registers it."""
_PLAIN_PART = 10
_LEAST = 5


def counted(examples: int) -> int:
    """How many examples this run makes of so many, which is all draws."""
    if FACTOR:
        return examples * FACTOR
    if settings.get_current_profile_name() == FULL:
        return examples
    return max(examples // _PLAIN_PART, _LEAST)


def drawn(examples: int = 300) -> settings:
    """Hypothesis' settings for a test with so many examples in all."""
    return settings(
        max_examples=counted(examples),
        derandomize=not FACTOR,
        deadline=None,  # others use the machine
        print_blob=True,
        # Fixtures of these tests hold no state between examples. Explaining traces every line, for minutes.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
        phases=[phase for phase in Phase if phase is not Phase.explain],
    )


def outcome(read: Callable[[], Value], refusal: type[Refusal]) -> tuple[Value | None, Refusal | None]:
    """The result of `read`, or the refusal that it raises; any other exception propagates."""
    try:
        return read(), None
    except refusal as refused:
        return None, refused


plain_texts = by_number(plain_text)
"""Text that JSON can carry: no half of a surrogate pair."""
awkward_texts = st.sampled_from(
    ["", " ", "\0", "٣", "²", "-0", "+1", "1_0", "1e999", "NaN", "inf", "%2F", "%zz", "\r\n", "a,b", "\u202e", "😀"]
)
digits = st.integers(1, 5000).flatmap(
    lambda count: st.sampled_from(["9" * count, "1" + "0" * count, "-" + "9" * count])
)
"""Numbers that Python, a float, or Lua cannot hold."""
texts = st.one_of(plain_texts, awkward_texts, digits, st.text(max_size=30))
"""Any text, also one that is not Unicode."""

json_scalars = by_number(json_scalar)
json_values = by_number(json_value)
json_objects = by_number(json_object)

_TOKENS = (
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"\\ud800", b"\\udc00", b"0", b"9", b"-", b".", b"e"),
    *(b"E+", b"1e999", b"1e400", b"NaN", b"Infinity", b"-Infinity", b"true", b"null", b" ", b"\n", b"\0", b"\xff"),
    *(b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"a":', b'"a"', b"[[[[[[[[", b"9" * 400, b"9" * 5000, b"1" * 250 + b"e99"),
)


_AWKWARD_NUMBERS = (b"1e999", b"-1e400", b"9" * 400, b"NaN", b"-Infinity", b"-0", b"0.1e-999")
_SCALAR = re.compile(rb"-?[0-9.]+|true|false|null")


def _json_bytes(chance: Random) -> bytes:
    value = chance.choice((json_value, json_object))(chance)
    return json.dumps(value, ensure_ascii=False).encode()


def damaged(chance: Random, content: bytes) -> bytes:
    """JSON with a few bytes cut out or put in, or a few values replaced."""
    for _ in range(chance.randint(1, 3)):
        scalars = [found.span() for found in _SCALAR.finditer(content)]
        if scalars and chance.randrange(3):
            start, end = chance.choice(scalars)
            content = content[:start] + chance.choice(chance.choice((_TOKENS, _AWKWARD_NUMBERS))) + content[end:]
        else:
            at = chance.randint(0, len(content))
            put_in = chance.choice(_TOKENS) if chance.randrange(2) else chance.randbytes(chance.randint(0, 3))
            content = content[:at] + put_in + content[at + chance.randint(0, 3) :]
    return content


def _damaged_json(chance: Random) -> bytes:
    return damaged(chance, _json_bytes(chance))


def _soup(chance: Random) -> bytes:
    return b"".join(chance.choices(_TOKENS, k=chance.randint(0, 20)))


def _any_bytes(chance: Random) -> bytes:
    return chance.randbytes(chance.randint(0, 60))


contents = by_number(either(_any_bytes, _json_bytes, _damaged_json, _soup))
"""Any bytes, most of them JSON or nearly so."""


def objects_with(fields: dict[str, st.SearchStrategy[Any]], other: st.SearchStrategy[Any] = json_values) -> Any:
    """Objects that have some of `fields`: with good values, with `other` ones, and now and then an unknown name."""
    either = {name: st.one_of(good, good, other) for name, good in fields.items()}
    unknown = st.dictionaries(plain_texts, other, max_size=1)
    return st.builds(lambda known, more: {**more, **known}, st.fixed_dictionaries({}, optional=either), unknown)
