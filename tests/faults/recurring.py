"""Recurring jobs under faults: schedules that run every second, three services, and random kills of all processes.

Each occurrence must be put exactly once, whatever crashes, and must not run before its time. All schedules have the
policy `catch_up: all`, so that none may be missing either. A run that was cancelled before its time must never be
delivered. Deliveries may repeat, as those of all jobs; a run that was put twice shows as two jobs, created at different
times, under one id.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from deferd import AsyncClient
from deferd.client.errors import NoAnswer
from deferd.client.scheduling import ScheduledJobOptions, ScheduleOptions
from deferd.contract.errors import DeferdError, JobNotFound
from deferd.contract.model import JobState
from tests.acceptance.service_process import ServiceProcess
from tests.faults.deployment import FaultyStore
from tests.faults.orphans import no_orphans
from tests.integration.store.store_contents import KEYS
from tests.integration.store.store_rights import as_user
from tests.zone_releases import HOUR_S, ZONE, make_release, tzif

TOPICS = tuple(f"faults.recurring.{number}" for number in range(4))
SERVICES = 3
SEVERAL_PROCESSES = 1
"""Which of the services has two server processes."""
CONSUMERS_A_TOPIC = 2
EVERY = timedelta(seconds=1)
RULES: tuple[ScheduleOptions, ...] = (
    {"every": 1},
    {"cron": "* * * * * *", "zone": ZONE},
    {"every": 1, "overlap": "skip"},
)
"""What the schedules take in turns. With `skip`, runs that are still live when the next one is due are left out."""
TTR_S = 2.0
RESPONSE_S = 2.5
RECOVERY_S = 30.0
DRAIN_S = 30.0
CLOCK_TOLERANCE_MS = 5
FREEZES = 6
ADVANCING_S = 0.08
"""How long it takes at least until all schedules are advanced after their runs were due."""
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
_ID_TIME = "%Y%m%dT%H%M%SZ"


@dataclass
class Runs:
    """What is known of the runs of one schedule, by their ids."""

    topic: str
    may_skip: bool
    first: datetime
    created: defaultdict[str, set[datetime]] = field(default_factory=lambda: defaultdict(set))
    """When the jobs were created that were delivered under an id: one, unless the run was put twice."""
    cancelled: set[str] = field(default_factory=set)
    """Cancelled before they were due, and acknowledged."""
    maybe_cancelled: set[str] = field(default_factory=set)


@dataclass
class Recurring:
    """The result of a run."""

    seed: int
    took_s: float = 0
    schedules: int = 0
    occurrences: int = 0
    """How many there were between the first and the last run of each schedule."""
    delivered: int = 0
    cancelled: int = 0
    skipped: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    recovered_after_s: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    put_twice: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Delivered under the id of no occurrence."""
    early: list[str] = field(default_factory=list)
    delivered_after_cancel: list[str] = field(default_factory=list)
    stalled: list[str] = field(default_factory=list)
    miscounted: list[str] = field(default_factory=list)
    left: int = 0
    audit: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[list[str]]:
        """Everything that must be empty."""
        return [
            self.lost,
            self.put_twice,
            self.unknown,
            self.early,
            self.delivered_after_cancel,
            self.stalled,
            self.miscounted,
            self.audit,
            self.logged,
        ]

    @property
    def is_clean(self) -> bool:
        """Whether every promise was kept, and something was tested."""
        return not any(self.broken) and not self.left and self.delivered > 0 and bool(self.faults)


def run_id(name: str, at: datetime) -> str:
    """The id of a schedule's run."""
    return f"{name}:{at.astimezone(UTC).strftime(_ID_TIME)}"


async def run_recurring(
    folder: Path, seed: int, *, occurrences: int, schedules: int = 100, previous: Path | None = None
) -> Recurring:
    """Let `schedules` schedules run until they have had about `occurrences` together, and each kind of fault came.

    `previous` is where the previous release is unpacked: services with the first release of the time zones are of that.
    """
    outcome = Recurring(seed, schedules=schedules)
    chance = random.Random(seed)
    began_s = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(no_orphans(folder))
        store = stack.enter_context(FaultyStore(folder / "store"))
        releases = _releases(folder, previous)
        flags = [("--workers", "2") if number == SEVERAL_PROCESSES else () for number in range(SERVICES)]
        services = [
            stack.enter_context(
                ServiceProcess(folder / f"service-{number}", "--redis-url", _url(store), *more, environment=releases[0])
            )
            for number, more in enumerate(flags)
        ]
        deployment = _Recurring(chance, store, services, releases, outcome)
        try:
            await deployment.create(schedules)
            async with asyncio.TaskGroup() as tasks:
                consumers = [
                    tasks.create_task(deployment.consume(topic)) for topic in TOPICS for _ in range(CONSUMERS_A_TOPIC)
                ]
                consumers.append(tasks.create_task(deployment.cancel_some()))
                try:
                    end_s = time.monotonic() + occurrences / schedules
                    while time.monotonic() < end_s or deployment.unseen_faults:
                        await asyncio.sleep(chance.uniform(0.3, 2))
                        await deployment.inject()
                        await deployment.wait_for_recovery()
                    deployment.stops_cancelling = True
                    await deployment.pause()
                    outcome.left = await deployment.drained()
                finally:
                    for consumer in consumers:
                        consumer.cancel()
            await deployment.check()
        finally:
            await deployment.close()
        outcome.logged = [
            f"service {number} logged:\n{service.output()[max(at - 500, 0) : at + 3000]}"
            for number, service in enumerate(services)
            if (at := service.output().find("Traceback")) >= 0
        ]
    outcome.took_s = time.monotonic() - began_s
    return outcome


def _url(store: FaultyStore) -> str:
    return as_user(f"redis://127.0.0.1:{store.port}")


def _releases(folder: Path, previous: Path | None) -> list[dict[str, str]]:
    """The environments for two releases of the time zones, the first with `previous`; they differ from six hours on."""
    zones = {"2099.1": tzif(2), "2099.2": tzif(2, (int(time.time()) + 6 * HOUR_S, 3))}
    paths = [str(make_release(folder / version, version, zone)) for version, zone in zones.items()]
    if previous is not None:
        paths[0] = f"{previous / 'app'}{os.pathsep}{paths[0]}"
    return [{"PYTHONPATH": path} for path in paths]


class _Recurring:
    """The schedules, what uses them, and what kills the processes."""

    def __init__(
        self,
        chance: random.Random,
        store: FaultyStore,
        services: list[ServiceProcess],
        releases: list[dict[str, str]],
        outcome: Recurring,
    ) -> None:
        self._chance = chance
        self._store = store
        self._services = services
        self._releases = releases
        self._outcome = outcome
        self._clients = [AsyncClient(service.url, retry_for=0, timeout=RESPONSE_S) for service in services]
        self._runs: dict[str, Runs] = {}
        self._paused_at: dict[str, datetime] = {}
        self.stops_cancelling = False
        self._faults: dict[str, Callable[[], Awaitable[None]]] = {
            "a service is killed (SIGKILL)": self._kill_service,
            "all services are killed and stay down": self._kill_all_services,
            "services are restarted, each with another release of the time zones": self._change_zones,
            "a service is frozen (SIGSTOP, SIGCONT)": self._freeze_service,
            "the active timer is frozen while it advances schedules": self._freeze_active_timer,
            "the store is killed": self._kill_store,
            "the store is restarted (SIGTERM)": self._restart_store,
        }

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            await client.close()

    async def _persist(
        self,
        call: Callable[Concatenate[AsyncClient, Arguments], Awaitable[Result]],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Repeat a call of a client, which may be repeated, at any of the services until it succeeds."""
        end_s = time.monotonic() + RECOVERY_S
        while True:
            try:
                return await call(self._chance.choice(self._clients), *args, **options)
            except (DeferdError, NoAnswer):
                if time.monotonic() > end_s:
                    raise
                await asyncio.sleep(0.1)

    async def create(self, count: int) -> None:
        """Create the schedules."""
        for number in range(count):
            name, topic, rule = f"s{number}", TOPICS[number % len(TOPICS)], RULES[number % len(RULES)]
            job: ScheduledJobOptions = {"ttr": TTR_S, "body": number}
            options: ScheduleOptions = {"catch_up": "all", "job": job, **rule}
            schedule = await self._persist(AsyncClient.put_schedule, name, topic, **options)
            assert schedule.next_run_at is not None, schedule
            self._runs[name] = Runs(topic, "overlap" in rule, schedule.next_run_at)

    async def consume(self, topic: str) -> None:
        """Pop and finish the runs of a topic, and note each delivery."""
        while True:
            client = self._chance.choice(self._clients)
            try:
                jobs = await client.pop(topic, count=50, wait=0.5)
                now = datetime.now(UTC)
                for job in jobs:
                    name, _, at = job.id.partition(":")
                    runs = self._runs[name]
                    runs.created[job.id].add(job.created_at)
                    due = datetime.strptime(at, _ID_TIME).replace(tzinfo=UTC)
                    if now < due - timedelta(milliseconds=CLOCK_TOLERANCE_MS):
                        self._outcome.early.append(f"{job.id} at {now}")
                    if job.id in runs.cancelled:
                        self._outcome.delivered_after_cancel.append(job.id)
                if jobs:
                    await client.finish_many(topic, jobs)
            except (DeferdError, NoAnswer, TimeoutError):
                await asyncio.sleep(0.1)

    async def cancel_some(self) -> None:
        """Cancel the next run of a random schedule, again and again."""
        while not self.stops_cancelling:
            await asyncio.sleep(self._chance.expovariate(3))
            name = self._chance.choice(sorted(self._runs))
            runs, client = self._runs[name], self._chance.choice(self._clients)
            with contextlib.suppress(DeferdError, NoAnswer, TimeoutError):
                job_id = (await client.schedule(name)).next_job
                if job_id is None:
                    continue
                runs.maybe_cancelled.add(job_id)
                with contextlib.suppress(JobNotFound):  # it was cancelled before, or is done
                    done = await client.cancel(runs.topic, job_id)
                    if done.was is JobState.DELAYED:
                        runs.cancelled.add(job_id)

    @property
    def unseen_faults(self) -> list[str]:
        """The kinds of faults that have not come yet."""
        return sorted(self._faults.keys() - self._outcome.faults.keys())

    async def inject(self) -> None:
        """Kill or freeze something, and start it again."""
        what = self._chance.choice(self.unseen_faults or sorted(self._faults))
        await self._faults[what]()
        self._outcome.faults[what] += 1

    async def _kill_service(self) -> None:
        await self._kill([self._chance.choice(self._services)], self._chance.uniform(0.2, 1))

    async def _kill_all_services(self) -> None:
        await self._kill(self._services, self._chance.uniform(2, 5))

    async def _change_zones(self) -> None:
        """One after the other, as a rolling upgrade does: meanwhile the runs may be derived by both, in turns."""
        for service in self._services:
            await asyncio.to_thread(service.stop)
            service.environment = next(other for other in self._releases if other != service.environment)
            await asyncio.to_thread(service.start)

    async def _kill(self, services: list[ServiceProcess], down_s: float) -> None:
        for service in services:
            for pid in service.server_process_pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            service.kill()
        await asyncio.sleep(down_s)
        await asyncio.gather(*(asyncio.to_thread(service.start) for service in services))

    async def _freeze_service(self) -> None:
        with self._chance.choice(self._services).frozen():
            await asyncio.sleep(self._chance.uniform(0.5, 3))

    async def _freeze_active_timer(self) -> None:
        """Freeze it just after runs were due, until another timer has taken over; then it goes on where it stood."""
        for _ in range(FREEZES):
            await asyncio.sleep(1 - time.time() % 1 + self._chance.uniform(0, ADVANCING_S))
            holder = await asyncio.to_thread(self._store.command, "GET", KEYS.of_shard(0, "lock"))
            if holder is None:
                continue
            pid = int(holder.partition(b"-")[0])
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(self._chance.uniform(0.5, 1.2))
            finally:
                os.kill(pid, signal.SIGCONT)

    async def _kill_store(self) -> None:
        self._store.kill()
        await asyncio.sleep(self._chance.uniform(0.1, 1))
        await asyncio.to_thread(self._store.start)

    async def _restart_store(self) -> None:
        await asyncio.to_thread(self._store.stop)
        await asyncio.to_thread(self._store.start)

    async def wait_for_recovery(self) -> None:
        """Wait until each schedule runs in time again."""
        began_s = time.monotonic()
        while behind := await self._behind():
            if time.monotonic() > began_s + RECOVERY_S:
                self._outcome.stalled += [f"{name} after {list(self._outcome.faults)[-1]}" for name in behind]
                return
            await asyncio.sleep(0.1)
        self._outcome.recovered_after_s.append(time.monotonic() - began_s)

    async def _behind(self) -> list[str]:
        """The schedules whose next run should have been put a while ago."""
        late = datetime.now(UTC) - EVERY
        views = [await self._persist(AsyncClient.schedule, name) for name in self._runs]
        return [view.name for view in views if view.next_run_at is None or view.next_run_at < late]

    async def pause(self) -> None:
        """Pause all schedules."""
        for name in self._runs:
            self._paused_at[name] = datetime.now(UTC)
            await self._persist(AsyncClient.pause_schedule, name)

    async def drained(self) -> int:
        """Wait until no job is left; returns how many are left in the end."""
        end_s = time.monotonic() + DRAIN_S
        left = -1
        while left and time.monotonic() < end_s:
            await asyncio.sleep(0.2)
            views = [await self._persist(AsyncClient.topic, topic) for topic in TOPICS]
            left = sum(sum(view.counts.values()) for view in views)
        return left

    async def check(self) -> None:
        """Compare what was delivered with what should have been."""
        outcome = self._outcome
        for name, runs in self._runs.items():
            view = await self._persist(AsyncClient.schedule, name)
            settled = view.runs + view.skips + view.missed
            expected = {run_id(name, runs.first + number * EVERY) for number in range(settled)}
            delivered = set(runs.created)
            absent = expected - delivered
            outcome.occurrences += settled
            outcome.delivered += len(delivered)
            outcome.cancelled += len(runs.cancelled)
            outcome.skipped += view.skips if runs.may_skip else 0
            outcome.unknown += sorted(delivered - expected)
            outcome.put_twice += [job_id for job_id, created in runs.created.items() if len(created) > 1]
            if not runs.may_skip:
                outcome.lost += sorted(absent - runs.maybe_cancelled)
            # One that was cancelled when it was ready counts as run.
            not_delivered = view.runs - len(delivered)
            is_counted = 0 <= not_delivered <= len(runs.maybe_cancelled - runs.cancelled)
            is_counted &= not_delivered + view.skips == len(absent) and view.skips >= len(runs.cancelled)
            if view.missed or not is_counted:
                outcome.miscounted.append(
                    f"{name}: {view.runs} runs, {view.skips} skips, {view.missed} missed; delivered {len(delivered)}, "
                    f"absent {len(absent)}, cancelled {len(runs.cancelled)}"
                )
            if runs.first + settled * EVERY < self._paused_at[name] - 2 * EVERY:
                outcome.stalled.append(f"{name}: {settled} occurrences until {self._paused_at[name]}")
        for topic in TOPICS:
            audit = await self._persist(AsyncClient.audit, topic)
            outcome.audit += [] if audit.clean else [f"{topic}: {audit.fields}"]


def report_recurring(outcome: Recurring) -> str:
    """The report, for people."""
    slowest_s = max(outcome.recovered_after_s, default=0)
    lines = [
        (outcome.occurrences, f"occurrences of {outcome.schedules} schedules in {outcome.took_s:.0f} s"),
        (outcome.delivered, "of them delivered"),
        (outcome.cancelled, "runs cancelled before they were due"),
        (outcome.skipped, "skipped because the run before was live, or cancelled, of the schedules that skip"),
        *((count, what) for what, count in sorted(outcome.faults.items())),
        (sum(outcome.faults.values()), f"faults; all schedules ran in time again within {slowest_s:.1f} s"),
        (len(outcome.lost), "occurrences that were not put"),
        (len(outcome.put_twice), "occurrences that were put twice"),
        (len(outcome.unknown), "runs delivered that are no occurrence"),
        (len(outcome.early), "runs delivered before their time"),
        (len(outcome.delivered_after_cancel), "runs delivered after an acknowledged cancel"),
        (len(outcome.stalled), "schedules that stood still"),
        (len(outcome.miscounted), "schedules whose counts are wrong"),
        (outcome.left, "jobs left at the end"),
        (len(outcome.audit), "findings of the consistency check"),
        (len(outcome.logged), "errors in the services' logs"),
    ]
    details = [line for lines_of_kind in outcome.broken for line in lines_of_kind]
    return "\n".join([*(f"{count:6}  {what}" for count, what in lines), *details])
