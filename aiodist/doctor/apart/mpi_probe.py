"""mpi4py and the MPI library behind it, which starts when it is imported."""

from __future__ import annotations

from typing import Any


def probe() -> dict[str, Any]:
    """What there is.

    Returns:
        'version': of mpi4py; 'library': in its own words; 'threads': the level that it grants; 'refused': why
        the backend does not take it, 'hint': what mends that.
    """
    import mpi4py
    from mpi4py import MPI

    from aiodist.backends.mpi.library import load
    from aiodist.errors import BackendUnavailable

    levels = {
        MPI.THREAD_SINGLE: "single",
        MPI.THREAD_FUNNELED: "funneled",
        MPI.THREAD_SERIALIZED: "serialized",
        MPI.THREAD_MULTIPLE: "multiple",
    }
    refused = hint = ""
    try:
        load()
    except BackendUnavailable as error:
        refused, hint = error.message, error.hint
    return {
        "version": mpi4py.__version__,
        "library": MPI.Get_library_version(),
        "threads": levels.get(MPI.Query_thread(), "unknown"),
        "refused": refused,
        "hint": hint,
    }
