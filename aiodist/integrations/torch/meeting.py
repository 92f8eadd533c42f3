"""How a group of torch's becomes one of ours."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch.distributed as c10d

from aiodist.backends.choice import parse
from aiodist.group.runtime import tracebacks
from aiodist.integrations.torch.group import AiodistProcessGroup
from aiodist.integrations.torch.versions import warn_of_another
from aiodist.portal.facade import SyncProcessGroup, form
from aiodist.rendezvous import Invitation
from aiodist.rendezvous.launchers.torch_group import GROUP, address_in, meet_over

_ABOUT_THE_WORLD = ("RANK", "WORLD_SIZE", "AIODIST_RANK", "AIODIST_STORE", "AIODIST_NEWCOMER")
"""Variables that say of another group than this one; torch says all of it."""


def create(options: Any) -> AiodistProcessGroup:
    """Make the group that torch asks a backend for.

    Args:
        options: torch's `_DistributedBackendOptions`: store, rank, size, timeout, name, global ranks.

    Raises:
        RendezvousTimeout: not all ranks came in time; names them.
        and what `init_process_group` raises.
    """
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    limit = options.timeout.total_seconds()
    world = _world_with(ranks)
    name = f"torch's group {options.group_id}" if c10d.is_initialized() else "world"  # torch's own is '0'
    if world is None:
        group: SyncProcessGroup | None = meet_over_store(
            options.store, options.group_rank, options.group_size, limit, name
        )
    else:
        mine = [world.global_ranks.index(rank) for rank in ranks]
        group = world.ours.new_group(mine, timeout=limit, name=name, use_local_synchronization=True)
    assert group is not None  # torch asks members alone
    return AiodistProcessGroup(group, options.group_id, ranks)


def _world_with(ranks: list[int]) -> AiodistProcessGroup | None:
    """torch's default group, where it is ours, and these ranks of it, in its order, shall form a new one."""
    if not c10d.is_initialized():
        return None
    world = c10d.distributed_c10d._get_default_group()
    if not isinstance(world, AiodistProcessGroup):
        return None
    in_order = ranks == sorted(ranks) and set(ranks) <= set(world.global_ranks)
    return world if in_order and c10d.get_rank() in ranks else None


def meet_over_store(store: Any, rank: int, size: int, limit: float, name: str = "") -> SyncProcessGroup:
    """Form a world of its own, which meets by a store of torch's that is this group's alone."""
    if rank == 0:
        warn_of_another()
    tracebacks.install()  # before torch puts its prefix around whatever is there
    environ = {key: value for key, value in os.environ.items() if key not in _ABOUT_THE_WORLD}
    over = partial(meet_over, store, name=GROUP)
    asked = Invitation("env://", rank, size, limit, environ, by_library=over, seals_whole=True)
    with address_in(store, asked):
        return form(asked, parse(None), name)
