"""The command line, run in this process."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import httpx

from tests.acceptance.cli.command_line import Shell
from tests.conformance.door import Job, Refused, Result
from tests.conformance.http_door import HttpDoor, previewed

_NOTHING_READY = 4
_CODES = {
    r"already has a job": "job_exists",
    r"under another receipt|^nobody holds": "receipt_stale",
    r"^a consumer holds": "job_reserved",
    r"was cancelled": "job_cancelled",
    r"has no job|and cannot change": "job_not_found",
    r"is sealed": "batch_sealed",
    r"there is no (topic|schedule|calendar|task|batch) (?!.*it is not the name)": r"\1_not_found",
    r"there is a schedule": "schedule_exists",
    r"which is its max_jobs": "topic_full",
    r"is in another shard": "different_shard",
    r"would be larger|is larger than": "payload_too_large",
}
"""The code of the problem, by the error that people read."""


class CliDoor(HttpDoor):
    """Commands with `--json`. What it has no command for is done through HTTP."""

    no_group = ""

    def __init__(self, http: httpx.Client) -> None:
        super().__init__(http)
        self._shell = Shell(str(http.base_url))

    def _run(self, *words: str, stdin: str = "") -> list[dict[str, Any]]:
        done = self._shell.run(*words, "--json", stdin=stdin)
        if done.returncode in {0, _NOTHING_READY}:
            assert done.stderr == ""
            return [json.loads(line) for line in done.stdout.split("\n") if line]
        detail = done.stderr.removeprefix("deferd: ").strip()
        codes = [found.expand(code) for pattern, code in _CODES.items() if (found := re.search(pattern, detail))]
        raise Refused(codes[0] if codes else "validation", detail)

    def put(self, job_id: str | None = "a", body: Any = None, *, topic: str | None = None, **fields: Any) -> Job:
        named = () if job_id is None else ("--id", job_id)
        [job] = self._run("put", topic or self.topic, json.dumps(body), *named, *_flags(fields), "--retry-for", "0")
        return Job.of(job)

    def put_batch(self, jobs: Sequence[Mapping[str, Any]]) -> list[Result]:
        lines = "\n".join(json.dumps(job) for job in jobs)
        done = self._shell.run("put", self.topic, "-", "--jobs", "--json", "--retry-for", "0", stdin=lines)
        return [Result.of(json.loads(line)) for line in done.stdout.split("\n") if line]

    def pop(self, count: int = 1, *, topics: Sequence[str] = (), wait: float = 0, **query: Any) -> list[Job]:
        if "request_id" in query:
            return super().pop(count, topics=topics, wait=wait, **query)
        words = (",".join(topics or [self.topic]), "--count", str(count), "--wait", str(wait))
        return [*map(Job.of, self._run("pop", *words, *_flags(query)))]

    def get(self, job_id: str = "a") -> Job:
        [job] = self._run("get", self.topic, job_id)
        return Job.of(job)

    def change(self, job_id: str, **fields: Any) -> Job:
        body = (json.dumps(fields.pop("body")),) if "body" in fields else ()
        [job] = self._run("change", self.topic, job_id, *body, *_flags(fields))
        return Job.of(job)

    def cancel(self, job_id: str, *, if_reserved: str = "cancel", follow_up: str = "cancel") -> str:
        refuse = ["--refuse-reserved"] if if_reserved == "refuse" else []
        flags = [*refuse, "--keep-follow-up"] if follow_up == "keep" else refuse
        [cancelled] = self._run("cancel", self.topic, job_id, *flags)
        was: str = cancelled["was"]
        return was

    def _on_delivery(self, verb: str, job_id: str, receipt: str | None, *flags: str) -> dict[str, Any]:
        held = () if receipt is None else ("--receipt", receipt)
        [found] = self._run(verb, self.topic, job_id, *held, *flags)
        return found

    def finish(
        self, job_id: str, receipt: str | None = None, *, result: Any = None, put: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        flags = () if result is None else ("--result", json.dumps(result))
        puts = [word for job in self._of_topic(put) for word in ("--put", json.dumps(job))]
        self._on_delivery("finish", job_id, receipt, *flags, *puts)

    def release(self, job_id: str, receipt: str | None = None, **fields: Any) -> Job:
        snooze = () if fields.pop("count", True) else ("--no-count",)
        return Job.of(self._on_delivery("release", job_id, receipt, *_flags(fields), *snooze))

    def touch(
        self, job_id: str, receipt: str | None = None, *, ttr: float | None = None, progress: Any = None
    ) -> float:
        reported = () if progress is None else ("--progress", json.dumps(progress))
        touched = self._on_delivery("touch", job_id, receipt, *_flags({} if ttr is None else {"ttr": ttr}), *reported)
        return datetime.fromisoformat(touched["reserved_until"]).timestamp()

    def bury(self, job_id: str, receipt: str | None = None, *, error: str | None = None) -> None:
        self._on_delivery("bury", job_id, receipt, *_flags({} if error is None else {"error": error}))

    def set_topic(self, **settings: Any) -> None:
        self._run("topic", self.topic, "--set", json.dumps(settings))

    def view(self) -> Mapping[str, Any]:
        [view] = self._run("topic", self.topic)
        return view

    def pause(self) -> None:
        assert self._run("pause", self.topic)[0]["paused"]

    def resume(self) -> None:
        assert not self._run("resume", self.topic)[0]["paused"]

    def groups(self, order: str | None = None) -> list[Mapping[str, Any]]:
        return [*self._run("groups", self.topic, *_flags({} if order is None else {"order": order}))]

    def pause_group(self, group: str, *, resume: bool = False) -> Mapping[str, Any]:
        return self._run("resume" if resume else "pause", self.topic, "--group", group)[0]

    def jobs(self, state: str | None = None) -> list[Job]:
        flags = () if state is None else ("--state", state)
        return [*map(Job.of, self._run("jobs", self.topic, "--all", *flags))]

    def redrive(self, ids: Sequence[str] | None = None, *, limit: int = 1000, **conditions: str) -> int:
        words = ids or ("--limit", str(limit))
        redriven: int = self._run("redrive", self.topic, *words, *_flags(conditions))[0]["redriven"]
        return redriven

    def purge(self, state: str | None = None, **conditions: str) -> int:
        flags = () if state is None else ("--state", state)
        removed: int = self._run("purge", self.topic, "--yes", *flags, *_flags(conditions))[0]["removed"]
        return removed

    def preview(self, verb: str, **conditions: str) -> Job:
        yes = ("--yes",) if verb == "purge" else ()
        [found] = self._run(verb, self.topic, *yes, "--dry-run", *_flags(conditions))
        return previewed(found)

    def on_selected(self, verb: str, **call: Any) -> Job:
        select = call["select"]
        topics = select.get("topics", [self.topic])
        if ("request_id" in call and verb == "cancel") or "ids" in select or len(topics) > 1:
            return super().on_selected(verb, **call)
        [found] = self._run(verb, *topics, *_selection(call))
        return Job(found)

    def begin_task(self, verb: str, **call: Any) -> Job:
        if "request_id" in call:
            return super().begin_task(verb, **call)
        if verb in {"redrive", "purge"}:
            words = [self.topic, *(("--yes",) if verb == "purge" else ()), *_flags(call)]
        else:
            words = [*call["select"].get("topics", [self.topic]), *_selection(call)]
        return Job.of(self._run(verb, *words, "--task")[0])

    def task(self, task_id: str, verb: str = "") -> Job:
        return Job.of(self._run("tasks", task_id, *(("--stop",) if verb else ()))[0])

    def put_schedule(self, *, only_new: bool = False, **fields: Any) -> Job:
        job = dict(fields.pop("job", {}))
        if job.keys() & {"window", "spread"}:
            return super().put_schedule(only_new=only_new, job=job, **fields)
        body = (json.dumps(job.pop("body")),) if "body" in job else ()
        flags = [*_flags({**fields, **job}), *(("--create-only",) if only_new else ())]
        topic = fields.pop("topic", self.topic)
        return Job.of(self._run("schedules", "put", self.topic, topic, *body, *flags)[0])

    def schedule(self, verb: str = "") -> Job:
        if verb == "delete":
            return super().schedule(verb)
        return Job.of(self._run("schedules", verb or "get", self.topic)[0])

    def preview_runs(self, count: int, **definition: Any) -> list[str]:
        words = _flags(definition) if definition else [self.topic]
        return [run["at"] for run in self._run("schedules", "preview", *words, "--count", str(count))]

    def put_calendar(self, *windows: Mapping[str, Any]) -> None:
        self._run("calendar", self.topic, "--set", json.dumps(windows))

    def calendar(self) -> list[Mapping[str, Any]]:
        windows: list[Mapping[str, Any]] = self._run("calendar", self.topic)[0]["windows"]
        return windows

    def set_batch(self, name: str, **fields: Any) -> Job:
        words = ["--seal"] if fields.get("seal") else []
        words += ["--on-end", json.dumps(fields["on_end"])] if "on_end" in fields else []
        words += ["--expect", str(fields["expect"])] if "expect" in fields else []
        return Job.of(self._run("batch", name, *words)[0])

    def batch(self, name: str) -> Job:
        return Job.of(self._run("batch", name)[0])

    def batches(self) -> list[str]:
        return [batch["name"] for batch in self._run("batches")]

    def delete_batch(self, name: str, *, if_reserved: str = "cancel") -> int:
        refuse = ["--refuse-reserved"] if if_reserved == "refuse" else []
        [deleted] = self._run("batch", name, "--delete", *refuse)
        cancelled: int = deleted["cancelled"]
        return cancelled


def _selection(call: Mapping[str, Any]) -> list[str]:
    """The flags of a call on selected jobs, but for its topic."""
    fields = {name: value for name, value in {**call, **call["select"]}.items() if name not in {"select", "topics"}}
    switches = ["--dry-run"] if fields.pop("dry_run", False) else []
    if fields.pop("if_reserved", "cancel") == "refuse":
        switches.append("--refuse-reserved")
    return [*switches, *_flags(fields)]


def _flags(fields: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in fields.items():
        if name in {"at", "days"}:
            words += [f"--{name}", ",".join(value)]
        elif name == "paused":
            words.append("--paused" if value else "--active")
        elif name == "by":
            words.append(f"--by={value}")
        elif name == "tags":
            words += [word for tag in value for word in ("--tag", tag)]
        elif name == "headers":
            words += [word for header, text in value.items() for word in ("--header", f"{header}={text}")]
        else:
            words += [f"--{name.replace('_', '-')}", _backoff(value) if name == "backoff" else _text(value)]
    return words


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def _backoff(value: Mapping[str, Any]) -> str:
    """As people write it: fixed:10:0.5, exponential:2:212, schedule:2,10,60."""
    match value:
        case {"kind": "schedule", "seconds": seconds}:
            return f"schedule:{','.join(map(str, seconds))}:{value.get('then', 'dead')}:{value.get('jitter', 0)}"
        case {"kind": "fixed", "seconds": seconds}:
            return f"fixed:{seconds}:{value.get('jitter', 0)}"
    return f"exponential:{value['base']}:{value['cap']}"
