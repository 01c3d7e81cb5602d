"""`python -m tests.faults.outbox --seed 7 --minutes 10`: a long fault run of the outbox.

Exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.measuring import end_in_order
from tests.faults.outbox.run import report, run

_MORE_THAN_ENOUGH = 10_000


def main() -> int:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.outbox", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=random.randrange(100_000))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--keep", type=Path, help="directory for the logs, which is kept")
    options = parser.parse_args()
    end_in_order()
    print(f"seed {options.seed}, {options.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="deferd-outbox-") as folder:
        kept = (options.keep or Path(folder)).resolve()
        outcome = run(kept, options.seed, _MORE_THAN_ENOUGH, until_s=time.monotonic() + options.minutes * 60)
    print(report(outcome))
    return 1 if outcome.wrong or outcome.never_injected else 0


if __name__ == "__main__":
    sys.exit(main())
