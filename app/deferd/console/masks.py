"""Hides fields of jobs: what `--console-mask` names never leaves the server through the console."""

from __future__ import annotations

import re
from collections.abc import Iterable
from sys import getsizeof
from typing import Any

from deferd.console.json_text import Members, compact, parse
from deferd.engine.caches import BoundedCache

MASKED = "•••••"
"""What is shown in place of a value."""
_WITH_FIELDS = frozenset({"body", "result", "headers", "progress"})
_ERRORS = frozenset({"error", "last_error", "top_error"})
_QUOTED_FROM = 20
"""Sentences may shorten the error that they quote, but have as many of its first characters."""
_KNOWN_BYTES = 1024 * 1024

Path = tuple[str, ...]


class Masks:
    """Patterns of paths, such as `password` or `*.token`: names with dots between them, and `*` for any characters.

    A pattern matches the end of a path, in any case of letters; the path of a field begins with `body`, `result`,
    `headers` or `progress` of its job, and elements of an array have that of the array. What is below a match is hidden
    too.

    With patterns texts of errors are hidden whole: they may quote any value.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._paths = [_compiled(pattern) for pattern in patterns]
        self._known: BoundedCache[Path, bool] = BoundedCache(_KNOWN_BYTES)

    def __bool__(self) -> bool:
        return bool(self._paths)

    def response(self, content: bytes) -> bytes:
        """JSON of the API with fields of jobs and errors hidden."""
        if not self or not content:
            return content
        try:
            return compact(self._masked(parse(content))).encode()
        except (ValueError, RecursionError):
            return b"null"  # better nothing than what could not be searched

    def hides(self, value: Any, name: str = "body") -> bool:
        """Whether some field of a job's body (`name`: its result or its headers) is hidden."""
        left: list[tuple[Any, Path]] = [(value, (name,))]
        while left:
            inner, at = left.pop()
            if self._is_hidden(at):
                return True
            if isinstance(inner, Members):
                left += [(one, (*at, name)) for name, one in inner]
            elif isinstance(inner, list):
                left += [(one, at) for one in inner if isinstance(one, list)]
        return False

    def _masked(self, value: Any) -> Any:
        """Outside the fields of a job."""
        if isinstance(value, Members):
            error = next((inner for name, inner in value if name in _ERRORS and inner), None)
            return Members((name, self._masked_member(name, inner, error)) for name, inner in value)
        if isinstance(value, list):
            return [self._masked(inner) for inner in value]
        return value

    def _masked_member(self, name: str, value: Any, error: str | None) -> Any:
        """A member of an object that has this error."""
        if name in _WITH_FIELDS:
            return self._masked_field(value, (name,))
        if value and (name in _ERRORS or _is_filter_with_error(name, value)):
            return MASKED
        if name == "text" and error:
            return _until_quote(value, error)
        return self._masked(value)

    def _masked_field(self, value: Any, path: Path) -> Any:
        return MASKED if self._is_hidden(path) else self._masked_within(value, path)

    def _masked_within(self, value: Any, path: Path) -> Any:
        """Below a path that is not hidden; elements of a list have its path."""
        if isinstance(value, Members):
            return Members((name, self._masked_field(inner, (*path, name))) for name, inner in value)
        if isinstance(value, list):
            return [self._masked_within(inner, path) if isinstance(inner, list) else inner for inner in value]
        return value

    def _is_hidden(self, path: Path) -> bool:
        is_hidden = self._known.get(path)
        if is_hidden is None:
            is_hidden = self._matches(path)
            self._known.put(path, is_hidden, sum(map(getsizeof, path)) + 8 * len(path))
        return is_hidden

    def _matches(self, path: Path) -> bool:
        return any(
            len(pattern) <= len(path)
            and all(part.fullmatch(name) for part, name in zip(pattern, path[-len(pattern) :], strict=True))
            for pattern in self._paths
        )


def _is_filter_with_error(name: str, value: Any) -> bool:
    """Whether it is the filter of a change, JSON in a string which may be cut off, that selects by an error."""
    return name == "filter" and '"error"' in value


def _until_quote(text: str, error: str) -> str:
    """The sentence up to its quote of the first line of an error."""
    quoted = error.strip().partition("\n")[0].strip()[:_QUOTED_FROM]
    before, found, _ = text.partition(quoted) if quoted else (text, "", "")
    return before + MASKED if found else MASKED


def _compiled(pattern: str) -> list[re.Pattern[str]]:
    return [
        re.compile(".*".join(map(re.escape, name.split("*"))), re.IGNORECASE | re.DOTALL) for name in pattern.split(".")
    ]
