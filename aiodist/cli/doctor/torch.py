"""torch. Importing it takes seconds, so without a GPU only its own note of how it was built is read."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from aiodist.cli.doctor import driver
from aiodist.cli.doctor.topic import Answers, Finding, Machine, ProcessAnswer, ProcessQuestion

_AGAIN = "pip install --force-reinstall torch"


def questions(machine: Machine) -> dict[str, ProcessQuestion]:
    """torch's own code runs in a process of its own."""
    return {"torch": ProcessQuestion("torch", examine)}


def examine() -> dict[str, Any]:
    """Look for torch.

    Returns:
        'version'; 'cuda': that it was built for, or ''; 'devices': how many it sees, None: was not asked.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    built = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    facts = {"version": str(built["__version__"]), "cuda": built.get("cuda") or "", "devices": None}
    if facts["cuda"] and driver.examine()["devices"]:
        import torch

        facts["devices"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return facts


def findings(answers: Answers, machine: Machine) -> Iterator[Finding]:
    """Say whether torch is here, and sees devices where the driver does."""
    yield _check(answers["torch"], bool(driver.devices(answers)))


def _check(torch: ProcessAnswer, has_devices: bool) -> Finding:
    if torch.absent == "torch":
        cost = "nothing, unless the program uses torch"
        return Finding("torch", "missing", "not installed", cost, "pip install torch")
    if torch.trouble:
        value = f"cannot be used: {torch.trouble}"
        return Finding("torch", "missing", value, "torch tensors cannot be used", _AGAIN)
    facts = torch.facts
    built = f"CUDA {facts['cuda']}" if facts["cuda"] else "built without CUDA"
    value = f"{facts['version']}, {built}"
    if not has_devices or facts["devices"]:
        return Finding("torch", "ok", value)
    value = f"{value}; it sees no device" if facts["cuda"] else value
    cost = "torch tensors are on the host; CuPy's may be on devices"
    return Finding("torch", "limited", value, cost, f"{_AGAIN}, built for this driver")
