"""The memory-bandwidth limit: the NumPy passes of an all_reduce over shared memory, never synchronised.

Each rank's tensor lies in memory that all ranks map. One operation adds the others' part of this rank's
share into its own, block by block, and copies the other shares from their owners: what any all_reduce
between processes must at least do. The values mean nothing, as nobody waits for anybody.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from aiodist.bench.cases import Array, Case
from benchmarks.ranks.base import AbsentError, Peer

_BLOCK = 64 << 10  # elements of float32: 256 KiB, so that a block stays in cache between additions


class PassesPeer(Peer):
    """See `Peer`."""

    tensors: list[Array]

    async def prepare(self, case: dict[str, Any]) -> dict[str, Any]:
        wanted = Case(**case)
        if wanted.what != "all_reduce" or wanted.dtype != "float32":
            return {"absent": "only for all_reduce of float32"}
        length, _ = wanted.lengths(self.size)
        descriptor = os.memfd_create("passes")
        os.ftruncate(descriptor, length * 4)
        self.length, self.descriptor = length, descriptor
        return {"share": f"/proc/{os.getpid()}/fd/{descriptor}"}

    async def attach(self, shares: list[str]) -> None:
        """Map the tensors of all ranks, which they have told after `prepare`."""
        self.tensors = []
        for path in shares:
            with open(path, "r+b") as file:  # noqa: ASYNC230 - nobody else is on a loop here
                mapped = mmap.mmap(file.fileno(), self.length * 4)
            self.tensors.append(np.frombuffer(mapped, np.float32))
        self.tensors[self.rank][:] = 0
        self.once = self._pass

    async def drop(self) -> None:
        self.tensors = []
        self.once = None
        os.close(self.descriptor)  # not before all have mapped it

    def _pass(self) -> None:
        mine = self.tensors[self.rank]
        others = [tensor for rank, tensor in enumerate(self.tensors) if rank != self.rank]
        bounds = [rank * self.length // self.size for rank in range(self.size + 1)]
        for begin in range(bounds[self.rank], bounds[self.rank + 1], _BLOCK):
            part = slice(begin, min(begin + _BLOCK, bounds[self.rank + 1]))
            for other in others:
                np.add(mine[part], other[part], out=mine[part])
        for rank, tensor in enumerate(self.tensors):
            if rank != self.rank:
                share = slice(bounds[rank], bounds[rank + 1])
                np.copyto(mine[share], tensor[share])


__all__ = ["AbsentError", "PassesPeer"]
