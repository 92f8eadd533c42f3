"""Python, and the packages that aiodist stands on or may use.

NumPy, too, can crash when it is imported: on a processor that is too old for it.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from aiodist.cli.doctor.topic import Answers, Finding, Machine, ProcessAnswer, ProcessQuestion, State


class _Need(NamedTuple):
    """The lack of a package. Its title, and what pip is to install, if that is not its name."""

    state: State
    cost: str
    title: str = ""
    install: str = ""


_NEEDS = {
    "numpy": _Need("missing", "there are no tensors: nothing works"),
    "msgpack": _Need("missing", "processes cannot meet: nothing works"),
    "ml_dtypes": _Need("missing", "there is no bfloat16, and nothing works"),
    "uvloop": _Need("limited", "asyncio's own event loop is used, which takes longer for small messages"),
    "aiohttp": _Need(
        "missing", "stores in etcd (etcd://…) cannot be used", "etcd (aiohttp)", "'aiodist[etcd]'"
    ),
}
NAMES = tuple(_NEEDS)


def questions(machine: Machine) -> dict[str, ProcessQuestion]:
    """Each package is imported in a process of its own."""
    return {name: ProcessQuestion("packages", examine, (name,)) for name in NAMES}


def examine(name: str) -> dict[str, str]:
    """Import a package → 'version', '' where it says none. Raises whatever a broken one raises."""
    found = getattr(import_module(name), "__version__", "")
    if isinstance(found, str) and found:
        return {"version": found}
    try:
        return {"version": version(name)}
    except PackageNotFoundError:
        return {"version": ""}


def findings(answers: Answers, machine: Machine) -> Iterator[Finding]:
    """Say which Python this is, and which packages are here and can be imported."""
    from aiodist import _engine  # NumPy is behind it

    yield Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")
    yield engine(_engine.compiled is not None, _engine.describe())
    for name in NAMES:
        yield check(name, answers[name])


def engine(compiled: bool, words: str) -> Finding:
    """Whether aiodist uses its compiled engine."""
    if compiled:
        return Finding("engine", "ok", words)
    cost = "reductions of halves take 4 to 30 times as long"
    return Finding("engine", "limited", words, cost, "install a C compiler, then aiodist again")


def check(name: str, answer: ProcessAnswer) -> Finding:
    """Whether a package of `NAMES` is here, and can be imported."""
    state, cost, title, install = _NEEDS[name]
    title, install = title or name, install or name
    if answer.absent == name:
        return Finding(title, state, "not installed", cost, f"pip install {install}")
    if answer.trouble:
        value = f"cannot be imported: {answer.trouble}"
        return Finding(title, state, value, cost, f"pip install --force-reinstall {name}")
    return Finding(title, "ok", answer.facts["version"] or "of unknown version")
