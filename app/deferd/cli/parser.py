"""The client's commands with their help, each declared once; their flags are in `deferd.cli.flags`.

Importing this imports nothing of what the commands do, so that help and completion cost little.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from deferd.cli import exit_codes, flags

PRODUCERS: Final = "producers"
CONSUMERS: Final = "consumers"
TOPICS: Final = "topics"
PROCESSES: Final = "processes"
TOOLS: Final = "tools"


@dataclass(frozen=True)
class Command:
    """One command: `function` of the module `deferd.cli.<module>` carries it out."""

    name: str
    group: str
    about: str
    more: str
    examples: tuple[str, ...]
    module: str
    function: str
    add_flags: Callable[[argparse.ArgumentParser], None]

    def describe(self, parser: argparse.ArgumentParser) -> None:
        """Give the parser the command's help and flags."""
        aliases = ", ".join(alias for alias, name in ALIASES.items() if name == self.name)
        text = (self.more or f"{self.about.capitalize()}.") + (f" Aliases: {aliases}." if aliases else "")
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.description = textwrap.fill(text, 78)
        parser.epilog = "examples:\n" + "".join(f"  {example}\n" for example in self.examples) + "\n" + EXIT_CODES
        self.add_flags(parser)


ALIASES: Final = {
    "delete": "cancel",
    "remove": "cancel",
    "rm": "cancel",
    "get": "show",
    "look": "show",
    "ack": "finish",
    "nack": "release",
}
"""Words for the same commands, as other tools have them."""
EXIT_CODES: Final = textwrap.fill(
    "exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in exit_codes.MEANINGS.items()),
    78,
    subsequent_indent="  ",
)


COMMANDS: Final = {
    command.name: command
    for command in (
        Command(
            "put",
            PRODUCERS,
            "put a job, or one for each line of standard input",
            "Put a job. With - as BODY each line of standard input (NDJSON) is a job's body, or with --jobs a whole "
            "job; any number of lines goes through, in batches. A line that is refused ends it: all lines "
            "before it are put.",
            (
                """deferd put orders.close '{"order": 1042}' --id order-1042 --delay 30m""",
                """deferd put mail.remind '"Ada"' --run-at 2030-01-31T09:30:00Z --backoff schedule:2m,10m,1h""",
                "deferd put orders.close - --delay 30m < bodies.ndjson",
                """echo '{"id": "o-1", "body": {"n": 1}, "delay": 60}' | deferd put orders.close - --jobs""",
                "deferd put orders.close - --jobs --on-conflict keep --json < jobs.ndjson > results.ndjson",
            ),
            "producing",
            "put",
            flags.of_put,
        ),
        Command(
            "show",
            PRODUCERS,
            "show a job, changing nothing",
            "",
            ("deferd show orders.close order-1042", "deferd show orders.close order-1042 --json | jq .state"),
            "producing",
            "show",
            flags.of_show,
        ),
        Command(
            "change",
            PRODUCERS,
            "reschedule or change a delayed or ready job",
            "",
            ("deferd change orders.close order-1042 --delay 1h", 'deferd change mail.remind r-7 \'{"to": "Bob"}\''),
            "producing",
            "change",
            flags.of_change,
        ),
        Command(
            "cancel",
            PRODUCERS,
            "cancel jobs",
            "Cancel jobs in any state. `was` tells if it was in time: reserved means that a consumer had it already.",
            ("deferd cancel orders.close order-1042", "deferd cancel notices n-23 n-28 n-29 --refuse-reserved"),
            "producing",
            "cancel",
            flags.of_cancel,
        ),
        Command(
            "pop",
            CONSUMERS,
            "take ready jobs, with their receipts",
            "Take ready jobs. They are yours until their lease ends: finish, release, touch or bury them.",
            ("deferd pop orders.close", "deferd pop urgent,normal --count 10 --wait 0 --json"),
            "consuming",
            "pop",
            flags.of_pop,
        ),
        Command(
            "finish",
            CONSUMERS,
            "say that a job is done",
            "",
            (
                "deferd finish orders.close order-1042",
                "deferd finish orders.close order-1042 --receipt 29a1e0c3.1 --result '\"closed\"'",
            ),
            "consuming",
            "finish",
            flags.of_finish,
        ),
        Command(
            "release",
            CONSUMERS,
            "give a job back, for another attempt",
            "",
            ("deferd release orders.close order-1042 --delay 5m --error 'the shop is away'",),
            "consuming",
            "release",
            flags.of_release,
        ),
        Command(
            "touch",
            CONSUMERS,
            "extend the lease of a job",
            "",
            ("deferd touch orders.close order-1042", "deferd touch orders.close order-1042 --ttr 10m"),
            "consuming",
            "touch",
            flags.of_touch,
        ),
        Command(
            "bury",
            CONSUMERS,
            "give a job up: it is dead until redriven",
            "",
            ("deferd bury orders.close order-1042 --error 'no such order'",),
            "consuming",
            "bury",
            flags.of_bury,
        ),
        Command(
            "topics",
            TOPICS,
            "list all topics with their counts",
            "",
            ("deferd topics", "deferd topics --json | jq -r 'select(.counts.dead > 0).topic'"),
            "topics",
            "topics",
            flags.common,
        ),
        Command(
            "topic",
            TOPICS,
            "show a topic, or set the defaults of its jobs",
            "Show a topic. With --ttr and the like set these of its settings and leave the others; they count for jobs "
            "put from now on.",
            (
                "deferd topic orders.close",
                "deferd topic orders.close --ttr 2m --max-attempts 5 --backoff fixed:30",
                'deferd topic orders.close --set \'{"ttr": 120, "max_jobs": 100000}\'',
            ),
            "topics",
            "topic",
            flags.of_topic,
        ),
        Command(
            "jobs",
            TOPICS,
            "list the jobs of a topic",
            "",
            ("deferd jobs orders.close --state dead", "deferd jobs orders.close --all --json | jq -r .id"),
            "topics",
            "jobs",
            flags.of_jobs,
        ),
        Command(
            "ls",
            TOPICS,
            "list all topics, or the jobs of one",
            "As topics, or with TOPIC as jobs.",
            ("deferd ls", "deferd ls orders.close --state dead"),
            "topics",
            "list_either",
            flags.of_ls,
        ),
        Command(
            "redrive",
            TOPICS,
            "make dead jobs ready again",
            "",
            ("deferd redrive orders.close", "deferd redrive orders.close order-1042 order-1043"),
            "topics",
            "redrive",
            flags.of_redrive,
        ),
        Command(
            "purge",
            TOPICS,
            "remove all jobs of a topic, or those in one state",
            "Remove all jobs of a topic, or those in one state, for good. Asks first. It waits up to 10 minutes for "
            "the answer unless --timeout says otherwise.",
            ("deferd purge orders.close --state dead", "deferd purge orders.close --yes"),
            "topics",
            "purge",
            flags.of_purge,
        ),
        Command(
            "pause",
            TOPICS,
            "stop handing out the jobs of a topic",
            "",
            ("deferd pause orders.close",),
            "topics",
            "pause",
            flags.of_pause_or_resume,
        ),
        Command(
            "resume",
            TOPICS,
            "hand out the jobs of a topic again",
            "",
            ("deferd resume orders.close",),
            "topics",
            "resume",
            flags.of_pause_or_resume,
        ),
        Command(
            "worker",
            PROCESSES,
            "run a worker of yours until SIGTERM, SIGHUP or Ctrl-C",
            "Import MODULE, with the current folder on the path, and run the deferd.Worker that it calls WORKER, until "
            "SIGTERM, SIGHUP or Ctrl-C. --url, else DEFERD_URL, takes precedence over the URL in the program, and so "
            "does the key; the flags reach the program as these variables.",
            (
                "deferd worker shop.jobs:worker",
                "DEFERD_URL=http://deferd:8000 deferd worker shop.jobs:worker --log-format json",
            ),
            "worker",
            "work",
            flags.of_worker,
        ),
        Command(
            "top",
            TOOLS,
            "watch the topics: counts, rates, oldest, next due",
            "Watch the topics until q or Ctrl-C; s sorts in another way. Where there is no terminal, one look is "
            "printed. Rates are what the services at --url count: behind a load balancer, name each replica.",
            ("deferd top", "deferd top --url http://a:8000,http://b:8000 --sort ready", "deferd top --json | jq ."),
            "top",
            "top",
            flags.of_top,
        ),
        Command(
            "audit",
            TOOLS,
            "check that no job is lost or in two places; mend",
            "Check what the store holds of each topic, beside the load: every job in exactly one place, all that were "
            "ever put accounted for. Without TOPIC it also looks for topics that no list shows. With --repair what is "
            "found is mended, and checked again. It takes a key with scope admin.",
            ("deferd audit", "deferd audit orders.close --repair", "deferd audit --json | jq 'select(.clean | not)'"),
            "audit",
            "audit",
            flags.of_audit,
        ),
        Command(
            "backup",
            TOOLS,
            "back up the data of an embedded store",
            "Copy the data of an embedded store into DIR, which must be new or empty. It takes nothing from a running "
            "service, and everything that was acknowledged before it began is in the copy. The copy is loaded once, to "
            "count its jobs and to see that it works.",
            ("deferd backup /backups/deferd-1", "deferd backup /backups/deferd-1 --data-dir /var/lib/deferd --json"),
            "backup",
            "backup",
            flags.of_backup,
        ),
        Command(
            "restore",
            TOOLS,
            "put a backup into a data folder",
            "Put the backup in DIR into a data folder that no service uses. It is checked and loaded first. Jobs are "
            "as they were then: one that was finished or cancelled since runs again.",
            (
                "deferd restore /backups/deferd-1 --data-dir /var/lib/deferd",
                "deferd restore /backups/deferd-1 --force",
            ),
            "restore",
            "restore",
            flags.of_restore,
        ),
        Command(
            "copy",
            TOOLS,
            "copy all jobs into another store, and count them",
            "Copy everything that deferd keeps in one store into an empty one: jobs in every state, leases, receipts, "
            "settings. A store is a URL, as of serve --redis-url, or the data folder of an embedded one. Stop the "
            "services on both first. Afterwards serve only the target: jobs in both would run twice.",
            (
                "deferd copy --from ./deferd-data --to redis://db.example:6379",
                "deferd copy --from redis://a:6379 --to redis+cluster://b:7000,b:7001 --shards 16",
                "DEFERD_COPY_TO=redis://:password@db.example:6379 deferd copy --from ./deferd-data --json",
            ),
            "copy",
            "copy",
            flags.of_copy,
        ),
        Command(
            "config",
            TOOLS,
            "show the settings in effect, and where each is from",
            "Show the settings of `serve` and of the client's commands as they are in effect here, each with its "
            "source: flag, env or default. It takes the flags of both. Secrets are not shown.",
            ("deferd config", "DEFERD_PORT=9000 deferd config --workers 4 --json"),
            "config",
            "config",
            flags.of_config,
        ),
        Command(
            "completion",
            TOOLS,
            "print a completion script for your shell",
            "",
            ("source <(deferd completion bash)", "deferd completion zsh > ~/.zfunc/_deferd"),
            "completion",
            "completion",
            flags.of_completion,
        ),
    )
}
"""The client's commands by name, in the order of the help."""
