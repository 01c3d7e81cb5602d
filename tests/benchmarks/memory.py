"""How much memory does a delayed job take, and does the service's memory grow with stored jobs?

    python -m tests.benchmarks.memory [--jobs 1000000]

Jobs with different ids and bodies are put in batches over HTTP, and the store's memory is compared before and after.
The result is the memory of a job beyond its id and its body as JSON. The service's memory is compared with that after a
warm-up with a tenth of the jobs.
"""

from __future__ import annotations

from typing import Any

import orjson
import redis

from tests.benchmarks import raw_http
from tests.benchmarks.measuring import (
    MeasuredService,
    measured_service,
    options_of,
    record_figure,
    resident_bytes,
    run_here,
    show_target,
)

TOPIC = "bench.memory"
DELAY_S = 86_400.5


def job(number: int) -> dict[str, Any]:
    """A job for a put."""
    return {
        "topic": TOPIC,
        "id": f"order-{number:08d}",
        "delay": DELAY_S + number % 1000,
        "body": {"order": number, "customer": f"c-{number % 1000}"},
    }


def payload_bytes(number: int) -> int:
    """Bytes of id and body. The delay is not counted: the due time is part of the service's overhead."""
    one_job = job(number)
    return len(one_job["id"]) + len(orjson.dumps(one_job["body"]))


def store_memory(service: MeasuredService) -> tuple[int, int]:
    """The store's allocated memory as it reports it, and the resident memory of its process."""
    with redis.Redis(unix_socket_path=str(service.store_socket), socket_timeout=10) as client:
        return int(client.info("memory")["used_memory"]), resident_bytes(service.store_pid)


async def measure(service: MeasuredService, jobs: int) -> None:
    """Put the jobs and print the memory that they take."""
    connection = await raw_http.connect(service.port)
    warm_up = jobs // 10
    await raw_http.put_in_batches(connection, warm_up, job)
    warm_bytes = resident_bytes(service.pid)
    await connection.call("DELETE", f"/topics/{TOPIC}")
    before, resident_before = store_memory(service)
    await raw_http.put_in_batches(connection, jobs, job)
    after, resident_after = store_memory(service)
    full_bytes = resident_bytes(service.pid)
    payload_mean = sum(map(payload_bytes, range(jobs))) / jobs
    each, resident_each = (after - before) / jobs, (resident_after - resident_before) / jobs
    print(f"{jobs} delayed jobs: {each:.0f} bytes each as reported by the store, {resident_each:.0f} resident")
    print(f"  id and body are {payload_mean:.0f} bytes of them")
    show_target("bytes per job beyond id and body", each - payload_mean, at_most=150)
    record_figure("job-bytes", each - payload_mean, "bytes", digits=3)
    print(f"  the service: {warm_bytes / 1e6:.1f} MB with {warm_up} jobs stored, {full_bytes / 1e6:.1f} MB with {jobs}")
    show_target("growth of the service, MB", (full_bytes - warm_bytes) / 1e6, at_most=5)


def main() -> None:
    options = options_of(__doc__, jobs=1_000_000)
    with measured_service() as service:
        run_here(measure(service, options.jobs))


if __name__ == "__main__":
    main()
