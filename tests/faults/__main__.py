"""`python -m tests.faults --seed 7 --minutes 10`: a long fault run; exits with 1 if a promise was broken.

With `--previous upgrade` or `--previous rollback` services of the previous release serve the store, too: at first both
are of the release that is to be replaced, then one is replaced, and after half of the time the other one. Only the run
of schedules follows: the others are about the store.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks.measuring import end_in_order
from tests.faults.cluster_profile import report_profile, run_cluster_profile
from tests.faults.cluster_run import report_cluster, run_cluster_faults
from tests.faults.failover import run_failovers
from tests.faults.plan import FaultKind
from tests.faults.recurring import report_recurring, run_recurring
from tests.faults.report import are_clean, is_clean, report, report_failovers
from tests.faults.rollout import ROLLOUTS
from tests.faults.run import run
from tests.previous_release import COMMIT, unpack

_MORE_THAN_ENOUGH = 10_000


def main() -> int:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=random.randrange(100_000))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--failovers", type=int, default=3, help="failovers after the run")
    parser.add_argument("--cluster-rounds", type=int, default=3, help="rounds of cluster faults after that")
    parser.add_argument("--cluster-minutes", type=float, default=2.0, help="faults of a cluster with replicas")
    parser.add_argument("--occurrences", type=int, default=10_000, help="occurrences of schedules after that")
    parser.add_argument("--previous", choices=ROLLOUTS, help="with services of the previous release")
    parser.add_argument("--commit", default=COMMIT, help="the previous release, if not the one of the tests")
    parser.add_argument("--shelf", action="store_true", help="all delayed jobs go to a shelf; only the first run")
    parser.add_argument("--keep", type=Path, help="directory for logs and histories, which is kept")
    options = parser.parse_args()
    end_in_order()
    print(f"seed {options.seed}, {options.minutes:g} minutes", flush=True)
    until_s = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="deferd-faults-") as folder:
        kept = (options.keep or Path(folder)).resolve()
        if options.previous is not None:
            previous = unpack(kept / "previous", options.commit)
            rollout = ROLLOUTS[options.previous]
            outcome = run(kept, options.seed, _MORE_THAN_ENOUGH, until_s=until_s, rollout=rollout, previous=previous)
            print(report(outcome), flush=True)
            recurring = asyncio.run(
                run_recurring(kept / "recurring", options.seed, occurrences=options.occurrences, previous=previous)
            )
            print(f"\n{report_recurring(recurring)}")
            return 0 if is_clean(outcome) and recurring.is_clean else 1
        if options.shelf:
            outcome = run(
                kept, options.seed, _MORE_THAN_ENOUGH, until_s=until_s, kinds=tuple(FaultKind), has_shelf=True
            )
            print(report(outcome), flush=True)
            return 0 if is_clean(outcome) else 1
        outcome = run(kept, options.seed, _MORE_THAN_ENOUGH, until_s=until_s)
        print(report(outcome), flush=True)
        failovers = asyncio.run(run_failovers(kept / "failovers", options.seed, options.failovers))
        print(f"\n{report_failovers(failovers)}", flush=True)
        in_cluster = asyncio.run(run_cluster_faults(kept / "cluster", options.seed, options.cluster_rounds))
        print(f"\n{report_cluster(in_cluster)}", flush=True)
        profile = run_cluster_profile(kept / "profile", options.seed, options.cluster_minutes)
        print(f"\n{report_profile(profile)}", flush=True)
        recurring = asyncio.run(run_recurring(kept / "recurring", options.seed, occurrences=options.occurrences))
        print(f"\n{report_recurring(recurring)}")
    is_right = is_clean(outcome) and are_clean(failovers) and not any(in_cluster.broken()) and recurring.is_clean
    return 0 if is_right and not any(profile.broken()) else 1


if __name__ == "__main__":
    sys.exit(main())
