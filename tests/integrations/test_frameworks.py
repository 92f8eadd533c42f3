"""Ray, Dask and Lightning: stand-ins with as much of them as is used; `tests.launchers` has the real ones."""

from __future__ import annotations

import concurrent.futures as futures
import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from aiodist.base.errors import UsageError
from aiodist.group import ProcessGroup
from tests.levels import COSTLY

Load = Callable[[str], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Import an integration whose framework is the stand-in below."""
    for name, attributes in STAND_INS.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, last = name.rpartition(".")
        if parent:
            monkeypatch.setattr(sys.modules[parent], last, module, raising=False)
    loaded: list[str] = []

    def import_anew(name: str) -> Any:
        loaded.append(f"aiodist.integrations.{name}")
        sys.modules.pop(loaded[-1], None)
        return importlib.import_module(loaded[-1])

    yield import_anew
    for name in loaded:
        sys.modules.pop(name)


class Nothing:
    """A base class."""


class Context:
    """What Ray says of nodes."""

    def get_local_rank(self) -> int:
        return 1

    def get_local_world_size(self) -> int:
        return 2

    def get_node_rank(self) -> int:
        return 3


STAND_INS: dict[str, dict[str, Any]] = {
    "ray": {},
    "ray.train": {"get_context": Context},
    "ray.train.backend": {"Backend": Nothing, "BackendConfig": Nothing},
    "distributed": {
        "Client": Nothing,
        "Future": futures.Future,
        "as_completed": futures.as_completed,
        "fire_and_forget": lambda future: None,
        "wait": futures.wait,
    },
    "lightning": {},
    "lightning.fabric": {},
    "lightning.fabric.plugins": {},
    "lightning.fabric.plugins.environments": {},
    "lightning.fabric.plugins.environments.cluster_environment": {"ClusterEnvironment": Nothing},
}


class Workers:
    """Ray's workers, each an environment of its own."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.environs: list[dict[str, str]] = [{"LOCAL_RANK": "7", "AIODIST_HOST": "127.0.0.1"}] * count
        self._monkeypatch = monkeypatch

    def __len__(self) -> int:
        return len(self.environs)

    def execute_single(self, rank: int, call: Callable[..., Any], *arguments: Any) -> Any:
        with self._monkeypatch.context() as patch:
            mine = dict(self.environs[rank])
            patch.setattr(os, "environ", mine)
            returned = call(*arguments)
        self.environs[rank] = mine
        return returned

    def execute(self, call: Callable[..., Any]) -> None:
        for rank in range(len(self)):
            self.execute_single(rank, call)


def test_ray_s_workers_are_told_anew_each_time(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with fewer of them, as its elastic scaling has it."""
    config = load("ray").AiodistConfig()
    backend = config.backend_cls()
    stores, secrets = set(), set()
    for size in (3, 2):
        workers = Workers(size, monkeypatch)
        backend.on_start(workers, config)
        assert [one["RANK"] for one in workers.environs] == [*map(str, range(size))]
        assert {one["WORLD_SIZE"] for one in workers.environs} == {str(size)}
        assert all("LOCAL_RANK" not in one for one in workers.environs)  # of a run before
        stores |= {one["AIODIST_STORE"] for one in workers.environs}
        secrets |= {one["AIODIST_SECRET"] for one in workers.environs}
        backend.on_training_start(workers, config)
        local = [(one["LOCAL_RANK"], one["LOCAL_WORLD_SIZE"], one["NODE_RANK"]) for one in workers.environs]
        assert local == [("1", "2", "3")] * size
    backend.on_shutdown(workers, config)
    assert len(stores) == len(secrets) == 2


class Client:
    """Dask's client, of a cluster whose workers are threads here."""

    def __init__(self, workers: int) -> None:
        self.pools = {f"tcp://w{n}": futures.ThreadPoolExecutor(1) for n in range(workers)}
        self.canceled: list[futures.Future[Any]] = []

    def scheduler_info(self) -> dict[str, Any]:
        return {"workers": self.pools}

    def submit(
        self, call: Callable[..., Any], *arguments: Any, workers: list[str], **_: Any
    ) -> futures.Future[Any]:
        return self.pools[workers[0]].submit(call, *arguments)

    def cancel(self, submitted: list[futures.Future[Any]]) -> None:
        self.canceled += submitted

    def close(self) -> None:
        for pool in self.pools.values():
            pool.shutdown()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("AIODIST_HOST", "127.0.0.1")
    client = Client(3)
    yield client
    client.close()


async def adds_up(pg: ProcessGroup, scale: float) -> tuple[int, float]:
    total = await pg.all_reduce(np.array([scale * (pg.rank + 1)]))
    return pg.rank, float(total[0])


async def fails(pg: ProcessGroup) -> None:
    await pg.barrier()
    if pg.rank == 1:
        raise KeyError("a mistake of rank 1")
    await pg.barrier()
    await pg.barrier()


def test_dask_s_workers_are_ranks(load: Load, client: Client) -> None:
    run = load("dask").run
    assert run(client, adds_up, 2.0) == [(0, 12.0), (1, 12.0), (2, 12.0)]
    assert run(client, adds_up, 1.0, workers=["tcp://w2", "tcp://w0"]) == [(0, 3.0), (1, 3.0)]
    with pytest.raises(UsageError, match="the cluster has no worker"):
        run(client, adds_up, 1.0, workers=[])


@pytest.mark.slow(COSTLY)
def test_dask_raises_the_error_that_is_nobody_elses_fault(load: Load, client: Client) -> None:
    with pytest.raises(KeyError, match="a mistake of rank 1"):
        load("dask").run(client, fails)
    assert len(client.canceled) == 3


def test_lightning_is_told_what_aiodist_run_says(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = load("lightning").AiodistEnvironment
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "AIODIST_STORE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert not environment.detect()
    told = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "NODE_RANK": "2", "AIODIST_STORE": "h:1"}
    for name, value in {**told, "MASTER_ADDR": "h", "MASTER_PORT": "29501"}.items():
        monkeypatch.setenv(name, value)
    assert environment.detect()
    one = environment()
    assert (one.global_rank(), one.world_size(), one.local_rank(), one.node_rank()) == (5, 8, 1, 2)
    assert (one.main_address, one.main_port) == ("h", 29501)
    assert one.creates_processes_externally
