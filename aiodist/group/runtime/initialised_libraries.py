"""Libraries that have ranks, initialised in this process before: they say which this is, and lead to others.

    torch.distributed, jax.distributed   wherever a group of it is formed, and its store can be asked
    mpi4py                               under Open MPI's mpirun, where nothing else says where to meet

None is ever imported for that. Arguments come first: a rank or a size that is not the library's means another
job.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from importlib import import_module

from aiodist.base.environment.lone_process import chosen
from aiodist.base.errors import UsageError
from aiodist.rendezvous import Invitation
from aiodist.rendezvous.meeting_point import says_where

_log = logging.getLogger("aiodist.group.runtime")
_LIBRARIES = (
    ("torch.distributed", "torch.distributed", "torch_group"),
    ("jax.distributed", "jax._src.distributed", "jax_group"),
)
"""For people, the module that is loaded where the library is used, and ours that knows it."""


def beside_others(asked: Invitation) -> Invitation:
    """Take rank, size and the way to the others from another library, where one has them."""
    if (
        asked.by_library is not None
        or says_where(asked, "AIODIST_STORE")
        or chosen(asked.environ, asked.world_size)
    ):
        return asked
    for name, loaded, ours in _LIBRARIES:
        if loaded not in sys.modules:
            continue
        library = import_module(f"aiodist.rendezvous.launchers.{ours}")
        found = library.rank_and_size()
        if found is None or not _is_ours(asked, *found):
            continue
        rank, size = found
        _log.debug("rank %d of %d, by %s", rank, size, name)
        return replace(asked, rank=rank, world_size=size, by_library=library.meet)
    return _beside_mpi(asked)


def _is_ours(asked: Invitation, rank: int, size: int) -> bool:
    """Whether a library's group may be the job that is asked for."""
    if asked.rank not in (-1, rank) or asked.world_size not in (-1, size):
        return False
    if size > 1:
        return True
    try:  # a group of one may be there for other ends
        return asked.placement().world_size == 1
    except UsageError:
        return True  # the environment says nothing that holds


def _beside_mpi(asked: Invitation) -> Invitation:
    """Meet by MPI, if it is initialised, where Open MPI's mpirun started the ranks and tells no place."""
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is None or not mpi4py.Is_initialized() or says_where(asked, "MASTER_ADDR"):
        return asked
    if not asked.environ.get("OMPI_COMM_WORLD_SIZE") or asked.rank >= 0 or asked.world_size >= 0:
        return asked
    from aiodist.backends.mpi import meeting

    return replace(asked, by_library=meeting.meet)
