"""`python -m benchmarks QUESTION …`; each question has its own options, see `QUESTION --help`.

speed       how fast it is, beside torch's gloo, Open MPI and MPICH
deaths      what happens when something fails
training    whether training converges, over slow cables and through deaths
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.harness.command import dispatch, run_main

QUESTIONS = {name: f"benchmarks.{name}.command" for name in ("speed", "deaths", "training")}


def main(argv: Sequence[str]) -> int:
    """Ask one of the questions; 2 where it is none, or this is not Linux."""
    if not sys.platform.startswith("linux"):
        print("benchmarks: they need Linux (pidfd, memfd, namespaces, /proc)", file=sys.stderr)
        return 2
    return dispatch(QUESTIONS, __doc__, argv)


if __name__ == "__main__":
    run_main(main)
