"""Write `client/policy_options.py`, the policy of a job as keyword arguments: type checkers and editors read no tables.

python scripts/write_policy_options.py
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from deferd.contract.fields import NULL_IS_NONE, POLICY, Kind

FILE = Path(__file__).resolve().parents[1] / "app/deferd/client/policy_options.py"
TYPES = {
    Kind.SECONDS: "Seconds",
    Kind.COUNT: "int",
    Kind.BACKOFF: "Backoff",
    Kind.WINDOW: "OpeningHours",
    Kind.ON_END: "End",
    Kind.TEXT: "str",
}
HEAD = '''"""The policy of a job as keyword arguments: written by scripts/write_policy_options.py, not by hand."""

from __future__ import annotations

from typing import TypedDict

from deferd.client.request_body import Backoff, End, OpeningHours, Seconds


class PolicyOptions(TypedDict, total=False):
    """How a job is delivered and kept. Durations are seconds or a timedelta.

    An option that is left out or None comes from the topic's settings, then from the service's defaults; in a change it
    stays as it is. But None for {none} is a value: "none", or "no limit".
    """
'''


def render() -> str:
    """The text of the file."""
    names = [f"`{field.name}`" for field in POLICY if field.name in NULL_IS_NONE]
    head = HEAD.replace("{none}", f"{', '.join(names[:-1])} and {names[-1]}")
    lines = [_wrapped(line, "    ") if len(line) > 120 else line for line in head.splitlines()] + [""]
    for field in POLICY:
        lines.append(f"    {field.name}: {TYPES[field.kind]} | None")
        lines.append(_wrapped(f'    """{field.about.replace("`null`", "None")}"""', "    "))
    return "\n".join(lines) + "\n"


def _wrapped(line: str, indent: str) -> str:
    return textwrap.fill(line.strip(), 120, initial_indent=indent, subsequent_indent=indent)


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
