"""Texts, JSON values and arguments of calls for fuzz tests, made from one number that Hypothesis draws.

Hypothesis itself would draw each letter and each value, some twenty for a put, which takes longer than what is tested.
Python's random numbers make them from one. A failure still shrinks to the calls that it needs; a text, a value and the
arguments of a call shrink only by other numbers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

Value = TypeVar("Value")
Draw = Callable[[Random], Value]

FEW_BITS = 8
NUMBERS = st.integers(0, 2**64 - 1)
"""Of a narrower range Hypothesis draws the same small numbers again and again."""


def one_of(*values: Value) -> Draw[Value]:
    return lambda chance: chance.choice(values)


def between(least: int, most: int) -> Draw[int]:
    """Of a wide range every other number has any count of bits, so that small ones come too, and sometimes the most."""
    bits = (most - least).bit_length()

    def drawn(chance: Random) -> int:
        if bits > FEW_BITS and chance.randrange(2):
            return min(least + chance.getrandbits(chance.randint(1, bits)), most)
        return chance.randint(least, most)

    return drawn


def lists(of: Draw[Value], least: int, most: int) -> Draw[list[Value]]:
    return lambda chance: [of(chance) for _ in range(chance.randint(least, most))]


def tuples(*of: Draw[Any]) -> Draw[Any]:
    return lambda chance: tuple(one(chance) for one in of)


def either(*of: Draw[Any]) -> Draw[Any]:
    return lambda chance: chance.choice(of)(chance)


def all_of(fields: Mapping[str, Draw[Any]]) -> Draw[dict[str, Any]]:
    return lambda chance: {name: of(chance) for name, of in fields.items()}


def some_of(fields: Mapping[str, Draw[Any]]) -> Draw[dict[str, Any]]:
    return lambda chance: {name: of(chance) for name, of in fields.items() if chance.random() < 0.5}


def by_number(of: Draw[Value]) -> st.SearchStrategy[Value]:
    """What Hypothesis draws by one number."""
    return NUMBERS.map(lambda drawn: of(Random(drawn)))


_ALPHABETS = (
    *(
        "abcxyz",
        "AZ09._:-",
        " \t,;=&%+/",
        "\"'\\{}[]()",
        "\0\a\n\r\x1b\x7f\x85",
        "\xa0\xdf\xe9\xff",
        "\u0130\u0301\u0663",
    ),
    *("\u200b\u2028\u202e\ufeff\ufffd\uffff", "\U0001f600\U0001d7d8\U0010ffff"),
)
_LETTERS = tuple("".join(_ALPHABETS))
_BEFORE_SURROGATES = 0xD800
_NUMBERS_AT_BOUNDS = (0, -1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**300)
MOST_NESTED = 3


def text_up_to(longest: int) -> Draw[str]:
    """Text that JSON can carry, with no half of a surrogate pair: half of the time of one alphabet, else of any."""

    def drawn(chance: Random) -> str:
        length = min(chance.randint(0, longest), chance.randint(0, longest))
        if chance.randrange(2):
            return "".join(chance.choices(chance.choice(_ALPHABETS), k=length))
        if chance.randrange(2):
            return "".join(chance.choices(_LETTERS, k=length))
        return "".join(chr(chance.randrange(_BEFORE_SURROGATES)) for _ in range(length))

    return drawn


plain_text = text_up_to(30)


def finite_float(chance: Random) -> float:
    if chance.randrange(2):
        return chance.choice((0.0, -0.0, 0.1, 1.0, 1e-300, 1e22, 5e-324, chance.uniform(-1000, 1000)))
    [value] = struct.unpack("<d", chance.randbytes(8))
    return value if math.isfinite(value) else 0.5


def whole_number(chance: Random) -> int:
    kind = chance.randrange(3)
    if kind == 0:
        return chance.randint(-10, 10)
    return chance.randint(-(2**64), 2**64) if kind == 1 else chance.choice(_NUMBERS_AT_BOUNDS)


json_scalar: Draw[Any] = either(one_of(None, True, False), whole_number, finite_float, plain_text)


def json_value(chance: Random, deepest: int = MOST_NESTED) -> Any:
    kind = chance.randrange(4) if deepest else 0
    if kind < 2:
        return json_scalar(chance)
    inner = [json_value(chance, deepest - 1) for _ in range(chance.randint(0, 4))]
    return inner if kind == 2 else {plain_text(chance): value for value in inner}


def json_object(chance: Random) -> dict[str, Any]:
    return {plain_text(chance): json_value(chance) for _ in range(chance.randint(0, 5))}
