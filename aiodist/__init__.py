"""aiodist: the asyncio-native distributed runtime.

    import aiodist as dist, numpy as np

    async def main():
        async with await dist.init_process_group() as pg:
            grad = np.ones(1_000_000, np.float32)
            work = pg.all_reduce(grad, async_op=True)    # already running
            ...                                          # compute meanwhile
            await work

    dist.run(main())

Start several processes of it with `aiodist run --nproc-per-node 4 script.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiodist import group as group
    from aiodist import portal as portal
    from aiodist.backends.registry import register_backend
    from aiodist.ddp import GradientSync
    from aiodist.errors import (
        AiodistError,
        AuthenticationError,
        BackendUnavailable,
        CollectiveMismatch,
        CollectiveTimeout,
        Evicted,
        GroupAborted,
        GroupBroken,
        GroupClosed,
        LeaseLost,
        PeerLost,
        QuorumLost,
        RendezvousError,
        RendezvousTimeout,
        StoreFull,
        StoreReplaced,
        Tampered,
        UsageError,
        WireError,
    )
    from aiodist.functional import (
        GroupMember,
        P2POp,
        all_gather,
        all_gather_into_tensor,
        all_gather_object,
        all_gather_single,
        all_reduce,
        all_to_all,
        all_to_all_single,
        barrier,
        batch_isend_irecv,
        broadcast,
        broadcast_object_list,
        gather,
        gather_object,
        get_backend,
        get_global_rank,
        get_group_rank,
        get_pg_count,
        get_process_group_ranks,
        get_rank,
        get_world_size,
        irecv,
        isend,
        monitored_barrier,
        new_group,
        new_subgroups,
        new_subgroups_by_enumeration,
        recv,
        recv_object_list,
        reduce,
        reduce_scatter,
        reduce_scatter_single,
        reduce_scatter_tensor,
        scatter,
        scatter_object_list,
        send,
        send_object_list,
        split_group,
    )
    from aiodist.group import ProcessGroup
    from aiodist.portal import Portal, SyncProcessGroup, SyncWork
    from aiodist.rendezvous import (
        FileStore,
        HashStore,
        Lease,
        PrefixStore,
        Store,
        StoreServer,
        TcpStore,
        register_rendezvous_handler,
    )
    from aiodist.runtime.init import (
        destroy_process_group,
        get_node_local_rank,
        init_process_group,
        is_available,
        is_backend_available,
        is_initialized,
        is_torchelastic_launched,
    )
    from aiodist.runtime.joining import join
    from aiodist.runtime.running import run
    from aiodist.types import ReduceOp, premul_sum
    from aiodist.work import Work

__version__ = "0.1.0"

# Loaded at first use: the launcher and `import aiodist` itself need neither NumPy nor uvloop. A test
# holds this table against the imports above.
_HOME = {
    "aiodist.backends.registry": ("register_backend",),
    "aiodist.ddp": ("GradientSync",),
    "aiodist.errors": (
        "AiodistError",
        "AuthenticationError",
        "BackendUnavailable",
        "CollectiveMismatch",
        "CollectiveTimeout",
        "Evicted",
        "GroupAborted",
        "GroupBroken",
        "GroupClosed",
        "LeaseLost",
        "PeerLost",
        "QuorumLost",
        "RendezvousError",
        "RendezvousTimeout",
        "StoreFull",
        "StoreReplaced",
        "Tampered",
        "UsageError",
        "WireError",
    ),
    "aiodist.functional": (
        "GroupMember",
        "P2POp",
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_gather_single",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "batch_isend_irecv",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "get_backend",
        "get_global_rank",
        "get_group_rank",
        "get_pg_count",
        "get_process_group_ranks",
        "get_rank",
        "get_world_size",
        "irecv",
        "isend",
        "monitored_barrier",
        "new_group",
        "new_subgroups",
        "new_subgroups_by_enumeration",
        "recv",
        "recv_object_list",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
        "scatter",
        "scatter_object_list",
        "send",
        "send_object_list",
        "split_group",
    ),
    "aiodist.group": ("ProcessGroup",),
    "aiodist.portal": ("Portal", "SyncProcessGroup", "SyncWork"),
    "aiodist.rendezvous": (
        "FileStore",
        "HashStore",
        "Lease",
        "PrefixStore",
        "Store",
        "StoreServer",
        "TcpStore",
        "register_rendezvous_handler",
    ),
    "aiodist.runtime.init": (
        "destroy_process_group",
        "get_node_local_rank",
        "init_process_group",
        "is_available",
        "is_backend_available",
        "is_initialized",
        "is_torchelastic_launched",
    ),
    "aiodist.runtime.joining": ("join",),
    "aiodist.runtime.running": ("run",),
    "aiodist.types": ("ReduceOp", "premul_sum"),
    "aiodist.work": ("Work",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AiodistError",
    "AuthenticationError",
    "BackendUnavailable",
    "CollectiveMismatch",
    "CollectiveTimeout",
    "Evicted",
    "FileStore",
    "GradientSync",
    "GroupAborted",
    "GroupBroken",
    "GroupClosed",
    "GroupMember",
    "HashStore",
    "Lease",
    "LeaseLost",
    "P2POp",
    "PeerLost",
    "Portal",
    "PrefixStore",
    "ProcessGroup",
    "QuorumLost",
    "ReduceOp",
    "RendezvousError",
    "RendezvousTimeout",
    "Store",
    "StoreFull",
    "StoreReplaced",
    "StoreServer",
    "SyncProcessGroup",
    "SyncWork",
    "Tampered",
    "TcpStore",
    "UsageError",
    "WireError",
    "Work",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "gather",
    "gather_object",
    "get_backend",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_pg_count",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_initialized",
    "is_torchelastic_launched",
    "isend",
    "join",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "premul_sum",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "register_backend",
    "register_rendezvous_handler",
    "run",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "split_group",
]


def __getattr__(name: str) -> object:
    if name in ("group", "portal"):  # rooms: dist.group.WORLD, dist.portal.init_process_group()
        return import_module(f"aiodist.{name}")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'aiodist' has no attribute {name!r}")
    found: object = getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
