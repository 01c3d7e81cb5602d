"""The flags of the client's commands: each function gives a parser those of one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Final

from deferd.cli import values
from deferd.cli.connection import SETTINGS
from deferd.contract.limits import REPLICAS_MAX

STATES: Final = ("delayed", "ready", "reserved", "dead", "finished")
SHELLS: Final = ("bash", "zsh", "tcsh")
DURABILITIES: Final = ("memory", "fsync", *(f"replicated:{count}" for count in range(1, REPLICAS_MAX + 1)))


def add_connection(parser: argparse.ArgumentParser, names: Iterable[str] = tuple(SETTINGS)) -> None:
    """The flags of all that call a service. They stay texts, for `deferd.cli.connection`."""
    group = parser.add_argument_group("the service")
    for name in names:
        setting = SETTINGS[name]
        default = f"; default {setting.default}" if setting.default else ""
        group.add_argument(
            setting.flag, dest=name, metavar=setting.metavar, help=f"{setting.about}{default} [{setting.variable}]"
        )


def common(parser: argparse.ArgumentParser, *, as_json: str = "print JSON, one object a line") -> None:
    parser.add_argument("--json", action="store_true", help=as_json)
    add_connection(parser)


def _policy(parser: argparse.ArgumentParser) -> None:
    """How a job behaves, for a job or as a topic's default."""
    flags: tuple[tuple[str, Callable[[str], object], str, str], ...] = (
        ("ttr", values.duration, "DURATION", "time to run, the lease of one delivery: 0.1s to 24h"),
        ("max-attempts", values.whole_or_none, "N", "deliveries after which it is dead; none: no limit"),
        ("backoff", values.backoff, "BACKOFF", "wait after a release: exponential:2:212, fixed:10, schedule:2m,10m,1h"),
        ("ttl", values.duration_or_none, "DURATION", "first delivery within this time of being due, else dead"),
        ("retain", values.duration, "DURATION", "how long to keep the record of the finished job"),
    )
    for name, read, metavar, about in flags:
        parser.add_argument(f"--{name}", type=read, metavar=metavar, help=about, default=argparse.SUPPRESS)


def _when(parser: argparse.ArgumentParser) -> None:
    none = argparse.SUPPRESS
    parser.add_argument(
        "--delay", type=values.duration, metavar="DURATION", default=none, help="due so long from now: 90, 30m, 24h, 7d"
    )
    parser.add_argument(
        "--run-at", type=values.instant, metavar="INSTANT", default=none, help="due then: 2030-01-31T09:30:00Z"
    )


def of_put(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="where to put it")
    parser.add_argument(
        "body", metavar="BODY", nargs="?", type=values.body, help="any JSON value; -: a job for each line of stdin"
    )
    parser.add_argument("--id", metavar="ID", help="your own id, by which it is cancelled; else one is made")
    _when(parser)
    _policy(parser)
    parser.add_argument(
        "--on-conflict",
        choices=("reject", "keep", "replace"),
        help="when the id is taken: reject (exit code 3), keep the old job, or replace it",
    )
    parser.add_argument(
        "--durability",
        choices=DURABILITIES,
        metavar="LEVEL",
        help="done when it is in memory, fsync: on disk, or replicated:N: in N replicas as well",
    )
    parser.add_argument(
        "--jobs", action="store_true", help='with -: each line is a whole job, {"id": ..., "body": ..., "delay": ...}'
    )
    common(parser, as_json="print the job, or with - the result of each line, as JSON")


def _job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="the job's topic")
    parser.add_argument("id", metavar="ID", help="the job's id")


def of_show(parser: argparse.ArgumentParser) -> None:
    _job(parser)
    common(parser)


def of_change(parser: argparse.ArgumentParser) -> None:
    _job(parser)
    parser.add_argument("body", metavar="BODY", nargs="?", type=values.body, help="the new body, any JSON value")
    _when(parser)
    _policy(parser)
    common(parser)


def of_cancel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="the jobs' topic")
    parser.add_argument("ids", metavar="ID", nargs="+", help="the jobs' ids")
    parser.add_argument("--refuse-reserved", action="store_true", help="leave a job alone that a consumer holds")
    common(parser)


def of_pop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="or several, in strict priority: a,b,c")
    parser.add_argument("--count", type=values.whole, default=1, metavar="N", help="most jobs, 1 to 1000; default 1")
    parser.add_argument(
        "--wait",
        type=values.duration,
        default=20.0,
        metavar="DURATION",
        help="wait for the first, 0 to 60s; default 20s",
    )
    parser.add_argument("--ttr", type=values.duration, metavar="DURATION", help="length of the lease: 0.1s to 24h")
    parser.add_argument("--consumer", metavar="NAME", help="shown as the holder")
    common(parser)


def _delivery(parser: argparse.ArgumentParser) -> None:
    _job(parser)
    parser.add_argument("--receipt", metavar="R", help="that of the pop; without it the live delivery is meant")


def of_finish(parser: argparse.ArgumentParser) -> None:
    _delivery(parser)
    parser.add_argument(
        "--result", type=values.json_value, metavar="JSON", help="kept with the record if the job has a retain"
    )
    common(parser)


def of_release(parser: argparse.ArgumentParser) -> None:
    _delivery(parser)
    parser.add_argument("--delay", type=values.duration, metavar="DURATION", help="in place of its backoff")
    parser.add_argument("--error", metavar="TEXT", help="what went wrong, kept as its last_error")
    common(parser)


def of_touch(parser: argparse.ArgumentParser) -> None:
    _delivery(parser)
    parser.add_argument("--ttr", type=values.duration, metavar="DURATION", help="from now; default: the job's own")
    common(parser)


def of_bury(parser: argparse.ArgumentParser) -> None:
    _delivery(parser)
    parser.add_argument("--error", metavar="TEXT", help="what went wrong, kept as its last_error")
    common(parser)


def of_one_topic(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="its name")


def of_pause_or_resume(parser: argparse.ArgumentParser) -> None:
    of_one_topic(parser)
    common(parser)


def of_topic(parser: argparse.ArgumentParser) -> None:
    of_one_topic(parser)
    _policy(parser)
    parser.add_argument(
        "--max-jobs",
        type=values.whole_or_none,
        metavar="N",
        default=argparse.SUPPRESS,
        help="most live jobs; a put beyond it is refused; none: no limit",
    )
    parser.add_argument(
        "--durability",
        choices=(*DURABILITIES, "none"),
        metavar="LEVEL",
        default=argparse.SUPPRESS,
        help="of puts that name none: memory, fsync, replicated:N; none: what the store gives by itself",
    )
    parser.add_argument(
        "--set", type=values.json_object, metavar="JSON", help="replace all settings; '{}': back to the defaults"
    )
    common(parser)


def _state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", choices=STATES, help="only jobs in this state")


def of_jobs(parser: argparse.ArgumentParser) -> None:
    of_one_topic(parser)
    _of_list(parser)


def _of_list(parser: argparse.ArgumentParser) -> None:
    _state(parser)
    parser.add_argument("--limit", type=values.count_from_1, default=100, metavar="N", help="most jobs; default 100")
    parser.add_argument("--all", action="store_true", help="all of them")
    common(parser)


def of_ls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="list its jobs")
    _of_list(parser)


def of_redrive(parser: argparse.ArgumentParser) -> None:
    of_one_topic(parser)
    parser.add_argument("ids", metavar="ID", nargs="*", help="these jobs; without any, those dead longest")
    parser.add_argument(
        "--limit", type=values.whole, default=1000, metavar="N", help="most jobs, without ID; default 1000"
    )
    common(parser)


def of_purge(parser: argparse.ArgumentParser) -> None:
    of_one_topic(parser)
    _state(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask; needed where there is no terminal")
    common(parser)


def of_audit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topics", metavar="TOPIC", nargs="*", help="these topics; without any, all that the store has")
    parser.add_argument("--repair", action="store_true", help="mend what is found, and check again")
    common(parser)


def _data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", metavar="DIR", help="the service's data folder; default ./deferd-data [DEFERD_DATA_DIR]"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def of_backup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="where to put it: a folder that is new or empty")
    _data_dir(parser)
    parser.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="do not load the copy, which takes as much memory as the data",
    )


def of_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="the backup")
    _data_dir(parser)
    parser.add_argument("--force", action="store_true", help="when there is data, move it aside, and keep it")


def of_copy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", metavar="STORE", help="a URL, or a data folder [DEFERD_COPY_FROM]")
    parser.add_argument("--to", dest="target", metavar="STORE", help="an empty one [DEFERD_COPY_TO]")
    parser.add_argument(
        "--shards", type=values.count_from_1, metavar="N", help="of the target; default: as many as the source has"
    )
    parser.add_argument("--force", action="store_true", help="do not look whether services run on the stores")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")


def of_worker(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "worker", metavar="MODULE:WORKER", help="a module, found from the current folder, and a name in it"
    )
    parser.add_argument(
        "--log-format",
        choices=("console", "json"),
        help="form of the log lines on stderr; default console [DEFERD_LOG_FORMAT]",
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error", "critical"),
        help="least level that is logged; default info [DEFERD_LOG_LEVEL]",
    )
    add_connection(parser, ("url", "key"))


def of_top(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval", type=values.interval, default=1.0, metavar="DURATION", help="between two looks; default 1s"
    )
    parser.add_argument(
        "--sort",
        choices=("busy", "topic", *STATES, "oldest", "due"),
        default="busy",
        help="what comes first; default busy: put, finished and ready most",
    )
    common(parser, as_json="print one look as JSON, and end")


def of_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection(parser)


def of_completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh or tcsh")
