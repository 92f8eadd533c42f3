"""A stand-in for CuPy and NCCL in their place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aiodist.backends.foreign import Setup
from aiodist.backends.nccl import communicators, device, engine
from tests.backends.nccl.stand_in import World


@pytest.fixture(params=[True])
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A stand-in for CuPy, with a device for each rank of the cluster."""
    made = World(request.param)
    for name, module in made.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    for name in communicators._SETTINGS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # the first communicator sets it
    monkeypatch.setattr(device, "_devices", {})
    monkeypatch.setattr(device, "_never_freed", [])
    begin: Callable[[Any, Setup], None] = engine.NcclEngine.__init__

    def apart(self: Any, setup: Setup) -> None:
        begin(self, setup)
        self._index = setup.ranks[setup.rank]

    monkeypatch.setattr(engine.NcclEngine, "__init__", apart)
    yield made
    made.close()
    assert made.races == []
