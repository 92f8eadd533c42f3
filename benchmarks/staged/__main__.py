"""Stage all problems, or those that are named, and print the table of what was told (Markdown)."""

from __future__ import annotations

import sys

from benchmarks.ending import run_main
from benchmarks.staged.problem import PROBLEMS
from benchmarks.staged.stage import ALL, AbsentError, stage


def main(names: list[str]) -> int:
    """Run them; 1 where something was told wrong."""
    print("| Problem | What was told, in its first line | after | right |\n|---|---|---|---|", flush=True)
    wrong = 0
    for problem in ALL:
        if names and problem.name not in names:
            continue
        what = (PROBLEMS[problem.name].__doc__ or "").strip().rstrip(".")
        try:
            told = stage(problem)
        except AbsentError as absent:
            print(f"| {what} | not staged: {absent} | | |", flush=True)
            continue
        wrong += bool(told.missing)
        rows = told.box.splitlines()
        first = rows[1].removeprefix("│").strip() if len(rows) > 1 else "nothing"
        right = "yes" if not told.missing else f"no: {', '.join(map(repr, told.missing))} is missing"
        print(f"| {what} | {first} | {told.seconds:.0f} s | {right} |", flush=True)
        if told.missing:
            print(told.box, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    run_main(main)
