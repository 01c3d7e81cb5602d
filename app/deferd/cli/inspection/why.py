"""The command `why`: why a job has not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deferd.cli.framework import exit_codes, output
from deferd.cli.framework.options import client_command, job_arguments

if TYPE_CHECKING:
    from deferd.client import Client


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
        output.line(f"{topic}/{id} {state}")
        for reason in explanation.reasons:
            output.line(f"  {reason.code}: {output.printable(reason.text)}")
    return exit_codes.REFUSED if explanation.state is None else exit_codes.DONE
