"""Write measured figures into README and `docs/`, from `docs/figures.json`, which the benchmarks write.

python scripts/write_figures.py

A page has a figure as `<!--late-p99-->3.2 to 13 ms<!--/-->`. `docs/benchmarks.md` lists all of them.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FIGURES: dict[str, dict[str, Any]] = json.loads((ROOT / "docs/figures.json").read_text(encoding="utf-8"))
MARKED = re.compile(r"<!--([a-z0-9-]+)-->.*?<!--/-->")
_LIST = re.compile(r"(\| name \| figure \|.*\n\|---.*\n)(?:\|.*\n)*")


def render(page: Path) -> str:
    """The text of the page."""
    text = MARKED.sub(lambda found: f"<!--{found[1]}-->{shown(FIGURES[found[1]])}<!--/-->", page.read_text("utf-8"))
    return _LIST.sub(lambda found: found[1] + "".join(map(_row, sorted(FIGURES))), text)


def shown(figure: dict[str, Any]) -> str:
    """A figure with its unit, as a range where runs differ."""
    ends = [_rounded(end(figure["values"]), figure["digits"]) for end in (min, max)]
    unit = figure["unit"]
    return " to ".join(dict.fromkeys(ends)) + ("" if unit.startswith("/") else " ") * bool(unit) + unit


def _rounded(value: float, digits: int) -> str:
    """The value with so many significant digits."""
    rounded = float(f"{value:.{digits - 1}e}")
    places = digits - 1 - (math.floor(math.log10(abs(rounded))) if rounded else 0)
    return f"{rounded:,.{max(places, 0)}f}"


def _row(name: str) -> str:
    figure = FIGURES[name]
    machine = figure["machine"]
    on = ", ".join([f"{machine['cores']} cores", *filter(None, (machine["cpu"], machine["store"]))])
    if machine["python"]:
        on += f", Python {machine['python']}"
    measured = f"{figure['measured']}, {figure['commit']}" if figure["measured"] else figure["note"]
    return f"| `{name}` | {shown(figure)} | {measured} | {on} | `{figure['command']}` |\n"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(render(page), encoding="utf-8")
