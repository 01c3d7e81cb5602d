"""Shows what a redrive, a purge or a command on many jobs would do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deferd.cli.framework import output

if TYPE_CHECKING:
    from deferd.client import Preview


def show(preview: Preview, *, as_json: bool) -> None:
    """Print the count, the cutoff with which the command acts on nothing else, and samples."""
    if as_json:
        output.json_line(preview.fields)
        return
    noun = "job matches" if preview.matched == 1 else "jobs match"
    more = "" if preview.complete else ", and there may be more"
    cutoff = output.rfc3339(preview.cutoff)
    output.line(f"{preview.matched:,} {noun}{more}; to act on no other: --cutoff {cutoff}")
    for sample in preview.samples:
        output.line(f"{sample.topic}/{sample.id} ({sample.state.value})")
