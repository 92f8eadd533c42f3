"""Ray Train: `DataParallelTrainer(train, backend_config=AiodistConfig(), …)`.

    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    from aiodist.integrations.ray import AiodistConfig

    def train():
        dist.run(main())          # and in main: async with await dist.init_process_group() as pg

    DataParallelTrainer(train, backend_config=AiodistConfig(), scaling_config=…).fit()

Worker 0 hosts the store, on a port that it finds free, and every worker is told of it, of its rank and of a
random secret, by Ray's own way. Where Ray starts the workers again (FailureConfig, elastic scaling) that is
done anew.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import ray.train
from ray.train.backend import Backend, BackendConfig

from aiodist.integrations.hosted import Host, HostedPlace

_hosts: list[Host] = []  # of this process; a worker has one at a time
_NAMES = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")


@dataclass
class AiodistConfig(BackendConfig):  # type: ignore[misc]
    """The backend config of Ray Train for scripts that use aiodist."""

    @property
    def backend_cls(self) -> type[Backend]:
        """The backend, for Ray."""
        return _AiodistBackend


class _AiodistBackend(Backend):  # type: ignore[misc]
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: AiodistConfig) -> None:
        """Have worker 0 host the store, and tell all."""
        place: HostedPlace = worker_group.execute_single(0, _host)
        size = len(worker_group)
        for rank in range(size):
            worker_group.execute_single(rank, _set, place.environ(rank, size))

    def on_training_start(self, worker_group: Any, backend_config: AiodistConfig) -> None:
        """Say what Ray knows of nodes and local ranks."""
        worker_group.execute(_set_local)

    def on_shutdown(self, worker_group: Any, backend_config: AiodistConfig) -> None:
        """End the store."""
        worker_group.execute_single(0, _close)


def _host() -> HostedPlace:
    _close()
    _hosts.append(Host.start())
    return _hosts[0].place


def _close() -> None:
    while _hosts:
        _hosts.pop().close()


def _set(environ: dict[str, str]) -> None:
    for name in _NAMES:
        os.environ.pop(name, None)
    os.environ.update(environ)


def _set_local() -> None:
    context = ray.train.get_context()
    numbers = (context.get_local_rank(), context.get_local_world_size(), context.get_node_rank())
    os.environ.update(zip(_NAMES, map(str, numbers), strict=True))
