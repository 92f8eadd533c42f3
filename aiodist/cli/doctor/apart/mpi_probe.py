"""mpi4py and the MPI library behind it, which starts when it is imported."""

from __future__ import annotations

import sys
from typing import Any


def probe() -> dict[str, Any]:
    """Look for mpi4py and its MPI.

    Returns:
        'version': of mpi4py; 'library': in its own words, 'threads': the level that it grants, both '' where
        it cannot be loaded; 'refused': why the backend does not take it, 'hint': what mends that.
    """
    import mpi4py

    from aiodist.backends.mpi.library import load
    from aiodist.base.errors import BackendUnavailable

    facts = {"version": mpi4py.__version__, "library": "", "threads": "", "refused": "", "hint": ""}
    try:
        load()
    except BackendUnavailable as error:
        facts["refused"], facts["hint"] = error.message, error.hint
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None:
        levels = {
            mpi.THREAD_SINGLE: "single",
            mpi.THREAD_FUNNELED: "funneled",
            mpi.THREAD_SERIALIZED: "serialized",
            mpi.THREAD_MULTIPLE: "multiple",
        }
        facts["library"] = mpi.Get_library_version()
        facts["threads"] = levels.get(mpi.Query_thread(), "unknown")
    return facts
