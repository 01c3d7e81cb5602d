"""What does an idle service cost? CPU of the service and of its embedded store while there is nothing to do.

python -m tests.benchmarks.idle [--seconds 30]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from tests.acceptance.service_process import running_service

SETTLE_S = 3.0


def cpu_seconds(pid: int) -> float:
    """CPU time a process has used so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_service(data_dir=Path(folder)) as service:
        service.wait_ready()
        time.sleep(SETTLE_S)
        store_pid = service.store_pid()
        assert store_pid is not None
        before = [cpu_seconds(pid) for pid in (service.process.pid, store_pid)]
        time.sleep(options.seconds)
        used = [
            cpu_seconds(pid) - earlier for pid, earlier in zip((service.process.pid, store_pid), before, strict=True)
        ]
    shares = [100 * seconds / options.seconds for seconds in used]
    print(f"idle for {options.seconds:.0f} s: service {shares[0]:.2f} % of a core, store {shares[1]:.2f} %")


if __name__ == "__main__":
    main()
