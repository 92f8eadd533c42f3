"""The backend that `backend=None` picks in this process, and those that other packages bring."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from aiodist.cli.doctor.text import describe


def probe() -> dict[str, Any]:
    """Look for backends.

    Returns:
        'host', 'device': what carries out operations on tensors on the host and on devices; '' for nothing.
        'trouble': why that cannot be told.
        'others': name, package and trouble ('' if it can be used) of each third-party backend.
    """
    facts: dict[str, Any] = {"host": "", "device": "", "trouble": "", "others": []}
    try:
        facts["host"], facts["device"] = _picked()
    except Exception as error:
        facts["trouble"] = describe(error)
    for point in entry_points(group="aiodist.backends"):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        facts["others"].append({"name": point.name, "package": package, "trouble": _tried(point.name)})
    return facts


def _picked() -> tuple[str, str]:
    from aiodist.backends.choice import CPU, CUDA, parse

    choice = parse(None).check()
    engines = {place: engine.name for place, engine in choice.engines.items()}
    staged = "the host's memory" if choice.staged else ""
    return "host" if choice.host else engines.get(CPU, ""), engines.get(CUDA, staged)


def _tried(name: str) -> str:
    from aiodist.backends.registry import HOST, find_engine
    from aiodist.base.errors import AiodistError

    try:
        engine = None if name.lower() in HOST else find_engine(name.lower())
        if engine is None or engine.__module__.partition(".")[0] == "aiodist":
            return "the name is aiodist's own"
        engine.check()
    except AiodistError as error:
        return str(error)
    except Exception as error:
        return describe(error)
    return ""
