"""Assembles a script from its file, the files of `lua/lib/` that it includes, and the scripts that it embeds.

Before all of this comes `lua/lib/not_after.lua`, which ends a call that its caller has given up: so no script can do
without.

The store runs a script's text from its first line at every call: each function that it makes takes time, and each local
that functions refer to takes more, also in a call that needs neither. So

* constants are written in place of their names;
* functions and constants that the script does not use are left out;
* functions of `lua/lib/` after a line ``-- @rare``, and what only these use, are made when a call first needs one.

A call with one job needs 10 to 30 % less of the store's CPU time. What this relies on, in files of `lua/`:

* A constant has a name in capitals, is declared by a `local` without indentation, has no other value in the script, and
  no local of a function has its name. Without use, nothing is lost by leaving out its declaration.
* Outside other functions, one is declared by `local function` without indentation, and so is the line of its `end`.
* No local has the name of a rare function, or the name `rare_functions` or `made_functions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.resources.abc import Traversable

_INCLUDE = "-- @include "
_EMBED = "-- @embed "
_RARE = "-- @rare"
_NAMES = r"[A-Z][A-Z0-9_]*(?:, [A-Z][A-Z0-9_]*)*"
_CONSTANTS = re.compile(rf"^local ({_NAMES}) =\s+(.+?)(?:\s+--.*)?$")
_INDENTED_LOCAL = re.compile(rf"^ +local ({_NAMES})\b")
_FUNCTION = re.compile(r"^local function (\w+)\(")
_STRING = r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\""
_USE_OF_CONSTANT = re.compile(rf"--[^\n]*|{_STRING}|\.?\b[A-Z][A-Z0-9_]*\b")
"""A name in capitals, with the point before it if it names a field; or what may contain one, a comment or string."""
_LOCALS = re.compile(r"\blocal ((?:\w+, )*\w+)")
_WORD = re.compile(r"\w+")
_INLINED = re.compile(rf"-?[\d.]+(?: [*^] [\d.]+)*|{_STRING}|(?:KEYS|ARGV)\[\d+\]")
"""Values that take no more time than a local does: numbers, strings, and what the call gave."""


def assemble(source: str, folder: Traversable, *, movable_clock: bool) -> str:
    """The text of a script for the store; `folder` has the other scripts, and the folder `lib` of the files to include.

    A line ``-- @include clock topic`` names files to include. A line ``-- @embed finish put`` makes other scripts
    functions of KEYS and ARGV. With `movable_clock`, `clock_movable` is included for `clock`.

    Raises:
        ValueError: a constant has two values in the script, or a local has the name of a constant or rare function.
    """
    check = _with_constants_inlined((folder / "lib" / "not_after.lua").read_text(encoding="utf-8"))
    return f"{check}\n{_without_check(source, folder, movable_clock=movable_clock)}"


def _without_check(source: str, folder: Traversable, *, movable_clock: bool) -> str:
    embedded = [
        f"local function {verb}(KEYS, ARGV)\n"
        + _without_check((folder / f"{verb}.lua").read_text(encoding="utf-8"), folder, movable_clock=movable_clock)
        + "\nend"
        for verb in _named_in(source, _EMBED)
    ]
    names = ("clock_movable" if movable_clock and name == "clock" else name for name in _named_in(source, _INCLUDE))
    included = [(folder / "lib" / f"{name}.lua").read_text(encoding="utf-8") for name in names]
    return "\n".join([*embedded, _with_rare_functions_apart(_with_constants_inlined("\n".join([*included, source])))])


def _named_in(source: str, directive: str) -> list[str]:
    """The names in the line that begins with `directive`; none without such a line."""
    line = next((line for line in source.splitlines() if line.startswith(directive)), directive)
    return line.removeprefix(directive).split()


def _with_constants_inlined(source: str) -> str:
    values: dict[str, str] = {}
    lines = []
    for line in source.splitlines():
        names, literals = _literals_of(line)
        for name, literal in zip(names, literals, strict=True):
            value = f"({literal})" if literal[0] in "-0123456789" else literal
            if values.setdefault(name, value) != value:
                raise ValueError(f"the constant {name} has two values in a script: {values[name]} and {value}")
        if not names:
            lines.append(line)
    for line in lines:
        declared = _INDENTED_LOCAL.match(line) or _CONSTANTS.match(line)
        for name in declared[1].split(", ") if declared is not None else ():
            if name in values:
                raise ValueError(f"the constant {name} has the name of a local: {line}")

    def written(found: re.Match[str]) -> str:
        if found[0].startswith("--"):
            return found[0] if found[0] == _RARE else ""
        return values.get(found[0], found[0])

    inlined = _USE_OF_CONSTANT.sub(written, "\n".join(lines))
    return "\n".join(line for line in inlined.splitlines() if line.strip())


def _literals_of(line: str) -> tuple[list[str], list[str]]:
    """The names and values that a line declares if all are inlined, else nothing."""
    declared = _CONSTANTS.match(line)
    if declared is None:
        return [], []
    names, values = declared[1].split(", "), declared[2].split(", ")
    if len(names) == len(values) and all(_INLINED.fullmatch(value) for value in values):
        return names, values
    return [], []


@dataclass(frozen=True, eq=False)
class _Piece:
    """A top-level function or constant with the names that it declares, or the lines between them without a name."""

    text: str
    names: frozenset[str]
    is_rare: bool

    @cached_property
    def words(self) -> set[str]:
        """Names in the text, and other words."""
        return set(_WORD.findall(self.text))


def _with_rare_functions_apart(source: str) -> str:
    """The source without what it does not use, and with a function that makes what few calls need."""
    pieces = list(_pieces(source.splitlines()))
    begin = [piece for piece in pieces if not piece.names]
    used = _reached(begin, pieces)
    often = _reached(begin, [piece for piece in pieces if not piece.is_rare])
    apart = [piece for piece in pieces if used & piece.names and (piece.is_rare or not often & piece.names)]
    kept = [piece for piece in pieces if piece not in apart and (not piece.names or often & piece.names)]
    words = set[str]().union(*(piece.words for piece in kept))
    exported = {name for piece in apart for name in piece.names & words}
    if not exported:
        return "\n".join(piece.text for piece in kept)
    declared = {name for piece in kept for names in _LOCALS.findall(piece.text) for name in names.split(", ")}
    for name in declared & {*exported, "rare_functions", "made_functions"}:
        raise ValueError(f"{name} is the name of a rare function, and of a local")
    last = pieces.index(apart[-1])
    use = re.compile(rf"{_STRING}|\.?\b(?:{'|'.join(sorted(exported))})\b")

    def called(found: re.Match[str]) -> str:
        return f"rare_functions().{found[0]}" if found[0] in exported else found[0]

    calls = {piece: use.sub(called, piece.text) for piece in kept}
    return "\n".join(
        [
            "local made_functions, rare_functions",
            *(calls[piece] for piece in pieces[:last] if piece in calls),
            "function rare_functions()",
            "if made_functions then return made_functions end",
            *(piece.text for piece in apart),
            "made_functions = {" + ", ".join(f"{name} = {name}" for name in sorted(exported)) + "}",
            "return made_functions",
            "end",
            *(calls[piece] for piece in pieces[last:] if piece in calls),
        ]
    )


def _reached(begin: list[_Piece], pieces: list[_Piece]) -> set[str]:
    """The words of `begin`, and of those pieces whose names are among them, and so on."""
    reached: set[str] = set()
    new = set[str]().union(*(piece.words for piece in begin))
    while new:
        reached |= new
        new = set[str]().union(*(piece.words for piece in pieces if new & piece.names)) - reached
    return reached


def _pieces(lines: list[str]) -> Iterator[_Piece]:
    at = 0
    while at < len(lines):
        is_rare = lines[at] == _RARE
        at += is_rare
        first = lines[at]
        function, constants = _FUNCTION.match(first), _CONSTANTS.match(first)
        names: list[str] = []
        end = at + 1
        if function is not None:
            names = [function[1]]
            if not first.rstrip().endswith(" end"):
                end = lines.index("end", at) + 1
        elif constants is not None:
            names = constants[1].split(", ")
            while end < len(lines) and lines[end][:1] in {" ", "}"}:  # a table of several lines
                end += 1
        yield _Piece("\n".join(lines[at:end]), frozenset(names), is_rare)
        at = end
