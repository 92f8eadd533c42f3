"""`python -m benchmarks QUESTION …`; each question has its own options, see `QUESTION --help`.

speed       how fast it is, beside torch's gloo, Open MPI and MPICH
deaths      what happens when something fails
training    whether training converges, over slow cables and through deaths
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from aiodist import _engine
from benchmarks.harness.command import dispatch, run_main

QUESTIONS = {name: f"benchmarks.{name}.command" for name in ("speed", "deaths", "training")}


def main(argv: Sequence[str]) -> int:
    """Ask one of the questions; 2 where it is none, this is not Linux, or the engine is missing unasked."""
    if not sys.platform.startswith("linux"):
        print("benchmarks: they need Linux (pidfd, memfd, namespaces, /proc)", file=sys.stderr)
        return 2
    if _engine.compiled is None and f"{_engine.VARIABLE}=python" != _engine.WHY_NOT:
        print(f"benchmarks: aiodist runs by {_engine.describe()}", file=sys.stderr)
        print(f"Set {_engine.VARIABLE}=python to measure it without the engine", file=sys.stderr)
        return 2
    return dispatch(QUESTIONS, __doc__, argv)


if __name__ == "__main__":
    run_main(main)
