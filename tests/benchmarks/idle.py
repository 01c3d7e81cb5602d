"""What does an idle service cost? CPU of the service and its embedded store without work.

    python -m tests.benchmarks.idle [--topics 100000] [--seconds 10]

Measured twice: empty, and with many topics, each of which has one job that is due in a day.
"""

from __future__ import annotations

import time

from tests.benchmarks import raw_http
from tests.benchmarks.measuring import CpuMeter, MeasuredService, measured_service, options_of, run_here, show_target

SETTLE_S = 3.0
DAY_S = 86_400


async def put_one_job_each(port: int, topics: int) -> None:
    """Put one job into each topic."""
    connection = await raw_http.connect(port)
    await raw_http.put_in_batches(
        connection, topics, lambda number: {"topic": f"bench.idle.{number}", "delay": DAY_S + number / 1000}
    )
    connection.close()


def show(service: MeasuredService, topics: int, seconds: float) -> None:
    """Do nothing for a while and print its cost."""
    time.sleep(SETTLE_S)
    with CpuMeter(service.pid, service.store_pid) as cpu:
        time.sleep(seconds)
    print(f"{topics} topics without a due job, {seconds:.0f} s idle")
    show_target("service, % of a core", cpu.share(service.pid), at_most=3)
    show_target("store, % of a core", cpu.share(service.store_pid), at_most=3)


def main() -> None:
    options = options_of(__doc__, topics=100_000, seconds=10.0)
    with measured_service() as service:
        show(service, 0, options.seconds)
        run_here(put_one_job_each(service.port, options.topics))
        show(service, options.topics, options.seconds)


if __name__ == "__main__":
    main()
