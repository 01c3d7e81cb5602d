"""Hides fields of jobs: what `--console-mask` names never leaves the server through the console."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from sys import getsizeof
from typing import Any

from deferd.console.json_text import Members, Number, compact, parse
from deferd.engine.bounded_cache import BoundedCache

MASKED = "•••••"
"""What is shown in place of a value."""
_WITH_FIELDS = frozenset({"body", "result", "headers"})
_TEXTS = frozenset({"error", "last_error", "text", "detail"})
_KNOWN_BYTES = 1024 * 1024
_SHORTEST_SECRET = 4
"""Shorter values are not searched for in texts: they are found everywhere."""
_MOST_SECRETS = 1000
"""Texts of a job with more hidden values are hidden whole: the search takes the time of all of them."""
_FOLLOWS = r"""[\\"'\])\s]*(?:=>|->|[:=])\s*"""
_VALUE = r"""(?:[{\[(][\s\S]*|"(?:[^"\\]|\\[\s\S])*[^\n]*|'[^']*[^\n]*|[^\n]*)"""
"""What may follow a name in a text: the rest of the line, what quotes enclose, and all that a bracket begins."""
_BEHIND_A_CUT = "…\"'.)]} \t\r\n"
"""What may follow a value that a text has cut."""
_MOST_CUTS = 20
_MOST_COMPARED = 2000
"""A text with more places where a secret may begin, for each of its ends, is hidden whole: all are compared."""

Path = tuple[str, ...]


class Masks:
    """Patterns of paths, such as `password` or `*.token`: names with dots between them, and `*` for any characters.

    A pattern matches the end of a path, in any case of letters; the path of a field begins with `body`, `result` or
    `headers` of its job, and elements of an array have that of the array. What is below a match is hidden too.

    Texts of errors are searched for the values that the job hides, also for one that the text's end has cut, and for
    the last names of the patterns, followed by `:`, `=`, `=>` or `->`: then the rest of the line is hidden.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns = tuple(patterns)
        self._paths = [_compiled(pattern) for pattern in self.patterns]
        names = "|".join(sorted({_in_text(pattern.rpartition(".")[2]) for pattern in self.patterns}))
        self._named = re.compile(f"((?:{names}){_FOLLOWS}){_VALUE}", re.IGNORECASE) if names else None
        self._known: BoundedCache[Path, bool] = BoundedCache(_KNOWN_BYTES)

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def response(self, content: bytes, more: bytes = b"") -> bytes:
        """JSON of the API with the fields of its jobs hidden. `more`: another one whose secrets its texts may quote."""
        if not self.patterns or not content:
            return content
        try:
            secrets = self.secrets_within(more)
            return compact(self._masked(parse(content), secrets)).encode()
        except (ValueError, RecursionError):
            return b"null"  # better nothing than what could not be searched

    def secrets_within(self, content: bytes) -> frozenset[str]:
        """The hidden values of the jobs in JSON of the API; none for empty content. Raises ValueError."""
        return frozenset(self._secrets_within(parse(content))) if content else frozenset()

    def hides(self, value: Any, name: str = "body") -> bool:
        """Whether some field of a job's body (`name`: its result or its headers) is hidden."""
        return any(True for _ in self._hidden(value, (name,)))

    def text(self, text: str, secrets: Collection[str] = ()) -> str:
        """A text without these secrets, and without values that follow a hidden name."""
        if len(secrets) > _MOST_SECRETS:
            return MASKED
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, MASKED)
        if secrets:
            if text.count("…") > _MOST_CUTS:
                return MASKED
            text = _without_cut_secrets(text, secrets)
        return text if self._named is None else self._named.sub(lambda found: found[1] + MASKED, text)

    def _masked(self, value: Any, secrets: frozenset[str]) -> Any:
        """Outside the fields of a job."""
        if isinstance(value, Members):
            own = frozenset(self._secrets_of(value))
            known = secrets | own if own else secrets
            return Members((name, self._masked_member(name, inner, known)) for name, inner in value)
        if isinstance(value, list):
            return [self._masked(inner, secrets) for inner in value]
        return value

    def _masked_member(self, name: str, value: Any, secrets: frozenset[str]) -> Any:
        if name in _WITH_FIELDS:
            return self._masked_field(value, (name,))
        if name in _TEXTS and isinstance(value, str):
            return self.text(value, secrets)
        return self._masked(value, secrets)

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

    def _hidden(self, value: Any, path: Path) -> Iterator[Any]:
        """The values that are hidden."""
        left = [(value, path)]
        while left:
            inner, at = left.pop()
            if self._is_hidden(at):
                yield inner
            elif isinstance(inner, Members):
                left += [(one, (*at, name)) for name, one in inner]
            elif isinstance(inner, list):
                left += [(one, at) for one in inner if isinstance(one, list)]

    def _secrets_of(self, job: Members) -> Iterator[str]:
        for name, value in job:
            if name in _WITH_FIELDS:
                for hidden in self._hidden(value, (name,)):
                    yield from _texts_in(hidden)

    def _secrets_within(self, value: Any) -> Iterator[str]:
        if isinstance(value, Members):
            yield from self._secrets_of(value)
            for name, inner in value:
                if name not in _WITH_FIELDS:
                    yield from self._secrets_within(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from self._secrets_within(inner)


def _texts_in(value: Any) -> Iterator[str]:
    left = [value]
    while left:
        inner = left.pop()
        if isinstance(inner, Members):
            left += [one for _, one in inner]
        elif isinstance(inner, list):
            left += inner
        elif isinstance(inner, str) and len(inner) >= _SHORTEST_SECRET:
            yield inner
            if not isinstance(inner, Number) and (escaped := compact(inner)[1:-1]) != inner:
                yield escaped


def _without_cut_secrets(text: str, secrets: Collection[str]) -> str:
    """The text without beginnings of secrets where it was cut: at its end, or before an ellipsis."""
    ends = {len(text), len(text.rstrip(_BEHIND_A_CUT)), *(at for at, sign in enumerate(text) if sign == "…")}
    ordered = sorted(secrets)
    longest = max(map(len, ordered))
    beginnings = {secret[:_SHORTEST_SECRET] for secret in ordered}
    places = [at for at in range(len(text)) if text[at : at + _SHORTEST_SECRET] in beginnings]
    if len(places) * len(ends) > _MOST_COMPARED:
        return MASKED
    pieces: list[str] = []
    done = 0
    for begin, end in sorted(_cuts(text, sorted(ends), places, ordered, longest)):
        if begin >= done:
            pieces += [text[done:begin], MASKED]
        done = max(done, end)
    return "".join([*pieces, text[done:]])


def _cuts(
    text: str, ends: Iterable[int], places: list[int], ordered: list[str], longest: int
) -> Iterator[tuple[int, int]]:
    """The longest beginning of a secret before each end, from four characters on: where it begins and ends.

    The first of the sorted secrets that is not less than a piece of text begins with it, if any does. So the time is
    hardly that of the number of secrets.
    """
    for end in ends:
        for at in places[bisect_left(places, end - longest) :]:
            if at > end - _SHORTEST_SECRET:
                break
            piece = text[at:end]
            found = bisect_left(ordered, piece)
            if found < len(ordered) and ordered[found].startswith(piece):
                yield at, end
                break


def _in_text(name: str) -> str:
    """An expression for a name in a text, which takes time linear in the text: a `*` never begins within a name."""
    first, *rest = [re.escape(part) for part in re.sub(r"\*+", "*", name).split("*")]
    if not rest:
        return rf"(?<!\w){first}"
    between = "".join(rf"(?>[\w-]*?{part})" for part in rest[:-1])
    return rf"(?<![\w-]){first}{between}[\w-]*{rest[-1]}"


def _compiled(pattern: str) -> list[re.Pattern[str]]:
    return [
        re.compile(".*".join(map(re.escape, name.split("*"))), re.IGNORECASE | re.DOTALL) for name in pattern.split(".")
    ]
