"""The commands `why` and `dead`: why a job has not run, and dead jobs by error."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from deferd.cli.framework import exit_codes, output, values
from deferd.cli.framework.options import client_command, job_arguments, topics_argument
from deferd.cli.framework.output import Cells, Column

if TYPE_CHECKING:
    from deferd.client import Client

_DEAD_CELLS: Cells[DeadGroup] = {
    Column("COUNT", right=True): lambda group: output.number(group.count),
    Column("TOPIC"): lambda group: group.topic,
    Column("REASON"): lambda group: group.reason,
    Column("LAST"): lambda group: output.from_now(group.last_at),
    Column("ERROR", cut=True): lambda group: group.error or "-",
    Column("SAMPLE", cut=True): lambda group: ", ".join(group.samples[:1]),
}


@client_command(
    "deferd why orders.close order-1042",
    "deferd why orders.close order-1042 --json | jq -r .reasons[0].code",
    json="print JSON",
)
@job_arguments
def why(topic: str, id: str, client: Client, as_json: bool) -> int:
    """Explain why a job has not run: what holds it back now comes first. The exit code is 3 when there is no such
    job.
    """
    explanation = client.why(topic, id)
    if as_json:
        output.json_line(explanation.fields)
    else:
        state = "is not there" if explanation.state is None else f"is {explanation.state.value}"
        if explanation.shelved:
            state += ", and was on the shelf"
        output.line(f"{topic}/{id} {state}")
        for reason in explanation.reasons:
            output.line(f"  {reason.code}: {output.printable(reason.text)}")
    return exit_codes.REFUSED if explanation.state is None else exit_codes.DONE


if TYPE_CHECKING:
    from deferd.client import Client, DeadGroup


@client_command(
    "deferd dead",
    "deferd dead 'mail.*' --since 2030-01-31T02:00Z",
    "deferd dead --json | jq .groups[0]",
    json="print JSON",
)
@topics_argument
@click.option("--since", type=values.instant, metavar="INSTANT", help="only jobs that died then or later")
@click.option("--limit", type=values.count_from_1, metavar="N", help="most groups, up to 1000; default 100")
@click.option("--look-at", type=values.count_from_1, metavar="N", help="most jobs to read, up to 100000; default 5000")
def dead(topics: tuple[str, ...], since: datetime | None, client: Client, as_json: bool, **limits: Any) -> None:
    """Show dead jobs by topic, reason and error: the largest groups first. Numbers and quoted texts of errors count as
    equal, and are shown as *.
    """
    found = client.dead_errors(topics=topics or None, since=since, **limits)
    if as_json:
        output.json_line(found.fields)
        return
    empty = "no job is dead" if since is None else "no job has died since"
    output.json_or_table(found.groups, _DEAD_CELLS, empty, as_json=False)
    if found.groups and not found.complete:
        output.complain(f"{found.looked_at:,} of {found.dead:,} dead jobs were read: --look-at reads more")
