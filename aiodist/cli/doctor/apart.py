"""The program of each process that is asked: one examination, its answer as JSON on stdout, and the end."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module

from aiodist.base.errors import AiodistError
from aiodist.cli.doctor.topic import ProcessAnswer, describe


def main() -> None:
    """Call the function that the command line names: its module, its name, its arguments."""
    module, name, *arguments = sys.argv[1:]
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is not the answer
    try:
        answer = ProcessAnswer(getattr(import_module(module), name)(*arguments))
    except ModuleNotFoundError as error:
        answer = ProcessAnswer(trouble=describe(error), absent=error.name or "")
    except AiodistError as error:
        answer = ProcessAnswer(trouble=f"{type(error).__name__}: {error}")
    except Exception as error:
        answer = ProcessAnswer(trouble=describe(error))
    with open(out, "w") as stream:
        json.dump(answer, stream)
