"""torch. Importing it takes seconds, so without a GPU only its own note of how it was built is read."""

from __future__ import annotations

import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from aiodist.cli.doctor.apart.driver_probe import probe as driver


def probe() -> dict[str, Any]:
    """Look for torch.

    Returns:
        'version'; 'cuda': that it was built for, or ''; 'devices': how many it sees, None: was not asked.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    built = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    facts = {"version": str(built["__version__"]), "cuda": built.get("cuda") or "", "devices": None}
    if facts["cuda"] and driver()["devices"]:
        import torch

        facts["devices"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return facts
