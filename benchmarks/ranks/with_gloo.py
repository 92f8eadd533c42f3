"""torch.distributed on gloo in one rank: `dist.all_reduce(tensor)` and so on."""

from __future__ import annotations

import datetime
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist

from benchmarks.harness.cases import IN_FLIGHT, Array, Case, five
from benchmarks.harness.link import AbsentError
from benchmarks.ranks.base import LOOPBACK, Call, Peer, in_a_row

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class GlooPeer(Peer):
    """See `Peer`."""

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}

    async def connect(self, port: int, host: str = LOOPBACK) -> None:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{host}:{port}",
            rank=self.rank,
            world_size=self.size,
            timeout=datetime.timedelta(seconds=max(60, self.size)),
        )

    async def disconnect(self) -> None:
        dist.destroy_process_group()

    async def barrier(self) -> None:
        dist.barrier()

    async def all_reduce(self, array: Any) -> None:
        dist.all_reduce(array)

    def zeros(self, count: int) -> Any:
        return torch.zeros(count)

    async def bind(self, case: Case) -> tuple[Call, Array, Array]:
        length, out_length = case.lengths(self.size, self.rank)
        tensor = torch.empty(length, dtype=_DTYPES[case.dtype])
        out = torch.empty(out_length, dtype=_DTYPES[case.dtype])
        if case.what == "five":
            calls = [
                self._call(what, tensor[given], out[got])
                for what, (given, got) in five(case, self.size).items()
            ]
            return partial(in_a_row, calls), _view(tensor), _view(out)
        return self._call(case.what, tensor, out), _view(tensor), _view(out)

    def _call(self, what: str, tensor: Any, out: Any) -> Call:
        match what:
            case "all_reduce":
                return partial(dist.all_reduce, tensor)
            case "all_gather":
                return partial(dist.all_gather_into_tensor, out, tensor)
            case "reduce_scatter":
                return _or_absent(partial(dist.reduce_scatter_tensor, out, tensor))
            case "broadcast":
                return partial(dist.broadcast, tensor, 0)
            case "all_to_all":
                return _or_absent(partial(dist.all_to_all_single, out, tensor))
            case "reduce":
                return partial(dist.reduce, tensor, 0)
            case "gather":
                return partial(dist.gather, tensor, None if self.rank else list(out.chunk(self.size)), 0)
            case "scatter":
                return partial(dist.scatter, out, None if self.rank else list(tensor.chunk(self.size)), 0)
            case "p2p":
                return (partial(_ping, tensor, out), partial(_pong, tensor, out), _idle)[min(self.rank, 2)]
            case "barrier":
                return partial(dist.barrier)
            case "inflight":
                return partial(_in_flight, [tensor.clone() for _ in range(IN_FLIGHT)])
        raise AbsentError(f"has no {what}")


def _or_absent(once: Call) -> Call:
    """gloo refuses what it lacks before it sends anything, on every rank."""

    def call() -> None:
        try:
            once()
        except (RuntimeError, NotImplementedError) as error:
            if "support" not in str(error) and "implement" not in str(error):
                raise
            raise AbsentError(str(error).splitlines()[0]) from None

    return call


def _view(tensor: Any) -> Array:
    if tensor.dtype == torch.bfloat16:
        words: Array = tensor.view(torch.int16).numpy()
        return words.view(np.dtype(ml_dtypes.bfloat16))
    view: Array = tensor.numpy()
    return view


def _ping(tensor: Any, out: Any) -> None:
    dist.send(tensor, 1)
    dist.recv(out, 1)


def _pong(tensor: Any, out: Any) -> None:
    dist.recv(out, 0)
    dist.send(tensor, 0)


def _idle() -> None:
    pass


def _in_flight(tensors: list[Any]) -> None:
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
