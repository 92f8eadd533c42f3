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

__version__ = "0.1.0"

# Where each public name is. It is loaded at first use: the launcher and `import aiodist` itself need neither
# NumPy nor uvloop. `__init__.pyi` says the same to type checkers; a test compares them.
_HOME = {
    "aiodist.backends.registry": "register_backend",
    "aiodist.ddp": """
        Checkpoint Checkpoints DiLoCo GradientSync LocalSGD PerRank Saving ShardedOptimizer
    """,
    "aiodist.base.errors": """
        AiodistError AuthenticationError BackendUnavailable CallError CallNotRun CallTimeout CallTooLate
        CallUnknown CheckpointError CollectiveMismatch CollectiveTimeout Evicted ForgottenAwait GroupAborted
        GroupBroken GroupClosed LeaseLost NonFiniteValues PeerClosed PeerLost QuorumLost RemoteError
        RendezvousError RendezvousTimeout StateLost StoreFull StoreReplaced Tampered UnreadableMessage
        UsageError WireError
    """,
    "aiodist.group.functional.collectives": """
        all_gather all_gather_into_tensor all_gather_single all_reduce all_to_all all_to_all_single
        barrier broadcast gather monitored_barrier reduce reduce_scatter reduce_scatter_single
        reduce_scatter_tensor scatter
    """,
    "aiodist.group.functional.groups": """
        get_backend get_global_rank get_group_rank get_pg_count get_process_group_ranks get_rank
        get_world_size new_group new_subgroups new_subgroups_by_enumeration split_group
    """,
    "aiodist.group.functional.handles": "GroupMember",
    "aiodist.group.functional.objects": """
        all_gather_object broadcast_object_list gather_object recv_object_list scatter_object_list
        send_object_list
    """,
    "aiodist.group.functional.point_to_point": "P2POp batch_isend_irecv irecv isend recv send",
    "aiodist.group": "ErrorFeedback ProcessGroup",
    "aiodist.integrations.torch.data_parallel": "DistributedDataParallel",
    "aiodist.portal": "Portal SyncProcessGroup SyncWork",
    "aiodist.rendezvous": """
        FileStore HashStore Lease PrefixStore Store StoreServer TcpStore register_rendezvous_handler
    """,
    "aiodist.group.runtime.init": """
        destroy_process_group get_node_local_rank init_process_group is_available is_backend_available
        is_initialized is_torchelastic_launched
    """,
    "aiodist.group.runtime.joining": "join",
    "aiodist.group.runtime.running": "run",
    "aiodist.base.types": "ReduceOp premul_sum",
    "aiodist.backends.work": "Work",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}

# `from aiodist import *` must not need torch, as these names do.
__all__ = sorted(name for name, module in _MODULE_OF.items() if not module.startswith("aiodist.integrations"))


def __getattr__(name: str) -> object:
    if name in ("group", "portal"):  # rooms: dist.group.WORLD, dist.portal.init_process_group()
        return import_module(f"aiodist.{name}")
    module = _MODULE_OF.get(name)
    if module is None:
        names = import_module("aiodist.base.torch_names")
        hint = "" if name.startswith("_") else names.hint(name, _MODULE_OF)
        raise AttributeError(f"module 'aiodist' has no attribute {name!r}{hint}")
    found: object = getattr(import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
