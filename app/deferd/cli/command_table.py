"""The commands of `deferd`, by section of the help: where each is, and what it does. Nothing is imported for this."""

from __future__ import annotations

from typing import Final, NamedTuple


class Entry(NamedTuple):
    """A command: `deferd.cli.<module>` has a click command of its name, such as `deferd.cli.jobs.producing`."""

    module: str
    summary: str


SECTIONS: Final[dict[str, dict[str, Entry]]] = {
    "processes": {
        "serve": Entry("service.serve", "run the service"),
        "worker": Entry("jobs.worker", "run your worker until SIGTERM, SIGHUP or Ctrl-C"),
        "relay": Entry("outbox.relay", "send the outbox of your PostgreSQL to the service"),
    },
    "producers": {
        "put": Entry("jobs.producing", "put a job, or one for each line of standard input"),
        "get": Entry("jobs.producing", "show a job without changing it"),
        "wait": Entry("jobs.producing", "wait until a job has ended, and show its result"),
        "why": Entry("inspection.why", "explain why a job has not run"),
        "change": Entry("jobs.producing", "reschedule or change a delayed or ready job"),
        "cancel": Entry("jobs.cancelling", "cancel jobs by id, tag or state"),
        "reschedule": Entry("jobs.cancelling", "move the due times of many jobs"),
    },
    "consumers": {
        "pop": Entry("jobs.consuming", "take ready jobs, with their receipts"),
        "finish": Entry("jobs.consuming", "finish a job"),
        "release": Entry("jobs.consuming", "end a delivery, for another attempt of the job"),
        "touch": Entry("jobs.consuming", "extend the lease of a job"),
        "bury": Entry("jobs.consuming", "make a job dead until it is redriven"),
    },
    "topics": {
        "topics": Entry("topics.topics", "list all topics with their counts"),
        "topic": Entry("topics.topics", "show a topic, or set the defaults of its jobs"),
        "groups": Entry("topics.topics", "list the groups of a topic with their counts"),
        "jobs": Entry("topics.topics", "list the jobs of a topic"),
        "dead": Entry("inspection.why", "show dead jobs by error"),
        "redrive": Entry("topics.topics", "make dead jobs ready again"),
        "purge": Entry("topics.topics", "remove all jobs of a topic, or those in one state"),
        "pause": Entry("topics.topics", "stop handing out the jobs of a topic"),
        "resume": Entry("topics.topics", "hand out the jobs of a topic again"),
        "push": Entry("topics.push", "send the jobs of a topic to a URL: set, get, remove, test, listen"),
        "batches": Entry("topics.batches", "list all batches, which put a job when all their jobs have ended"),
        "batch": Entry("topics.batches", "show, set, seal or delete a batch"),
        "schedules": Entry("topics.schedule_commands", "jobs that are put again and again: list, put, preview, sync"),
        "calendars": Entry("topics.schedule_commands", "list all calendars, opening hours under names"),
        "calendar": Entry("topics.schedule_commands", "show, set or delete a calendar"),
    },
    "tools": {
        "bench": Entry("inspection.bench", "measure a running deployment, to size it"),
        "key": Entry("service.key", "make, list and revoke the keys of a service"),
        "cipher": Entry("jobs.cipher", "make keys for bodies that only your programs can read"),
        "now": Entry("inspection.now", "show what needs a person, and what is due next"),
        "system": Entry("inspection.now", "show the store, the timers, the settings, and what your key allows"),
        "upgrade": Entry("inspection.now", "show which releases use the store, and finish an upgrade"),
        "tail": Entry("inspection.activity", "print what happens to jobs, as it happens"),
        "consumers": Entry("inspection.now", "list who pops and who holds jobs"),
        "tasks": Entry("jobs.cancelling", "show or stop actions on many jobs in the background"),
        "activity": Entry("inspection.activity", "list what people and keys changed"),
        "forecast": Entry("inspection.charts", "draw how many delayed jobs come due when"),
        "history": Entry("inspection.charts", "draw what happened in a topic"),
        "audit": Entry("inspection.audit", "check the store for lost or misplaced jobs, and repair it"),
        "backup": Entry("service.store_copies", "back up the data of an embedded store"),
        "restore": Entry("service.store_copies", "restore a backup into a data directory"),
        "copy": Entry("service.store_copies", "copy all jobs into another store, and compare the counts"),
        "outbox": Entry("outbox.outbox", "make the outbox in your PostgreSQL, and look at it"),
        "doctor": Entry("inspection.doctor", "check whether the service can be used from here"),
        "config": Entry("service.config", "show the settings in effect and the source of each"),
        "completion": Entry("main", "print a completion script for your shell"),
    },
}
COMMANDS: Final = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
ALIASES: Final = {
    "delete": "cancel",
    "remove": "cancel",
    "rm": "cancel",
    "ack": "finish",
    "nack": "release",
}
"""Aliases of commands, as other tools name them."""
