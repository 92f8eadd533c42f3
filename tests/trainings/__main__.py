"""Random trainings: `python -m tests.trainings --trainings 2000`, or `--seed N --verbose`."""

from __future__ import annotations

import argparse
import concurrent.futures
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.trainings.plan import plan
from tests.trainings.run import train

EVERY = 200


def one(seed: int) -> tuple[int, list[str], str, int, Counter[str]]:
    """Run a seed → what is wrong, its kind, calls of `restore`, and how its processes ended."""
    ledger = train(plan(seed))
    ends = Counter(words.partition(":")[0] for words in ledger.ends.values())
    return seed, ledger.violations, plan(seed).kind, ledger.restored, ends


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code, 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.trainings", description=__doc__)
    parser.add_argument("--trainings", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--verbose", action="store_true", help="with --seed: say what happens")
    options = parser.parse_args(argv)
    if options.seed is not None:
        return _replay(options.seed, options.verbose)
    kinds, ends, restored, failed = Counter[str](), Counter[str](), 0, list[int]()
    for seed, violations, kind, restores, ended in _rows(
        range(options.first, options.first + options.trainings), options.jobs
    ):
        kinds[kind] += 1
        ends.update(ended)
        restored += restores
        if violations:
            failed.append(seed)
            print(f"seed {seed} ({kind}): {violations[0]}", flush=True)
        if sum(kinds.values()) % EVERY == 0:
            print(f"{sum(kinds.values())} trainings, {len(failed)} failed", flush=True)
    print(f"{dict(kinds)}, {restored} calls of restore, processes ended: {dict(ends)}")
    print(f"violations in {len(failed)} trainings: {failed[:50]}")
    return 1 if failed else 0


def _rows(seeds: Iterable[int], jobs: int) -> Iterator[tuple[int, list[str], str, int, Counter[str]]]:
    if jobs == 1:
        yield from map(one, seeds)
        return
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(one, seeds, chunksize=8)


def _replay(seed: int, verbose: bool) -> int:
    ledger = train(plan(seed))
    if verbose:
        print(plan(seed))
        print("\n".join(ledger.lines))
    print(f"seed {seed}: {len(ledger.violations)} violations")
    for words in ledger.violations:
        print(f"  {words}")
    return 1 if ledger.violations else 0


if __name__ == "__main__":
    sys.exit(main())
