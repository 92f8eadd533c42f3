"""What tests of topics share: questions to processes of their own, packages made here, answers of drivers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from aiodist.cli.doctor import asking
from aiodist.cli.doctor.topic import Finding, Machine, ProcessAnswer, ProcessQuestion

MACHINE = Machine({}, ranks=1)


def ask(examine: Callable[..., Any], *arguments: str, limit: float = 60, **environ: str) -> ProcessAnswer:
    """The answer of a process that calls this function."""
    question = ProcessQuestion("it", examine, arguments)
    return asking.ask({"it": question}, {**os.environ, **environ}, limit)["it"]


def fake(folder: Path, name: str, code: str) -> str:
    """A package of that name, for PYTHONPATH."""
    (folder / f"{name}.py").write_text(code)
    return str(folder)


def by_name(findings: Iterable[Finding]) -> Mapping[str, Finding]:
    """Findings by their names, each of which is there once."""
    listed = list(findings)
    found = {finding.name: finding for finding in listed}
    assert len(found) == len(listed)
    return found


H200 = {"name": "NVIDIA H200", "memory": 140 << 30, "uuid": "0123456789abcdef", "capability": "9.0"}
WITHOUT: dict[str, Any] = {"nodes": [], "kernel": "", "library": False, "cuda": 0, "trouble": ""}
NO_DRIVER = ProcessAnswer({**WITHOUT, "devices": [], "separate": []})


def driver(count: int = 1, **more: Any) -> ProcessAnswer:
    """Of a machine with devices."""
    nodes = [f"nvidia{number}" for number in range(count)]
    facts = {"nodes": nodes, "kernel": "580.1", "library": True, "cuda": 12080, "trouble": ""}
    return ProcessAnswer({**facts, "devices": [H200] * count, "separate": [], **more})
