"""The program of each process that is asked: one look, its answer as JSON on stdout, and the end.

A probe is a function from arguments to facts that JSON can hold. What its library prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

from aiodist.base.errors import AiodistError
from aiodist.cli.doctor.text import describe

PROBES = frozenset({"address", "backends", "cupy", "driver", "mpi", "package", "pair", "torch"})
"""Names of the probes: each is a module here, with a function `probe`."""


def main() -> None:
    """Run the probe that the command line names."""
    name, *arguments = sys.argv[1:]
    assert name in PROBES, name
    out = os.dup(1)
    os.dup2(2, 1)
    answer: dict[str, object]
    try:
        answer = {"facts": import_module(f"aiodist.cli.doctor.apart.{name}_probe").probe(*arguments)}
    except ModuleNotFoundError as error:
        answer = {"trouble": describe(error), "absent": error.name}
    except AiodistError as error:
        answer = {"trouble": f"{type(error).__name__}: {error}"}
    except Exception as error:
        answer = {"trouble": describe(error)}
    with open(out, "w") as stream:
        json.dump(answer, stream)
