"""Templates, the filters that they share, and static files."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from deferd.console.api_calls import page_path
from deferd.contract.counted import counted
from deferd.contract.encrypted_values import key_of

REGION = "region_"
"""The beginning of the names of the blocks that can be rendered by themselves: see `render_regions`."""
_INSTANTS = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z)")
_BIDI_CONTROLS = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_TAG_OR_BIDI = re.compile(f"(<[^>]*>)|[{_BIDI_CONTROLS}]")
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400


class UnknownRegion(LookupError):
    """A template does not have this region, or has it twice."""


class Renderer:
    """Renders templates of `console/templates`; they are compiled once, when they are first used.

    A template that uses a name without a value fails. Macros of `ui.html` are there as `ui`. All pages show the name of
    the service's `environment`, if it has one, in this color.
    """

    def __init__(self, environment: str | None = None, color: str = "gray") -> None:
        self._shown_on_all_pages = {
            "environment": environment,
            "environment_color": color,
            "site": "deferd" if environment is None else f"{environment} · deferd",
        }

    @cached_property
    def _environment(self) -> Environment:
        made = Environment(
            loader=FileSystemLoader(str(files("deferd.console") / "templates")),
            autoescape=True,
            undefined=StrictUndefined,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters = (
            number,
            counted,
            duration,
            instant,
            absolute,
            from_now,
            timed,
            pretty_json,
            compact_json,
            due,
            plain,
            readable,
            shortened,
            tojson_text,
            size,
        )
        made.filters.update({one.__name__: one for one in filters})
        functions = (page_path, count_cell, sparkline_cell, alert_link)
        made.globals.update({one.__name__: one for one in functions})
        made.globals.update(self._shown_on_all_pages)
        made.globals["ui"] = made.get_template("ui.html").module
        return made

    def render(self, template: str, values: dict[str, Any]) -> str:
        """A whole page."""
        return without_bidi_controls(self._environment.get_template(template).render(values))

    def render_regions(self, template: str, regions: Sequence[str], values: dict[str, Any]) -> str:
        """The block `region_<region>` of the first alone; htmx puts those of the others into the elements of their ids.

        Raises UnknownRegion, also for a region that is named twice.
        """
        loaded: Template = self._environment.get_template(template)
        if len(set(regions)) < len(regions) or not all(REGION + region in loaded.blocks for region in regions):
            raise UnknownRegion(",".join(regions))
        first, *others = ("".join(loaded.blocks[REGION + region](loaded.new_context(values))) for region in regions)
        named = zip(regions[1:], others, strict=True)
        all_regions = (first, *(f'<div id="{name}" hx-swap-oob="innerHTML">{text}</div>' for name, text in named))
        return without_bidi_controls("".join(all_regions))


def without_bidi_controls(page: str) -> str:
    """A page that shows characters which reorder text as escapes of JSON: `\\u202e` would show a body as another one.

    Attributes keep them: forms send what they have.
    """
    if not any(character in page for character in _BIDI_CONTROLS):
        return page
    return _TAG_OR_BIDI.sub(lambda found: found[1] or f"\\u{ord(found[0]):04x}", page)


def etag_of(text: str) -> str:
    """An entity tag for this text."""
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:24]}"'


def number(value: float | None) -> str:
    """A number with thousands separated; a dash for none."""
    if value is None:
        return "–"  # noqa: RUF001 (a dash of the width of a digit)
    return f"{int(value):,}" if value == int(value) else f"{value:,.1f}"


def count_cell(value: int, state: str) -> Markup:
    """A cell with a number of jobs in a state. Tables have thousands of them, and a macro takes three times as long."""
    kind = f"of-{escape(state)}" if value else "zero"
    return Markup(f'<td class="num {kind}">{int(value):,}</td>')  # noqa: S704 (both are escaped or numbers)


_SPARK_STEP, _SPARK_HEIGHT = 4, 14
"""Pixels: for 10 minutes, and for the most jobs."""
_HOUR_BACK = 13
"""Which place from the end of 5 minutes, the last of which are not over, an hour ago has."""


def sparkline_cell(history: Sequence[int | None] | None, present: int) -> Markup:
    """A cell with a line of how many jobs were ready lately, and are at present; empty where nothing is known.

    `history` has a number for every 5 minutes, of which the line has the larger one of two. It is relative to the most,
    and rounded to pixels, so that a page of such lines stays small.
    """
    known = [] if history is None else [jobs for jobs in history if jobs is not None]
    if history is None or not known:
        return Markup("<td></td>")
    most = max(present, *known)
    pairs = zip(history[::2], history[1::2], strict=False)
    levels = [max((jobs for jobs in pair if jobs is not None), default=None) for pair in pairs]
    first = next((place for place, jobs in enumerate(levels) if jobs is not None), len(levels))
    heights = [round((jobs or 0) * _SPARK_HEIGHT / most) if most else 0 for jobs in (*levels[first:], present)]
    path, level = f"M{_SPARK_STEP * first} {_SPARK_HEIGHT + 1 - heights[0]}", 0
    for before, height in itertools.pairwise(heights):
        if height == before:
            level += _SPARK_STEP
            continue
        path += f"{f'h{level}' if level else ''}l{_SPARK_STEP} {before - height}"
        level = 0
    path += f"h{level}" if level else ""
    earlier = history[-_HOUR_BACK] if len(history) >= _HOUR_BACK else None
    text = f"{present:,} ready, {number(earlier)} an hour ago, at most {most:,}" if most else "none was ready"
    return Markup(f'<td><svg role="img"><title>{text}</title><path d="{path}"/></svg></td>')  # noqa: S704 (only numbers)


def duration(seconds: float | None) -> str:
    """A length of time in at most two units, as `4 min 10 s`; a dash for none."""
    if seconds is None:
        return "–"  # noqa: RUF001 (as above)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, unit_s, name, small_s in (
        ("d", _DAY_S, "h", _HOUR_S),
        ("h", _HOUR_S, "min", _MINUTE_S),
        ("min", _MINUTE_S, "s", 1),
    ):
        if whole >= unit_s:
            rest = whole % unit_s // small_s
            return f"{whole // unit_s} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{whole} s"


def instant(value: str | datetime | None, empty: str = "–") -> Markup:  # noqa: RUF001 (as above)
    """An instant as `<time>`, in UTC. The browser shows it relative to now, by the store's clock.

    So the text that the server sends does not change while time passes, and an unchanged region stays unchanged.
    """
    if value is None:
        return escape(empty)
    at = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    at = at.astimezone(UTC)
    text = at.isoformat(sep=" ", timespec="milliseconds")
    # Markup.format would take ten times as long, and a datetime writes nothing to escape.
    return Markup(f'<time datetime="{text[:10]}T{text[11:23]}Z" data-relative>{text[:19]} UTC</time>')  # noqa: S704 (as above)


def absolute(value: str | datetime) -> Markup:
    """As `instant`, but always a date and a time."""
    return Markup(instant(value).replace(" data-relative", " data-absolute", 1))  # noqa: S704 (as above)


def from_now(value: str | datetime) -> Markup:
    """As `instant`, but always relative to now."""
    return Markup(instant(value).replace(" data-relative", " data-relative data-from-now", 1))  # noqa: S704 (as above)


def timed(text: str) -> Markup:
    """A text, in which the browser shows instants in the reader's zone, and names it."""
    return Markup("").join(_zoned(part) if place % 2 else part for place, part in enumerate(_INSTANTS.split(text)))


def _zoned(text: str) -> str:
    try:
        return Markup(absolute(text).replace(" data-absolute", " data-absolute data-zoned", 1))  # noqa: S704 (as above)
    except ValueError:  # people and programs write what looks like an instant
        return text


def pretty_json(value: Any) -> str:
    """A value as indented JSON."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def compact_json(value: Any) -> str:
    """A short value as JSON in one line."""
    return json.dumps(value, ensure_ascii=False)


def due(value: str | None, empty: str = "–") -> Markup:  # noqa: RUF001 (as above)
    """As `instant`, of the next due time: just past it, that is now, since the page may be seconds old."""
    return Markup(instant(value, empty).replace(" data-relative", " data-relative data-due", 1))  # noqa: S704 (as above)


def tojson_text(value: Any) -> str:
    """A value as JSON for an attribute, which the template escapes."""
    return json.dumps(value, separators=(",", ":"))


def plain(value: Any) -> str:
    """A setting as a person would write it; a dash for none."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "–"  # noqa: RUF001 (as above)
    if isinstance(value, int | float):
        return number(value)
    return str(value or "–")  # noqa: RUF001 (as above)


def size(bytes_: int | None) -> str:
    """A number of bytes, as `1.2 GB`; a dash for none."""
    if bytes_ is None:
        return "–"  # noqa: RUF001 (as above)
    value = float(bytes_)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def alert_link(alert: dict[str, Any]) -> str:
    """The page to go to from this alert."""
    topic = alert.get("topic")
    match alert["code"]:
        case "dying" if topic is not None:
            return f"console/dead?{urlencode({'topics': topic})}"
        case "failing" if topic is not None:
            return f"{page_path('console', 'topics', topic, 'jobs')}?state=delayed&retrying=1"
        case "schedules_missed" if alert.get("schedule"):
            return page_path("console", "schedules", alert["schedule"])
    return "console/system" if topic is None else page_path("console", "topics", topic)


def readable(text: str) -> str:
    """A header or an error as people read it, also one that only the application can read."""
    key = key_of(text)
    return text if key is None else f"encrypted with key {key}"


def shortened(text: str, length: int = 120) -> str:
    """The beginning of a long text."""
    return text if len(text) <= length else text[: length - 1] + "…"


FOLDER = Path(str(files("deferd.console") / "static"))
_MEDIA_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
"""Files of other kinds, such as licences, are not served."""


class _StaticFile(NamedTuple):
    """A file's media type and content, and the content compressed once."""

    media_type: bytes
    content: bytes
    compressed: bytes


class _StaticFiles(NamedTuple):
    """The files of the console, below a folder whose name is a hash of all of them: browsers may keep them for ever.

    `version` is the name of the folder. Within it names stay as they are, so modules can import others.
    """

    version: str
    files: Mapping[str, _StaticFile]


@lru_cache(maxsize=1)
def static_files() -> _StaticFiles:
    """All files, read and compressed at the first use."""
    found: dict[str, _StaticFile] = {}
    digest = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*")):
        media_type = _MEDIA_TYPES.get(path.suffix)
        if media_type is not None:
            name, content = path.relative_to(FOLDER).as_posix(), path.read_bytes()
            digest.update(b"%b\0%d\0%b" % (name.encode(), len(content), content))
            found[name] = _StaticFile(media_type, content, gzip.compress(content, 9, mtime=0))
    return _StaticFiles(digest.hexdigest()[:16], MappingProxyType(found))
