"""Builds the library of all scripts, as a store's FUNCTION LOAD takes it.

Each file of `lua/` becomes a function of KEYS and ARGV. If it has a line ``-- @call``, what comes before is outside
the function, and so is not made again at each call: functions, and what they know of a call. The script must set all of
that at its beginning. A line ``-- @flags allow-oom`` names flags of the function (see `lua/lib/calls.lua`).

The files of `lua/lib/` come before all scripts, outside functions, each behind those that a line ``-- @include topic``
in it names. But those in a line ``-- @inline selection`` of a script are part of it, as they depend on its arguments.

The names of the library and of its functions end with the release, a hash of the text. So services of different
releases do not use each other's functions on one store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
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
    """The library of the scripts in `folder`. With `movable_clock`, `clock_movable` takes the place of `clock`."""
    scripts, lib = _texts(folder), _texts(folder / "lib")
    movable = lib.pop("clock_movable")
    if movable_clock:
        lib["clock"] = movable
    inlined = {name: lib[name] for source in scripts.values() for name in _named_in(source, _INLINE)}
    included: dict[str, str] = {}
    for name in ("builtins", *sorted(lib.keys() - inlined.keys() - {"calls"}), "calls"):
        _include(name, lib, included)
    functions = (_registered(verb, source, inlined) for verb, source in scripts.items())
    body = "\n".join(_code("\n".join((*included.values(), *functions))))
    release = hashlib.sha256(body.encode()).hexdigest()[:_RELEASE_LENGTH]
    name = f"{NAME_PREFIX}{release}"
    text = f"#!lua name={name}\nlocal RELEASE = '{release}'\n{body}\n"
    return Library(name, text, {verb: f"{verb}_{release}" for verb in scripts})


def _texts(folder: Traversable) -> dict[str, str]:
    """The text of each Lua file of a folder, by its name without the ending."""
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".lua")), key=lambda file: file.name)
    return {file.name.removesuffix(".lua"): file.read_text(encoding="utf-8") for file in files}


def _include(name: str, lib: Mapping[str, str], included: dict[str, str]) -> None:
    """Add a file, behind those that it names."""
    if name in included:
        return
    for other in _named_in(lib[name], _INCLUDE):
        _include(other, lib, included)
    included[name] = lib[name]


def _registered(verb: str, source: str, inlined: Mapping[str, str]) -> str:
    before, has_call, body = source.partition(_CALL)
    if not has_call:
        before, body = "", source
    flags = ", ".join(f"'{flag}'" for flag in _named_in(source, _FLAGS))
    run = "\n".join((*(inlined[name] for name in _named_in(source, _INLINE)), body))
    return f"do\n{before}\nregister('{verb}', {{ {flags} }}, function(KEYS, ARGV)\n{run}\nend)\nend"


def _named_in(source: str, directive: str) -> list[str]:
    """The names in the line that begins with `directive`; none without such a line."""
    line = next((line for line in source.splitlines() if line.startswith(directive)), directive)
    return line.removeprefix(directive).split()


def _code(text: str) -> Iterator[str]:
    """The lines without those that are only comments: a store keeps the text, and sends it to its replicas."""
    return (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("--"))
