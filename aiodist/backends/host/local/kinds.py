"""The choice of the exchange that carries out a call."""

from __future__ import annotations

from aiodist.backends.host.local.direct import Meet, ReduceEach
from aiodist.backends.host.local.exchange import Exchange
from aiodist.backends.host.local.plan import Path
from aiodist.backends.host.local.reduce_all import ReduceAll
from aiodist.backends.host.local.share import Share
from aiodist.backends.host.local.small import Small
from aiodist.backends.host.local.wired import Wired
from aiodist.base.operations import ROLES, Kind

_BY_PATH: dict[Path, type[Exchange]] = {
    Path.meet: Meet,
    Path.direct: ReduceEach,
    Path.slot: Small,
    Path.wired: Wired,
}


def exchange_for(kind: Kind, path: Path) -> type[Exchange]:
    """The kind of exchange: in two phases where every rank reduces a part of one tensor, else in one."""
    roles = ROLES[kind]
    return _BY_PATH.get(path) or (ReduceAll if roles.reduces and not roles.cut else Share)
