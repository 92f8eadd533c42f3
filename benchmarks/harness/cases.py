"""The cases of `aiodist bench`, from this tree: also in ranks that measure another state of aiodist."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from benchmarks.harness.command import ROOT

if TYPE_CHECKING:
    from aiodist.cli.bench.cases import COLLECTIVES as COLLECTIVES
    from aiodist.cli.bench.cases import FIVE as FIVE
    from aiodist.cli.bench.cases import IN_FLIGHT as IN_FLIGHT
    from aiodist.cli.bench.cases import SWEPT as SWEPT
    from aiodist.cli.bench.cases import Array as Array
    from aiodist.cli.bench.cases import Case as Case
    from aiodist.cli.bench.cases import WrongResultError as WrongResultError
    from aiodist.cli.bench.cases import check as check
    from aiodist.cli.bench.cases import fill as fill
    from aiodist.cli.bench.cases import five as five

_NAME = "benchmarks_cases"
_spec = importlib.util.spec_from_file_location(_NAME, ROOT / "aiodist" / "cli" / "bench" / "cases.py")
assert _spec is not None
assert _spec.loader is not None
_loaded = sys.modules[_NAME] = importlib.util.module_from_spec(_spec)  # dataclasses look for their module
_spec.loader.exec_module(_loaded)


def __getattr__(name: str) -> Any:
    return getattr(_loaded, name)
