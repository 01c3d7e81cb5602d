"""Three kinds of charts as SVG text: a histogram, lines over a logarithmic axis, and bars side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 760, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 48, 52
_COLOURS = ("#1f6feb", "#bf5b04", "#1a7f37", "#8250df")
_INK, _FAINT = "#24292f", "#d0d7de"


def histogram(title: str, x_label: str, y_label: str, values: Sequence[float], *, width: float, most: float) -> str:
    """Bars of `width` from 0 to `most`; the last one holds all that is above. Heights are percent of the values."""
    count = math.ceil(most / width)
    heights = [0.0] * (count + 1)
    for value in values:
        heights[min(int(max(value, 0) / width), count)] += 100 / len(values)
    top = _round_up(max(heights))
    step = (_WIDTH - _LEFT - _RIGHT) / (count + 1)
    pieces = [*_frame(title, x_label, y_label), *_y_axis(top, "{:g} %".format)]
    for number, height in enumerate(heights):
        length = height / top * (_HEIGHT - _TOP - _BOTTOM)
        pieces.append(
            f'<rect x="{_LEFT + number * step + 1:.1f}" y="{_HEIGHT - _BOTTOM - length:.1f}" width="{step - 2:.1f}" '
            f'height="{length:.1f}" fill="{_COLOURS[0]}"/>'
        )
        if number % 2 == 0 or number == count:
            name = f"{number * width:g}" if number < count else f"≥ {most:g}"
            pieces.append(_text(_LEFT + number * step + (step / 2 if number == count else 0), _HEIGHT - 34, name))
    return _document(pieces)


def lines(title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """One line for each of `series`, of (x, y) points; x is shown logarithmically, y from 0."""
    points = [point for line in series.values() for point in line]
    low, high = (limit(math.log10(x) for x, _ in points) for limit in (min, max))
    top = _round_up(max(y for _, y in points))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - low) / (high - low)
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM)

    pieces = [*_frame(title, x_label, y_label), *_y_axis(top, "{:,.0f}".format)]
    pieces += (_text(place(x, 0)[0], _HEIGHT - 34, _short(x)) for x in sorted({x for x, _ in points}))
    for number, (name, line) in enumerate(series.items()):
        colour = _COLOURS[number]
        corners = [place(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
        pieces.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        pieces += (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in corners)
        pieces.append(_legend(number, name))
    return _document(pieces)


def bars(title: str, y_label: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """For each of `groups` one bar for each of its names, with its height above it; y from 0."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    top = _round_up(max(height for group in groups.values() for height in group.values()))
    room = (_WIDTH - _LEFT - _RIGHT) / len(groups)
    width = room / (len(names) + 1)
    pieces = [*_frame(title, "", y_label), *_y_axis(top, "{:,.0f}".format)]
    pieces += (_legend(number, name) for number, name in enumerate(names))
    for number, (group_name, group) in enumerate(groups.items()):
        middle = _LEFT + (number + 0.5) * room
        pieces.append(_text(middle, _HEIGHT - 34, group_name))
        for at, (name, height) in enumerate(group.items()):
            length = height / top * (_HEIGHT - _TOP - _BOTTOM)
            left, y = middle + (at - len(group) / 2) * width, _HEIGHT - _BOTTOM - length
            pieces.append(
                f'<rect x="{left + 2:.1f}" y="{y:.1f}" width="{width - 4:.1f}" height="{length:.1f}" '
                f'fill="{_COLOURS[names.index(name)]}"/>'
            )
            pieces.append(_text(left + width / 2, y - 4, f"{height:,.0f}"))
    return _document(pieces)


def _legend(number: int, name: str) -> str:
    return _text(_LEFT + 10 + 150 * number, 42, f"● {name}", anchor="start", colour=_COLOURS[number])


def _frame(title: str, x_label: str, y_label: str) -> Iterable[str]:
    yield f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
    yield _text(_LEFT, 22, title, anchor="start", size=15)
    yield _text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, x_label)
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    yield f'<g transform="rotate(-90 14 {middle})">{_text(14, middle, y_label)}</g>'


def _y_axis(top: float, write: Callable[[float], str]) -> Iterable[str]:
    for fifth in range(6):
        y = _HEIGHT - _BOTTOM - fifth / 5 * (_HEIGHT - _TOP - _BOTTOM)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="{_FAINT}"/>'
        yield _text(_LEFT - 6, y + 4, write(top * fifth / 5), anchor="end")


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12, colour: str = _INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
    )


def _document(pieces: Iterable[str]) -> str:
    body = "\n".join(pieces)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'font-family="system-ui, sans-serif">\n{body}\n</svg>\n'
    )


def _round_up(value: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)


def _short(count: float) -> str:
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:g} {sign}"
    return f"{count:g}"
