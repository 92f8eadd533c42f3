"""The backend that `backend=None` picks in a process, and those that other packages bring."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from aiodist.base.errors import AiodistError
from aiodist.cli.doctor.topic import Answers, Finding, Machine, ProcessQuestion, describe


def questions(machine: Machine) -> dict[str, ProcessQuestion]:
    """Other packages' code runs in a process of its own."""
    return {"backends": ProcessQuestion("backends", examine)}


def examine() -> dict[str, Any]:
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


def findings(answers: Answers, machine: Machine) -> Iterator[Finding]:
    """Say what `backend=None` picks, and which backends other packages bring."""
    name, answer = "backend=None", answers["backends"]
    if answer.trouble:
        yield Finding(name, "missing", answer.trouble, "the default is not known")
        return
    facts = answer.facts
    if facts["trouble"]:
        yield Finding(name, "missing", facts["trouble"], "only backends that are named can be used")
    else:
        value = f"host tensors: {facts['host']}; device tensors: {facts['device'] or 'not taken'}"
        yield Finding(name, "ok", value)
    for other in facts["others"]:
        name, package, trouble = other["name"], other["package"], other["trouble"]
        if trouble:
            yield Finding(name, "missing", f"{package}: {trouble}", f"backend='{name}' cannot be used")
        else:
            yield Finding(name, "ok", f"by {package}")
