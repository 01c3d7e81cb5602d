"""Values as people write them on a command line: durations, instants, backoffs, JSON.

Each function reads the text of one argument and raises click.BadParameter if it is wrong; `deferd.cli.main` shows the
message after the name of the argument.
"""

from __future__ import annotations

import contextlib
import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import click

from deferd.cli.framework.exit_codes import UsageError
from deferd.contract.durations import UNITS_S, parse_duration
from deferd.contract.limits import REDRIVE_RATE_MAX, REDRIVE_RATE_MIN
from deferd.contract.service_url import parse_service_url, refuse_passwords
from deferd.contract.timestamps import parse_instant

if TYPE_CHECKING:
    from deferd.client import Cipher

_WITHOUT_SECONDS = re.compile(r"^([\d-]{10}[Tt ]\d\d:\d\d)([Zz]|[+-]\d\d:\d\d)$", re.ASCII)
_NONE: Final = "none"
_SHOWN_CHARACTERS = 80
_KEY = re.compile(r"[\x21-\x7e]+")


def duration(text: str) -> float:
    """Seconds: a number of them, or parts such as ``90s``, ``30m``, ``1h30m``, ``7d``, ``250ms``, each unit once."""
    try:
        return parse_duration(text)
    except ValueError as exc:
        raise click.BadParameter(f"{_shown(text)} {exc}") from None


def signed_duration(text: str) -> float:
    """A duration, or one after a minus sign."""
    return -duration(text[1:]) if text.startswith("-") else duration(text)


def duration_or_none(text: str) -> float | None:
    """A duration, or ``none`` for no limit."""
    return None if text == _NONE else duration(text)


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{_shown(text)} is not a whole number") from None


def whole_or_none(text: str) -> int | None:
    """A whole number, or ``none`` for no limit."""
    if text == _NONE:
        return None
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{_shown(text)} is neither a whole number nor none") from None


def instant(text: str) -> datetime:
    """An RFC 3339 instant with a zone; the seconds may be left out."""
    try:
        return parse_instant(_WITHOUT_SECONDS.sub(r"\1:00\2", text))
    except ValueError as error:
        raise click.BadParameter(f"{_shown(text)} is not an instant with a zone: {error}") from None


def read_json(text: str | bytes) -> Any:
    """Parse a JSON text as strictly as the service does.

    Raises:
        ValueError: it is not JSON (as NaN), or has a number beyond 1.8e308, which cannot be written as JSON again.
    """
    from pydantic_core import from_json  # the help does not need it

    from deferd.contract.json_values import may_be_infinite

    # An argument that this locale can't decode has its bytes as surrogates; JSON is UTF-8 in any locale.
    raw = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    value = from_json(raw, allow_inf_nan=False, cache_strings="keys")
    if may_be_infinite(raw):
        json.dumps(value, allow_nan=False, check_circular=False)
    return value


def json_value(text: str) -> Any:
    """A JSON value. The error shows how to quote a text for the shell, the most frequent mistake."""
    try:
        return read_json(text)
    except ValueError as error:
        looks_plain = not re.search(r"""[\[\]{}"'\\]""", text)
        hint = f"""; a JSON string needs quotes of its own: '"{text[:_SHOWN_CHARACTERS]}"'""" if looks_plain else ""
        raise click.BadParameter(f"{_shown(text)} is not JSON ({error}){hint}") from None


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    value = json_value(text)
    if not isinstance(value, dict):
        raise click.BadParameter(f"{_shown(text)} is not a JSON object, such as '{{\"ttr\": 60}}'")
    return value


def window(text: str) -> Any:
    """Opening hours: a JSON object, a list of them, or the name of a calendar; ``none`` for none."""
    if text == _NONE:
        return None
    return json_value(text) if text.lstrip()[:1] in {"{", "["} else text


def on_end(text: str) -> Any:
    """What the end of a job puts: a topic, or a JSON object; ``none`` for nothing."""
    if text == _NONE:
        return None
    return json_object(text) if text.lstrip().startswith("{") else {"topic": text}


def windows(text: str) -> list[Any]:
    """Several opening hours: a JSON list, or one object."""
    value = json_value(text)
    return value if isinstance(value, list) else [value]


def body(text: str) -> Any:
    """A job's body: a JSON value, or ``-`` for standard input."""
    return text if text == "-" else Body(json_value(text))


class Body(NamedTuple):
    """A body, which may be None or the text ``-``."""

    value: Any


def body_field(body: Body | Literal["-"] | None) -> dict[str, Any]:
    """The field `body` of a job if a body was given. Raises UsageError for ``-``."""
    if isinstance(body, str):
        raise UsageError("BODY is -, but only `deferd put` reads standard input")
    return {} if body is None else {"body": body.value}


def header(text: str) -> tuple[str, str] | None:
    """A name and a text, separated by the first ``=``; None for an empty text."""
    if not text:
        return None
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{_shown(text)} is not a header: write NAME=TEXT")
    return name, value


def names(text: str) -> list[str]:
    """Values with commas between them."""
    return [name for name in text.replace(" ", "").split(",") if name]


def backoff(text: str) -> dict[str, Any]:
    """A backoff as the contract's object, from JSON or from one of the short forms::

    exponential[:BASE[:CAP[:JITTER]]]       exponential:2:212
    fixed:WAIT[:JITTER]                     fixed:10
    schedule:WAIT,WAIT,...[:THEN[:JITTER]]  schedule:2m,10m,1h   THEN is dead or repeat_last
    """
    if text.lstrip().startswith("{"):
        return json_object(text)
    kind, *parts = text.split(":")
    try:
        made = _BACKOFFS[kind](parts)
    except (KeyError, ValueError, IndexError, click.BadParameter):
        raise click.BadParameter(
            f"{_shown(text)} is not a backoff: write exponential:2:212 (base, cap), fixed:10, schedule:2m,10m,1h "
            "or schedule:2m,10m:repeat_last, a jitter such as :0.1 after it, or a JSON object"
        ) from None
    return made


def _exponential(parts: list[str]) -> dict[str, Any]:
    _at_most(3, parts)
    base, cap, jitter = [*parts, "", "", ""][:3]
    made: dict[str, Any] = {"kind": "exponential"}
    if base:
        made["base"] = float(base)
    if cap:
        made["cap"] = duration(cap)
    return {**made, "jitter": float(jitter)} if jitter else made


def _fixed(parts: list[str]) -> dict[str, Any]:
    _at_most(2, parts)
    made: dict[str, Any] = {"kind": "fixed", "seconds": duration(parts[0])}
    return made if len(parts) == 1 else {**made, "jitter": float(parts[1])}


def _schedule(parts: list[str]) -> dict[str, Any]:
    waits, *more = parts
    made: dict[str, Any] = {"kind": "schedule", "seconds": [duration(wait) for wait in waits.split(",")]}
    if more and more[0] in {"dead", "repeat_last"}:
        made["then"] = more.pop(0)
    _at_most(1, more)
    return made if not more else {**made, "jitter": float(more[0])}


def _at_most(count: int, parts: list[str]) -> None:
    if len(parts) > count:
        raise ValueError(parts)


_BACKOFFS = {"exponential": _exponential, "fixed": _fixed, "schedule": _schedule}


def service_urls(text: str) -> list[str]:
    """One or more base URLs, separated by commas; the default scheme is http."""
    try:
        refuse_passwords(text)  # before a comma in a password splits it
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    texts = [url for url in text.split(",") if url.strip()]
    if not texts:
        raise click.BadParameter("is empty, but must be a URL such as http://127.0.0.1:8000")
    try:
        return [parse_service_url(url) for url in texts]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def key(text: str) -> str:
    """A bearer key. Never shown."""
    if not _KEY.fullmatch(text):
        raise click.BadParameter("has a value that is not shown, but must be printable ASCII without spaces")
    return text


def ca_file(text: str) -> str:
    """A PEM file with certificate authorities."""
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=text)
    except OSError as error:
        raise click.BadParameter(f"{_shown(text)} cannot be used: {error}") from None
    return text


def cipher(text: str) -> Cipher:
    """The cipher with the keys of a file."""
    from deferd.client import Cipher

    try:
        return Cipher.from_file(text)
    except (OSError, ValueError, ImportError) as error:
        raise click.BadParameter(f"{_shown(text)} cannot be used: {error}") from None


def timeout(text: str) -> float:
    """A duration from 0.1 s to an hour."""
    return _within(0.1, 3600, "0.1 s to 1 h", text)


def retry_time(text: str) -> float:
    """A duration from 0 to a day."""
    return _within(0, 86400, "0 to 24 h", text)


def _within(low_s: float, high_s: float, span: str, text: str) -> float:
    value = duration(text)
    if not low_s <= value <= high_s:
        raise click.BadParameter(f"{_shown(text)} is not from {span}")
    return value


def count_from_1(text: str) -> int:
    """A whole number of at least 1."""
    value = whole(text)
    if value < 1:
        raise click.BadParameter(f"{_shown(text)} is not at least 1")
    return value


def rate_or_none(text: str) -> dict[str, Any] | None:
    """A rate as the contract's object, such as ``100/s``, ``5/10s`` or ``1000/m``; ``none`` for no limit."""
    if text == _NONE:
        return None
    count, _, span = text.partition("/")
    with contextlib.suppress(ValueError):
        return {"count": int(count), "per": parse_duration(f"1{span}" if span in UNITS_S else span)}
    raise click.BadParameter(f"{_shown(text)} is not a rate: write 100/s, 5/10s or 1000/m, or none")


def redrive_rate(text: str) -> float:
    """How many jobs a second a redrive makes ready."""
    with contextlib.suppress(ValueError):
        if REDRIVE_RATE_MIN <= float(text) <= REDRIVE_RATE_MAX:
            return float(text)
    raise click.BadParameter(f"{_shown(text)} is not a number from {REDRIVE_RATE_MIN:g} to {REDRIVE_RATE_MAX:g}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "...")
