"""Random programs by the thousand: `python -m tests.programs --programs 20000 --jobs 2`.

Each is held against NumPy. Tensors lie at every byte, in memory of their own and in memory that others read;
numbers are skipped and come round; tasks, timers and callbacks are born in blocks of `coalesce`; groups break
under operations, and what was given to these is written to at once.

`--of receives` runs programs of messages whose receives are given up (`receives`). `--of services`: calls,
streams and messages (`service_plan`, `service_run`). `--of forks`: ranks that fork (`forks`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.programs import forks, receives, run_receives, service_plan, service_run
from tests.programs.plan import jobs, plan
from tests.programs.run import Violation, run_in_a_loop

Run = Callable[[list[int]], tuple[int, list[Violation]]]

OF: dict[str, tuple[Callable[[int], Any], Callable[[int, int], Iterator[list[int]]], Run]] = {
    "collectives": (plan, jobs, run_in_a_loop),
    "receives": (receives.plan, receives.jobs, run_receives.run),
    "services": (service_plan.plan, service_plan.jobs, service_run.count),
    "forks": (forks.plan_of, forks.jobs, forks.job),
}
"""What programs there are: how one is planned, how seeds are divided into jobs, and what runs a job."""

EVERY = 20.0  # seconds between lines about progress


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code, 1 if any program went wrong."""
    options = _parser().parse_args(argv)
    planned, divided, runs = OF[options.of]
    if options.seed is not None:
        print(planned(options.seed))
        return _tell(runs([options.seed])[1], verbose=True)
    began = said = time.monotonic()
    done, failed = 0, 0
    for count, violations in _rows(list(divided(options.first, options.programs)), options.jobs, runs):
        done += count
        failed += len(violations)
        _tell(violations, options.verbose)
        now = time.monotonic()
        if now - said > EVERY:
            said = now
            print(f"{done} programs, {failed} wrong, {done / (now - began):.1f}/s", flush=True)
        if failed and options.stop:
            break
    print(f"{done} programs, {failed} wrong, {done / (time.monotonic() - began):.1f}/s")
    return 1 if failed else 0


def _rows(chunks: list[list[int]], jobs: int, runs: Run) -> Iterator[tuple[int, list[Violation]]]:
    if jobs == 1:
        yield from map(runs, chunks)
        return
    # Not a ProcessPoolExecutor: it may stand still where processes come to the end of their tasks together.
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=40) as pool:
        yield from pool.imap(runs, chunks)


def _tell(violations: list[Violation], verbose: bool) -> int:
    for violation in violations:
        print(f"seed {violation.seed}: {violation.words}", flush=True)
        if verbose:
            print(violation.trace)
    return 1 if violations else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__)
    parser.add_argument("--of", choices=OF, default="collectives", help="which programs")
    parser.add_argument("--programs", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--stop", action="store_true", help="stop after the first job with a wrong one")
    parser.add_argument("--verbose", action="store_true", help="print whole tracebacks")
    return parser


if __name__ == "__main__":
    sys.exit(main())
