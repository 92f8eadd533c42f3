"""Python, and the packages that aiodist stands on or may use."""

from __future__ import annotations

from dataclasses import dataclass

from aiodist.cli.doctor.finding import Finding, State
from aiodist.cli.doctor.probes.asking import Answer


@dataclass(frozen=True)
class Need:
    """The use of a package, and what it costs to be without."""

    state: State
    cost: str
    install: str


_NEEDS = {
    "numpy": Need("missing", "there are no tensors: nothing works", "numpy"),
    "msgpack": Need("missing", "processes cannot meet: nothing works", "msgpack"),
    "ml_dtypes": Need("missing", "there is no bfloat16, and nothing works", "ml_dtypes"),
    "uvloop": Need(
        "limited", "asyncio's own event loop is used, which takes longer for small messages", "uvloop"
    ),
    "aiohttp": Need("missing", "stores in etcd (etcd://…) cannot be used", "'aiodist[etcd]'"),
}
NAMES = tuple(_NEEDS)


def check_package(name: str, answer: Answer) -> Finding:
    """Whether a package of `NAMES` is here, and can be imported."""
    need = _NEEDS[name]
    title = "etcd (aiohttp)" if name == "aiohttp" else name
    if answer.absent == name:
        return Finding(title, need.state, "not installed", need.cost, f"pip install {need.install}")
    if answer.trouble:
        value = f"cannot be imported: {answer.trouble}"
        return Finding(title, need.state, value, need.cost, f"pip install --force-reinstall {name}")
    return Finding(title, "ok", answer.facts["version"] or "of unknown version")
