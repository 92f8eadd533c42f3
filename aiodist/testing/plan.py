"""What a rank of an `@spmd` test is told: which function, from which module, with which arguments.

The plan is written to a file, once a test. Arguments travel as pickles, one by one, so that one that cannot
travel is named.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from aiodist.base.errors import UsageError
from aiodist.testing.parcel import pack, unpack

MAIN = "__main__"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a module is: its file, and the folders of its submodules if it is a package."""

    file: str | None
    folders: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Reporting:
    """How pytest was asked to show failures.

    Args:
        style: of tracebacks, as `--tb`.
        showlocals, verbose, full: `--showlocals`, `-v`, `--full-trace`.
        rewrite: whether it rewrites asserts; marked: modules besides the test's for which it does.
        pdb: whether a failure stops in the debugger.
        log_level: what is logged; None: what the loggers say.
        log_format, log_dates: of records, as `logging.Formatter` takes them.
    """

    style: str = "long"
    showlocals: bool = False
    verbose: int = 0
    full: bool = False
    rewrite: bool = True
    marked: tuple[str, ...] = ()
    pdb: bool = False
    log_level: int | None = None
    log_format: str = ""
    log_dates: str | None = None


@dataclass(frozen=True, slots=True)
class RankPlan:
    """The plan.

    Args:
        module: the test module's name; qualname: the function's.
        places: modules that ranks would not find, or not the same, by name.
        path: `sys.path`.
        arguments: pickled, by name.
        own: arguments that every rank makes anew, and which fixture of pytest's each is.
        itself: the object that a method belongs to: its pickle, or, of a unittest.TestCase, that of its name
            and attributes; None for a function.
        backend: as for `init_process_group`; '' for None.
        reporting: None: without pytest.
        coverage: what is measured, if anything is (`measuring`).
        terminal: the socket by which a debugger talks; '' for none.
        breaks: the rank that stops at `breakpoint()`; -1: all do.
        filters: of warnings, pickled.
    """

    module: str
    qualname: str
    places: Mapping[str, RankPlace]
    path: tuple[str, ...] = ()
    arguments: Mapping[str, bytes] = field(default_factory=dict)
    own: Mapping[str, str] = field(default_factory=dict)
    itself: bytes | None = None
    backend: str = ""
    reporting: Reporting | None = None
    coverage: Mapping[str, Any] | None = None
    terminal: str = ""
    breaks: int = -1
    filters: tuple[bytes, ...] = ()

    def write(self, folder: Path) -> Path:
        """Write it down → the file."""
        path = folder / "plan"
        path.write_bytes(pack(self))
        return path

    @classmethod
    def read(cls, path: Path) -> RankPlan:
        """The plan of a file."""
        found = unpack(path.read_bytes())
        assert isinstance(found, cls)
        return found


def pickled(value: object, what: str, test: str) -> bytes:
    """A value for the ranks.

    Raises:
        UsageError: it cannot leave this process.
    """
    try:
        return pack(value)
    except Exception as error:  # whatever its __reduce__ raises
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise UsageError(
            f"{test}: {what} ({kind}) cannot go to the processes of the ranks: {error}",
            hint=_INSTEAD.get(type(value).__name__, "Make it in the test's body, from what can be pickled"),
        ) from None


_INSTEAD = {
    "TopRequest": "Ask `request` in a fixture, and pass on what it says",
    "SubRequest": "Ask `request` in a fixture, and pass on what it says",
    "TempPathFactory": "Take `tmp_path`: all ranks are given the same folder",
    "Pytester": "Run pytest in a plain test, without @spmd",
    "generator": "Have the fixture yield a value, and not return a generator",
}

OWN_KINDS = {
    "MonkeyPatch": "monkeypatch",
    "LogCaptureFixture": "caplog",
    "WarningsRecorder": "recwarn",
    "SysCapture": "capsys",
    "FDCapture": "capfd",
}


def own_kind(value: object) -> str | None:
    """Which fixture of pytest's a value is, if it is one that every rank has of its own."""
    kind = type(value)
    if not kind.__module__.startswith("_pytest."):
        return None
    captures: type | None = getattr(value, "captureclass", None)
    return OWN_KINDS.get(kind.__name__ if captures is None else captures.__name__)


def places_of(function: Callable[..., Any]) -> dict[str, RankPlace]:
    """The modules that ranks are told the places of: the function's, its packages, and conftest files."""
    file = inspect.getsourcefile(function)
    found = {function.__module__: RankPlace(file)}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name == function.__module__ or (path and Path(path).name == "conftest.py"):
            found |= dict(_with_packages(name))
    return found


def _with_packages(name: str) -> Iterator[tuple[str, RankPlace]]:
    while name and name != MAIN:
        module = sys.modules.get(name)
        if module is not None:
            folders = getattr(module, "__path__", None)
            file = getattr(module, "__file__", None)
            yield name, RankPlace(file, None if folders is None else tuple(folders))
        name = name.rpartition(".")[0]


class Finder(MetaPathFinder):
    """A finder of the modules whose places are known.

    Args:
        places: by name.
        loader: loads their files; None: Python's own.
    """

    def __init__(self, places: Mapping[str, RankPlace], loader: Loader | None = None) -> None:
        self._places = places
        self._loader = loader

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the import system asks."""
        place = self._places.get(name)
        if place is None:
            return None
        folders = None if place.folders is None else list(place.folders)
        if place.file is None:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = folders
            return spec
        return spec_from_file_location(
            name, place.file, loader=self._loader, submodule_search_locations=folders
        )
