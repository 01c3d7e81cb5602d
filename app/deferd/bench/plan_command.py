"""Runs `deferd bench plan`, from its options to its exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from deferd.bench import plan_report
from deferd.bench.options import OptionsError
from deferd.bench.plan import plan, read_plan_options

DONE, USAGE = 0, 2


def run(flags: Mapping[str, Any], *, as_json: bool) -> int:
    """Print the plan for these flags (field name to text). 0: done. 2: the value of a flag is invalid."""
    try:
        options = read_plan_options(flags)
    except OptionsError as error:
        for problem in error.problems:
            print(f"deferd: {problem}", file=sys.stderr)  # noqa: T201 (the command's own words)
        return USAGE
    made = plan(options)
    if as_json:
        print(json.dumps({"load": options.model_dump(), "plan": made.as_json()}))  # noqa: T201 (the command's output)
    else:
        plan_report.show(options, made)
    return DONE
