"""The peers that take part: aiodist, the peers that are installed here, and the limits."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec

from benchmarks import mpi
from benchmarks.harness.command import ROOT

# One thread of BLAS and OpenMP in every rank, as torchrun sets it; loopback for gloo, as for aiodist.
COMMON = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
AIODIST_CALLS = "await pg.all_reduce(array), …"
_OVER_MPI = f"{AIODIST_CALLS} of a group with backend='mpi'"


@dataclass(frozen=True)
class Peer:
    """Something that can be measured in processes of its own.

    Args:
        name: in tables and results.
        kind: which program the ranks run (see `benchmarks.ranks`).
        calls: what is timed, for the report.
        launcher: what starts all ranks together; None: each is started by itself.
        env: variables of the ranks.
        shared: whether its tensors come from `pg.empty`.
    """

    name: str
    kind: str
    calls: str
    launcher: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    shared: bool = False

    def command(self, program: list[str], size: int) -> list[str]:
        """The command that starts `program` on all ranks; only for peers with a launcher."""
        assert self.launcher is not None
        crowded = size > len(os.sched_getaffinity(0)) and self.name.endswith("openmpi")
        return [self.launcher, *["--oversubscribe"] * crowded, "-n", str(size), *program]


AIODIST = Peer("aiodist", "aiodist", AIODIST_CALLS)
AIODIST_EMPTY = Peer("aiodist-empty", "aiodist", f"{AIODIST_CALLS} on arrays of pg.empty", shared=True)
AIODIST_TORCH = Peer("aiodist-torch", "torch", "torch's groups over aiodist, in the same processes as gloo's")
AIODIST_TCP = Peer("aiodist-tcp", "aiodist", AIODIST_CALLS, env={"AIODIST_TRANSPORT": "tcp"})
GLOO = Peer("gloo", "gloo", "dist.all_reduce(tensor), all_gather_into_tensor, all_to_all_single, …")
_PASSES = "the copies and sums of the operation by NumPy, in the engine's blocks, without any waiting"
PASSES = Peer("passes", "passes", f"{_PASSES}; arrays that all map", shared=True)
PASSES_STAGED = Peer("passes-staged", "passes", f"{_PASSES}; plain arrays, staged in memory that all map")
SOCKETS = Peer("sockets", "sockets", "send and recv_into on one connection, both ways at the same time")
RING = Peer(
    "sockets", "ring", "between hosts: the same from each to the next, of what the operation must carry"
)
STREAMS = Peer("streams", "streams", "a Unix stream of asyncio: write, drain, readexactly; with uvloop")
STREAMS_TCP = Peer("streams-tcp", "streams-tcp", "the same over loopback TCP")
AIODIST_STORE = Peer("aiodist", "aiodist-store", "await store.get(key), …")
TORCH_STORE = Peer("tcpstore", "torch-store", "store.get(key), …")


@dataclass(frozen=True)
class Found:
    """The peers that are here.

    Args:
        peers: by name, in the order in which they take turns.
        missing: a line for each one that is not here: who, and why.
    """

    peers: dict[str, Peer]
    missing: list[str]


def find(
    prefixes: dict[str, str | None],
    has: Callable[[str], bool] | None = None,
    find_mpi: Callable[[mpi.Flavour, str | None], mpi.Mpi | str] | None = None,
) -> Found:
    """Look for peers; imports none of them.

    Args:
        prefixes: flavour of MPI → where the user says that it is.
        has: whether a module is installed; replaced in tests, as is `find_mpi`.
    """
    has = has or _has
    find_mpi = find_mpi or _find_mpi
    peers, missing = {"aiodist": AIODIST}, []
    if has("torch"):
        peers["gloo"] = GLOO
    else:
        missing.append("gloo: torch is not installed")
    for flavour in mpi.FLAVOURS:
        found = find_mpi(flavour, prefixes.get(flavour.name)) if has("mpi4py") else "mpi4py is not installed"
        if isinstance(found, str):
            missing.append(f"{flavour.name}: {found}")
        else:
            calls = "comm.Allreduce(MPI.IN_PLACE, array), Allgather, Reduce_scatter_block, …"
            peers[flavour.name] = Peer(flavour.name, "mpi", calls, found.launcher, found.env)
            awaited = f"aiodist-{flavour.name}"
            peers[awaited] = Peer(awaited, "aiodist-mpi", _OVER_MPI, found.launcher, found.env)
    return Found(peers, missing)


def _has(module: str) -> bool:
    return find_spec(module) is not None


def _find_mpi(flavour: mpi.Flavour, chosen: str | None) -> mpi.Mpi | str:
    return mpi.find(flavour, chosen, mpi.search_path(), mpi.own_prefix())


def environment(peer: Peer) -> dict[str, str]:
    """The whole environment of a peer's processes."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **COMMON, "PYTHONPATH": path, **peer.env}


def rank_program(peer: Peer, socket_path: str, rank: int | None, size: int) -> list[str]:
    """The command of one rank process, or, where `rank` is None, of one that forks them all."""
    which = "all" if rank is None else str(rank)
    return [sys.executable, "-m", "benchmarks.ranks", peer.kind, socket_path, which, str(size)]
