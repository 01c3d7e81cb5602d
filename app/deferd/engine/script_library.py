"""Builds the library of all scripts, as a store's FUNCTION LOAD takes it.

Each file of `lua/` becomes a function of KEYS and ARGV. If it has a line ``-- @call``, what comes before is outside
the function, and so is not made again at each call: functions, and what they know of a call. The script must set all of
that at its beginning. A line ``-- @flags allow-oom`` names flags of the function (see `lua/lib/calls.lua`).

A line ``-- @include clock topic`` names files of `lua/lib/` that must come before. Each comes once, outside functions.
A line ``-- @inline selection`` names those that are part of the script itself, as they depend on its arguments.

The library's name, and those of its functions, end with the release, a hash of the text. So services of different
releases do not use each other's functions on one store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from typing import NamedTuple

NAME_PREFIX = "deferd_"
"""Begins the name of each release's library."""
_INCLUDE = "-- @include "
_INLINE = "-- @inline "
_FLAGS = "-- @flags "
_CALL = "\n-- @call\n"
_RELEASE_LENGTH = 12


class Library(NamedTuple):
    """The library: its name, its text, and the names of its functions by verb."""

    name: str
    text: str
    functions: dict[str, str]


def build(folder: Traversable, *, movable_clock: bool) -> Library:
    """The library of the scripts in `folder`. With `movable_clock`, `clock_movable` is included for `clock`."""
    scripts = {
        file.name.removesuffix(".lua"): file.read_text(encoding="utf-8")
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".lua")
    }
    included: dict[str, str] = {}
    for source in (f"{_INCLUDE}builtins", *scripts.values(), f"{_INCLUDE}calls"):
        _include(source, folder / "lib", included, movable_clock=movable_clock)
    functions = (_registered(verb, source, folder / "lib") for verb, source in scripts.items())
    body = "\n".join(_code("\n".join((*included.values(), *functions))))
    release = hashlib.sha256(body.encode()).hexdigest()[:_RELEASE_LENGTH]
    name = f"{NAME_PREFIX}{release}"
    text = f"#!lua name={name}\nlocal RELEASE = '{release}'\n{body}\n"
    return Library(name, text, {verb: f"{verb}_{release}" for verb in scripts})


def _include(source: str, lib: Traversable, included: dict[str, str], *, movable_clock: bool) -> None:
    """Add the files that `source` includes, each after the files that it includes itself."""
    for name in _named_in(source, _INCLUDE):
        if name not in included:
            file = "clock_movable" if movable_clock and name == "clock" else name
            text = (lib / f"{file}.lua").read_text(encoding="utf-8")
            _include(text, lib, included, movable_clock=movable_clock)
            included[name] = text


def _registered(verb: str, source: str, lib: Traversable) -> str:
    before, has_call, body = source.partition(_CALL)
    if not has_call:
        before, body = "", source
    inlined = ((lib / f"{name}.lua").read_text(encoding="utf-8") for name in _named_in(source, _INLINE))
    flags = ", ".join(f"'{flag}'" for flag in _named_in(source, _FLAGS))
    run = "\n".join((*inlined, body))
    return f"do\n{before}\nregister('{verb}', {{ {flags} }}, function(KEYS, ARGV)\n{run}\nend)\nend"


def _named_in(source: str, directive: str) -> list[str]:
    """The names in the line that begins with `directive`; none without such a line."""
    line = next((line for line in source.splitlines() if line.startswith(directive)), directive)
    return line.removeprefix(directive).split()


def _code(text: str) -> Iterator[str]:
    """The lines without those that are only comments: a store keeps the text, and sends it to its replicas."""
    return (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))
