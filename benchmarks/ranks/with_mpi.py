"""An MPI library by mpi4py in one rank: `comm.Allreduce(MPI.IN_PLACE, buffer)` and so on."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version

import numpy as np
from mpi4py import MPI

from benchmarks.harness.cases import IN_FLIGHT, Array, Case, five
from benchmarks.harness.link import AbsentError
from benchmarks.ranks.base import Call, Peer, in_a_row


class MpiPeer(Peer):
    """See `Peer`. The launcher decides who is who."""

    def __init__(self, rank: int, size: int) -> None:
        self.comm = MPI.COMM_WORLD
        super().__init__(self.comm.rank, self.comm.size)

    def versions(self) -> dict[str, str]:
        return {"library": " ".join(MPI.Get_library_version().split())[:60], "mpi4py": version("mpi4py")}

    async def barrier(self) -> None:
        self.comm.Barrier()

    async def bind(self, case: Case) -> tuple[Call, Array, Array]:
        if case.dtype != "float32":
            raise AbsentError(f"has no {case.dtype}")
        length, out_length = case.lengths(self.size, self.rank)
        tensor: Array = np.empty(length, np.float32)
        out: Array = np.empty(out_length, np.float32)
        if case.what == "five":
            calls = [
                self._call(what, tensor[given], out[got])
                for what, (given, got) in five(case, self.size).items()
            ]
            return partial(in_a_row, calls), tensor, out
        return self._call(case.what, tensor, out), tensor, out

    def _call(self, what: str, tensor: Array, out: Array) -> Call:
        comm = self.comm
        match what:
            case "all_reduce":
                return partial(comm.Allreduce, MPI.IN_PLACE, tensor)
            case "all_gather":
                return partial(comm.Allgather, tensor, out)
            case "reduce_scatter":
                return partial(comm.Reduce_scatter_block, tensor, out)
            case "broadcast":
                return partial(comm.Bcast, tensor)
            case "all_to_all":
                return partial(comm.Alltoall, tensor, out)
            case "reduce":
                return partial(comm.Reduce, *((tensor, None) if self.rank else (MPI.IN_PLACE, tensor)))
            case "gather":
                return partial(comm.Gather, tensor, None if self.rank else out)
            case "scatter":
                return partial(comm.Scatter, None if self.rank else tensor, out)
            case "p2p":
                return (partial(self._ping, tensor, out), partial(self._pong, tensor, out), _idle)[
                    min(self.rank, 2)
                ]
            case "barrier":
                return comm.Barrier
            case "inflight":
                return partial(self._in_flight, [tensor.copy() for _ in range(IN_FLIGHT)])
        raise AbsentError(f"has no {what}")

    def _ping(self, tensor: Array, out: Array) -> None:
        self.comm.Send(tensor, 1)
        self.comm.Recv(out, 1)

    def _pong(self, tensor: Array, out: Array) -> None:
        self.comm.Recv(out, 0)
        self.comm.Send(tensor, 0)

    def _in_flight(self, rows: list[Array]) -> None:
        MPI.Request.Waitall([self.comm.Iallreduce(MPI.IN_PLACE, row) for row in rows])


def _idle() -> None:
    pass
