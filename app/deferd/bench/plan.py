"""How many machines a load needs: arithmetic on the measured costs of a job.

Nothing here is measured. A store runs scripts on one thread, so a primary is given a share of one core; jobs are spread
evenly over primaries, and one topic lives on one of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from deferd.bench import costs
from deferd.bench.options import validated
from deferd.contract.flag_fields import number, quoted, whole_number

_GB = 1_000_000_000
_LEVEL = re.compile(r"memory|fsync|replicated:([1-9])")
_CHOICES = {"durability": "memory, fsync or replicated:N with N from 1 to 9", "calls": "batch or single"}
_LARGEST_BODY = 16 * 1024 * 1024


def _level(text: str) -> str:
    if _LEVEL.fullmatch(text) is None:
        raise ValueError(f"is {quoted(text)}, but must be {_CHOICES['durability']}")
    return text


class PlanOptions(BaseModel):
    """The load, and the machines. Sizes in GB are 10^9 bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    jobs: int = whole_number(10_000_000, 0, 10**12, "Jobs that wait in the store at one time")
    due: float = number(10_000, 0, 10**8, "Jobs that are put, become due and are finished per second")
    bodies: int = whole_number(200, 0, _LARGEST_BODY, "Bytes of a body")
    ids: int = whole_number(20, 1, 255, "Bytes of an id")
    durability: Annotated[str, AfterValidator(_level)] = Field(
        "fsync", description="Level of the puts: memory, fsync or replicated:N, N replicas for each primary."
    )
    retention: float = number(0, 0, 315_360_000, "Seconds for which finished jobs are kept")
    calls: Literal["batch", "single"] = Field(
        "batch", description="How clients call: batch (500 jobs a call) or single."
    )
    busy: float = number(0.5, 0.05, 0.9, "Share of a core that a process may use")
    primary_memory: float = number(16, 0.1, 4096, "Most data of one primary in GB, before the reserve for rewrites")
    machine_cores: int = whole_number(8, 1, 1024, "Cores of a machine")
    machine_memory: float = number(64, 0.5, 65536, "Memory of a machine in GB")

    @property
    def replicas(self) -> int:
        """Replicas of each primary."""
        found = _LEVEL.fullmatch(self.durability)
        return int(found[1] or 0) if found is not None else 0


def read_plan_options(flags: Mapping[str, Any]) -> PlanOptions:
    """The options from these flags, then the defaults. Raises deferd.bench.options.OptionsError."""
    return validated(PlanOptions, flags, _CHOICES)


@dataclass(frozen=True)
class Plan:
    """The needs of a load, in bytes, cores and seconds: of all primaries together, unless the name says otherwise."""

    stored: int
    job_bytes: float
    data_bytes: float
    primary_bytes: float
    rewrite_reserve_bytes: float
    memory_bytes: float
    file_bytes: float
    disk_bytes: float
    file_bytes_per_s: float
    http_bytes_per_s: float
    store_bytes_per_s: float
    replication_bytes_per_s: float
    store_cores: float
    service_cores: float
    calls_per_s: float
    primaries: int
    replicas: int
    service_processes: int
    machines: int
    restart_s: float
    restart_most_s: float
    rewrite_s: float
    limited_by: str

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def plan(options: PlanOptions) -> Plan:
    """Compute what the load needs."""
    is_batch = options.calls == "batch"
    store_us = (costs.STORE_BATCH_US if is_batch else costs.STORE_SINGLE_US) + options.bodies * costs.STORE_BYTE_US
    service_us = costs.SERVICE_BATCH_US if is_batch else costs.SERVICE_SINGLE_US
    service_us += options.bodies * costs.SERVICE_BYTE_US
    stored = options.jobs + math.ceil(options.due * options.retention)
    job_bytes = costs.job_memory(stored, options.ids, options.bodies).total
    data = stored * job_bytes
    store_cores = options.due * store_us / 1e6
    service_cores = options.due * service_us / 1e6
    for_memory = math.ceil(data / (options.primary_memory * _GB))
    for_cpu = math.ceil(store_cores / options.busy)
    primaries = max(for_memory, for_cpu, 1)
    service_processes = max(math.ceil(service_cores / options.busy), 1)
    jobs_each = stored / primaries
    rewrite_s = jobs_each * (costs.REWRITE_JOB_US + options.bodies * costs.REWRITE_BYTE_US) / 1e6
    written = options.due / primaries * 3 * rewrite_s  # put, pop and finish
    reserve = min(written * costs.COPIED_BYTES_PER_WRITE, data / primaries)
    primary = data / primaries * costs.RESIDENT_SHARE + costs.EMPTY_STORE_BYTES
    copies = 1 + options.replicas
    memory = copies * primaries * (primary + reserve)
    base = stored * (costs.BASE_FILE_BYTES + 2 * options.ids + options.bodies)
    file_per_s = options.due * (costs.CYCLE_FILE_BYTES + options.bodies)
    disk = copies * ((costs.REWRITE_AT + 1) * base + file_per_s * rewrite_s)
    cores = copies * max(store_cores / options.busy, primaries) + service_processes
    machines = max(
        math.ceil(cores / options.machine_cores),
        math.ceil(memory / (options.machine_memory * _GB)),
        copies,
    )
    return Plan(
        stored=stored,
        job_bytes=job_bytes,
        data_bytes=data,
        primary_bytes=primary,
        rewrite_reserve_bytes=reserve,
        memory_bytes=memory,
        file_bytes=base,
        disk_bytes=disk,
        file_bytes_per_s=file_per_s,
        http_bytes_per_s=options.due * (_http_bytes(is_batch) + 2 * options.bodies),
        store_bytes_per_s=options.due * (costs.STORE_BYTES + 2 * options.bodies),
        replication_bytes_per_s=options.replicas * file_per_s,
        store_cores=store_cores,
        service_cores=service_cores,
        calls_per_s=options.due * (costs.CALLS_BATCH if is_batch else costs.CALLS_SINGLE),
        primaries=primaries,
        replicas=options.replicas * primaries,
        service_processes=service_processes,
        machines=machines,
        restart_s=restart_s(jobs_each, options.bodies, 0),
        restart_most_s=restart_s(jobs_each, options.bodies, (costs.REWRITE_AT - 1) * base / primaries),
        rewrite_s=rewrite_s,
        limited_by="memory" if for_memory >= for_cpu else "CPU of the store",
    )


def restart_s(jobs: float, body_bytes: float, command_bytes: float) -> float:
    """From the start of a service until it is ready.

    Its store loads a rewritten file of this many jobs, and the commands that were appended since.
    """
    load_us = jobs * (costs.LOAD_JOB_US + body_bytes * costs.LOAD_BYTE_US) + command_bytes * costs.LOAD_COMMAND_BYTE_US
    return costs.START_S + load_us / 1e6


def _http_bytes(is_batch: bool) -> float:
    return costs.HTTP_BATCH_BYTES if is_batch else costs.HTTP_SINGLE_BYTES
