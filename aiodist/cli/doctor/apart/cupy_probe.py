"""CuPy, and the NCCL that it loads."""

from __future__ import annotations

import os
from importlib.metadata import distributions
from typing import Any

import numpy as np

from aiodist.cli.doctor.text import describe

_LONGEST = 4000  # of what a compiler says


def probe() -> dict[str, Any]:
    """Look for CuPy.

    Returns:
        'version'; 'packages': the distributions that bring a CuPy; 'cuda': of its runtime, as the driver's;
        'devices': how many it sees; 'copied': an array went to the first of them and came back;
        'trouble': why not; 'uncompiled': what CuPy said where it cannot compile a kernel;
        'nccl': 10000 * major + 100 * minor + patch, 0 without; 'without': why;
        'shares': it lets several ranks use one device; 'could_share': it would, if it were told to.
    """
    import cupy

    from aiodist.backends.nccl.sharing import can_share

    facts: dict[str, Any] = {
        "version": cupy.__version__,
        "packages": sorted(
            {
                found.name
                for found in distributions()
                if found.name and (found.name == "cupy" or found.name.startswith("cupy-cuda"))
            }
        ),
        "cuda": 0,
        "devices": 0,
        "copied": False,
        "trouble": "",
        "uncompiled": "",
        "nccl": 0,
        "without": "",
        "shares": False,
        "could_share": False,
    }
    try:
        facts["cuda"] = cupy.cuda.runtime.runtimeGetVersion()
        facts["devices"] = cupy.cuda.runtime.getDeviceCount()
        if facts["devices"]:
            facts["copied"] = cupy.asarray([3, 1, 4]).get().tolist() == [3, 1, 4]
    except Exception as error:
        facts["trouble"] = describe(error)
    if facts["copied"]:
        facts["uncompiled"] = _uncompiled(cupy)
    try:
        from cupy.cuda import nccl

        if nccl.available:
            facts["nccl"] = version = int(nccl.get_version())
            facts["shares"] = can_share(version, os.environ)
            facts["could_share"] = can_share(version, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"})
        else:
            facts["without"] = "its library was not found"
    except Exception as error:
        facts["without"] = describe(error)
    return facts


def _uncompiled(cupy: Any) -> str:
    """Have a kernel compiled that needs CUDA's headers, too: it copies every other float16."""
    try:
        copied = cupy.asarray(np.array([3, 1, 4], np.float16))[::2].copy().get().tolist()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:_LONGEST]
    return "" if copied == [3, 4] else "what was copied is not what it should be"
