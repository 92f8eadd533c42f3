"""The compiled hot path: what takes longer in Python than what it does.

    combine.pyx     reductions of two arrays; `loops.h`, `halves.h`: its loops, in C
    fingerprint     which sources an extension was made of

Stubs (`.pyi`) say what each extension offers, and are the pages to read first. `pip install .` compiles
where there is a C compiler (hatch_build.py); without one everything works by plain Python, more slowly. There
is no third way. An extension is used only where it was made of the sources beside it: a changed clone must be
installed again.

AIODIST_ENGINE=python leaves it aside, AIODIST_ENGINE=compiled refuses to go on without it.

It knows arrays and memory, and nothing of groups. Ranks share memory only with ranks that have the same
engine, or none as they do: they compare `NAME`.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from aiodist._engine.fingerprint import fingerprint

if TYPE_CHECKING:
    from aiodist._engine.combine import Combiner

VARIABLE = "AIODIST_ENGINE"
"""What the user asks for; `base.environment.tuning` refuses what is no choice."""


class Compiled(Protocol):
    """The interface of the extensions; `combine.pyi` says what each part does."""

    FINGERPRINT: str
    Combiner: type[Combiner]

    def scale_halves(self, array: Any, code: int, number: float, divide: bool) -> None: ...


def _elsewhere() -> list[str]:
    """Folders in which an editable installation has put the extensions."""
    here, found = Path(__file__).parent, []
    for entry in sys.path:
        if isinstance(entry, str) and entry:  # people put other things there, too
            place = Path(entry) / "aiodist" / "_engine"
            try:
                if place != here and any(place.glob("combine.*.so")):
                    found.append(str(place))
            except (OSError, ValueError):  # it cannot be looked into
                continue
    return found


def _load(asked: str) -> tuple[Compiled | None, str]:
    """The extension, or why it is not used."""
    if asked == "python":
        return None, f"{VARIABLE}=python"
    __path__.extend(_elsewhere())
    try:
        found = importlib.import_module("aiodist._engine.combine")
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError)
        return None, "it is not installed" if absent else f"it cannot be loaded: {error}"
    wanted = fingerprint(Path(__file__).parent)
    if wanted and wanted != found.FINGERPRINT:
        why = "the installed one was made of other sources: install this clone again"
        logging.getLogger("aiodist").warning("aiodist runs by plain Python: %s", why)
        return None, why
    return cast("Compiled", found), ""


compiled, WHY_NOT = _load(os.environ.get(VARIABLE, "").strip().lower())
"""The extension; None where plain Python does its work, and why."""

NAME = "" if compiled is None else compiled.FINGERPRINT
"""The engine that this process uses, for comparison with others'; '' is plain Python."""


def describe() -> str:
    """The engine that this process uses, in a few words."""
    return f"compiled ({NAME})" if compiled is not None else f"plain Python: {WHY_NOT}"
