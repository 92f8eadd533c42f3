"""What becomes of each public name of torch.distributed (2.13 and 2.14). Data of `make_torch_table.py`.

A name is `same` (ours has torch's parameters, in torch's order, and perhaps more), `other` (spelled
differently: our name, and how it differs), `later` (planned), or `none` (no meaning here, and why).
`tests/test_torch_table.py` holds this against the installed torch and against aiodist.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fate:
    """What becomes of one name.

    Args:
        mark: '✓', '≈', 'planned' or '—'.
        ours: dotted name in aiodist, '' where there is none; '=' stands for torch's own name.
        note: how it differs, or the reason.
        only: who has the name: '' every torch, '2.14' that series and later ones, 'CUDA' builds with it.
    """

    mark: str
    ours: str
    note: str
    only: str = ""


def same(note: str = "", ours: str = "=") -> Fate:
    """Same name, same parameters."""
    return Fate("✓", ours, note)


def other(ours: str, note: str, only: str = "") -> Fate:
    """Spelled differently."""
    return Fate("≈", ours, note, only)


def later(note: str) -> Fate:
    """Planned."""
    return Fate("planned", "", note)


def none(note: str, only: str = "") -> Fate:
    """No meaning here."""
    return Fate("—", "", note, only)


_OPTIONS = none("argument of a C++ method; ours take keywords")
_DDP = none("inside of torch's DDP; `dist.DistributedDataParallel` averages gradients here")
_DEBUG = none("there is no debug level: mismatches and missing ranks are always found and named")
_ASK = other("is_backend_available", "`is_backend_available(name)` answers for every backend")
_BOXED = none("for torch's compiler")
_NCCL = none("the `nccl` backend takes its place", "CUDA")
_GATHER = other(
    "ProcessGroup.gather", "`pg.gather(tensor, dst, out)`; `out` has shape `(size, *tensor.shape)`", "2.14"
)
_HOOKS = none("the recorder and metrics see every operation", "2.14")
_RECONFIGURE = other("ProcessGroup.shrink", "and `grow`: each gives a new group", "2.14")
_WINDOW = none("ranks do not write into each other's memory", "2.14")
_SAFE = "and `allow_pickle`, without which all is as with `weights_only=True`"
_CONSTANT = none("backends are named by strings: `'host'`, `'nccl'`, `'mpi'`")

CALLS: dict[str, Fate] = {
    "AllToAllOptions": _OPTIONS,
    "AllreduceCoalescedOptions": _OPTIONS,
    "AllreduceOptions": _OPTIONS,
    "Backend": other("register_backend", "backends are named by strings; this adds one, written in Python"),
    "BackendConfig": none("`backend='cpu:host,cuda:nccl'` says what carries tensors of each place"),
    "BarrierOptions": _OPTIONS,
    "BroadcastOptions": _OPTIONS,
    "BuiltinCommHookType": _DDP,
    "DebugLevel": _DEBUG,
    "DeviceMesh": none("rows and columns are groups: `pg.split(color, key)`, `new_subgroups`"),
    "DistBackendError": other(
        "GroupBroken", "and its kinds: PeerLost, CollectiveTimeout, CollectiveMismatch"
    ),
    "DistError": other("AiodistError", "the base of all errors"),
    "DistNetworkError": other("RendezvousError", "before the group exists; `PeerLost` afterwards"),
    "DistStoreError": other(
        "RendezvousError", "`RendezvousTimeout` names the keys or ranks that were missing"
    ),
    "FileStore": other("FileStore.open", "`await FileStore.open(path, job, secret)`"),
    "GatherOptions": _OPTIONS,
    "GradBucket": _DDP,
    "GroupMember": same("`WORLD` is None; `NON_GROUP_MEMBER` is an object, not -100"),
    "GroupName": none("a type of torch's compiler; `pg.name` is a str"),
    "HashStore": same(),
    "Logger": _DDP,
    "P2POp": same(),
    "PrefixStore": same(),
    "ProcessGroup": other("ProcessGroup", "see below; made by `init_process_group` and `new_group` only"),
    "ProcessGroupGloo": none("the `host` backend takes its place"),
    "ProcessGroupNCCL": _NCCL,
    "ProcessGroupNCCL2": _NCCL,
    "ProcessGroupNCCLLazy": _NCCL,
    "QueueEmptyError": none("stores have no queues here"),
    "ReduceOp": same(),
    "ReduceOptions": _OPTIONS,
    "ReduceScatterOptions": _OPTIONS,
    "Reducer": _DDP,
    "ScatterOptions": _OPTIONS,
    "Store": same("every method is awaited"),
    "TCPStore": other(
        "TcpStore.connect", "`await TcpStore.connect(…)`; `StoreServer` or `aiodist store` serves"
    ),
    "Work": same("awaitable"),
    "all_gather": same(),
    "all_gather_coalesced": other(
        "ProcessGroup.coalesce", "deprecated in torch; `async with pg.coalesce():`"
    ),
    "all_gather_into_tensor": same(),
    "all_gather_object": same(_SAFE),
    "all_gather_single": same(),
    "all_reduce": same(),
    "all_reduce_coalesced": other(
        "ProcessGroup.coalesce", "deprecated in torch; `async with pg.coalesce():`"
    ),
    "all_to_all": same(),
    "all_to_all_single": same(),
    "barrier": same("`device_ids` is ignored"),
    "batch_isend_irecv": same("all are started at once; `await asyncio.gather(*…)`"),
    "breakpoint": none("a debugger stops the loop, and the other ranks' operations time out"),
    "broadcast": same(),
    "broadcast_object_list": same(f"{_SAFE}; `device` is ignored"),
    "default_pg_timeout": other(
        "ProcessGroup", "`pg.timeout`, 300 s; AIODIST_TIMEOUT, or the argument, sets it"
    ),
    "destroy_process_group": same("waits for what is in flight, and raises what nobody awaited"),
    "gather": same(),
    "gather_into_tensor": _GATHER,
    "gather_object": same(_SAFE),
    "gather_single": _GATHER,
    "get_backend": same("`'host'`, or `'cpu:host,cuda:nccl'`"),
    "get_backend_config": other("get_backend", "says it of each place"),
    "get_backend_impl": none("a group has no object for each device", "2.14"),
    "get_debug_level": _DEBUG,
    "get_default_backend_for_device": none("`backend=None` takes what suits each place"),
    "get_global_rank": same(),
    "get_group_rank": same(),
    "get_node_local_rank": same(),
    "get_pg_count": same("open groups of this process"),
    "get_process_group_ranks": same(),
    "get_rank": same(),
    "get_world_size": same(),
    "group": same("`dist.group.WORLD` is None, which every call takes for the default group"),
    "init_device_mesh": none("rows and columns are groups: `pg.split(color, key)`, `new_subgroups`"),
    "init_process_group": same("gives the group; `pg_options` and `enable_reconfigure` are ignored"),
    "irecv": same(),
    "is_available": same(),
    "is_backend_available": same(),
    "is_gloo_available": _ASK,
    "is_initialized": same("of the running loop"),
    "is_mpi_available": _ASK,
    "is_nccl_available": _ASK,
    "is_torchelastic_launched": same(),
    "is_ucc_available": _ASK,
    "is_xccl_available": _ASK,
    "isend": same(),
    "monitored_barrier": same("all missing ranks are named in any case"),
    "new_group": same("`sort_ranks` must be True"),
    "new_subgroups": same(),
    "new_subgroups_by_enumeration": same(),
    "record_comm": none("names events for torch's profiler"),
    "recv": same("the sender's global rank, as in torch"),
    "recv_object_list": same(f"{_SAFE}; `device` and `use_batch` are ignored"),
    "reduce": same("the other ranks' tensors stay as they were"),
    "reduce_op": other("ReduceOp", "deprecated in torch"),
    "reduce_scatter": same(),
    "reduce_scatter_single": same(),
    "reduce_scatter_tensor": same(),
    "register_rendezvous_handler": same("the handler is a coroutine function"),
    "rendezvous": none("`init_process_group` does it; `register_rendezvous_handler` adds a scheme"),
    "scatter": same(),
    "scatter_object_list": same(_SAFE),
    "send": same(),
    "send_object_list": same(f"{_SAFE}; `device` and `use_batch` are ignored"),
    "set_debug_level": _DEBUG,
    "set_debug_level_from_env": _DEBUG,
    "set_timeout": other("ProcessGroup.timeout", "`pg.timeout = seconds`", "2.14"),
    "shrink_group": other("ProcessGroup.shrink", "`pg = await pg.shrink(exclude=[3])`"),
    "split_group": same(),
    "supports_complex": none("MIN and MAX of complex numbers, and bitwise ops, are refused by the call"),
}

REDUCE_OPS: dict[str, Fate] = {
    "AVG": same("of floating and complex dtypes; of integers it is refused"),
    "BAND": same("of integers and bool"),
    "BOR": same("of integers and bool"),
    "BXOR": same("of integers and bool"),
    "MAX": same("a NaN anywhere gives NaN; not of complex"),
    "MIN": same("a NaN anywhere gives NaN; not of complex"),
    "PREMUL_SUM": other("premul_sum", "`dist.premul_sum(factor)`; each rank has its own factor"),
    "PRODUCT": same(),
    "SUM": same(),
    "RedOpType": none("ReduceOp is the enumeration itself"),
    "factor": none("of torch's PREMUL_SUM; here of what `premul_sum` gives"),
    "op": none("ReduceOp is the enumeration itself"),
}

WORK: dict[str, Fate] = {
    "block_current_stream": other("Work.synchronize", "the stream waits, the host does not"),
    "boxed": _BOXED,
    "exception": same("of a Work that is done; the exception, not a pointer"),
    "get_future": other(
        "Work.add_done_callback", "a Work is awaitable; for a Task, `create_task(work.wait())`"
    ),
    "get_future_result": other("Work.exception", "says how it ended; `is_success`, too"),
    "is_completed": same(),
    "is_success": same(),
    "result": same("what `await` gives"),
    "source_rank": other("recv", "`await dist.recv(…)` gives the sender"),
    "synchronize": same("of device tensors: a stream waits; UsageError where the host carries the operation"),
    "timeout": other("Work.wait", "`await work.wait(timeout)`, or the call's `timeout`", "2.14"),
    "unbox": _BOXED,
    "wait": same("`await work.wait(timeout)`: this awaiter's patience; the operation goes on"),
}

STORE: dict[str, Fate] = {
    "add": same(),
    "append": same(),
    "barrier": other("Store.barrier", "`await store.barrier(name, world_size, rank)`: names who is missing"),
    "check": same(),
    "clone": none("one connection serves every task of the loop"),
    "compare_set": same(),
    "delete_key": same(),
    "get": same("waits for the key"),
    "has_extended_api": none("every store has every method"),
    "list_keys": same("and `prefix`"),
    "multi_get": same(),
    "multi_set": same(),
    "num_keys": same("and `prefix`"),
    "queue_len": later("until then `append`, and `watch` to wait for it"),
    "queue_pop": later("until then `append`, and `watch` to wait for it"),
    "queue_push": later("until then `append`, and `watch` to wait for it"),
    "set": same("and `ttl`, a lease"),
    "set_timeout": other("Store", "`store.timeout = seconds`, or each call's `timeout`"),
    "timeout": other("Store", "an attribute, in seconds"),
    "wait": same(),
    "TCPStore.host": other("TcpStore", "an attribute"),
    "TCPStore.libuvBackend": none("the server is asyncio's"),
    "TCPStore.port": other("TcpStore", "an attribute"),
    "FileStore.path": other("FileStore", "an attribute"),
    "PrefixStore.underlying_store": other("PrefixStore.underlying", ""),
}

_LISTS = "one tensor, not a list"
_COALESCED = other("ProcessGroup.coalesce", "`async with pg.coalesce():`")

GROUP: dict[str, Fate] = {
    "BackendType": _CONSTANT,
    "CUSTOM": _CONSTANT,
    "GLOO": _CONSTANT,
    "MPI": _CONSTANT,
    "NCCL": _CONSTANT,
    "UCC": _CONSTANT,
    "UNDEFINED": _CONSTANT,
    "XCCL": _CONSTANT,
    "abort": same("on every member, with a reason that they read"),
    "all_gather_single": other("ProcessGroup.all_gather", "`out` has shape `(size, *tensor.shape)`"),
    "all_gather_single_coalesced": _COALESCED,
    "all_to_all_single": other("ProcessGroup.all_to_all", "`tensor, out, in_splits, out_splits`"),
    "allgather": other("ProcessGroup.all_gather", "into one array, by rank"),
    "allgather_coalesced": _COALESCED,
    "allgather_into_tensor_coalesced": _COALESCED,
    "allreduce": other("ProcessGroup.all_reduce", _LISTS),
    "allreduce_coalesced": _COALESCED,
    "alltoall": other("all_to_all", "lists: the module-level call"),
    "alltoall_base": other("ProcessGroup.all_to_all", "`tensor, out, in_splits, out_splits`"),
    "barrier": other("ProcessGroup.barrier", "keywords `timeout`, `async_op`"),
    "bound_device_id": other("ProcessGroup.device", "an attribute: the device's index"),
    "boxed": _BOXED,
    "broadcast": other("ProcessGroup.broadcast", _LISTS + "; `src` is the group's rank"),
    "gather": other("ProcessGroup.gather", "into one array, by rank"),
    "gather_into_tensor": _GATHER,
    "gather_single": _GATHER,
    "get_backend": other("get_backend", "says its name", "2.14"),
    "get_group_store": none("stores serve meeting; the group does not need one afterwards"),
    "get_reconfigure_handle": _RECONFIGURE,
    "group_desc": other("ProcessGroup", "`pg.name`"),
    "group_name": other("ProcessGroup", "`pg.name`"),
    "merge_remote_group": other("ProcessGroup.grow", "newcomers call `join`"),
    "monitored_barrier": same(),
    "name": other("ProcessGroup", "an attribute: the group's name; the backend's is `pg.backend`"),
    "new_window": _WINDOW,
    "rank": other("ProcessGroup", "an attribute"),
    "reconfigure": _RECONFIGURE,
    "recv": other("ProcessGroup.recv", _LISTS),
    "recv_anysource": other("ProcessGroup.recv", "`src=None`"),
    "reduce": other("ProcessGroup.reduce", _LISTS),
    "reduce_scatter": other("ProcessGroup.reduce_scatter", "of one array, divided along its first axis"),
    "reduce_scatter_single": other("ProcessGroup.reduce_scatter", "`tensor, out`"),
    "reduce_scatter_single_coalesced": _COALESCED,
    "reduce_scatter_tensor_coalesced": _COALESCED,
    "register_abort_hook": _HOOKS,
    "register_post_hook": _HOOKS,
    "register_pre_hook": _HOOKS,
    "scatter": other("ProcessGroup.scatter", "of one array, by rank"),
    "send": other("ProcessGroup.send", _LISTS),
    "set_timeout": other("ProcessGroup", "`pg.timeout`, or each call's `timeout`"),
    "shutdown": other("ProcessGroup.aclose", "`await pg.aclose()`, or `async with`"),
    "size": other("ProcessGroup", "an attribute"),
    "split_group": other("ProcessGroup.new_group", "or `split(color, key)`"),
    "supports_reconfigure": _RECONFIGURE,
    "supports_window": _WINDOW,
    "unbox": _BOXED,
    "unregister_abort_hook": _HOOKS,
    "unregister_post_hook": _HOOKS,
    "unregister_pre_hook": _HOOKS,
    "use_pg_for_symm_mem_rendezvous": none("no symmetric memory of devices"),
}

SECTIONS: dict[str, tuple[str, str, dict[str, Fate]]] = {
    "calls": ("Calls and classes of `torch.distributed`", "", CALLS),
    "reduce": ("`ReduceOp`", "ReduceOp", REDUCE_OPS),
    "work": ("`Work`", "Work", WORK),
    "store": ("`Store`, and what its kinds add", "Store", STORE),
    "group": ("`ProcessGroup`", "ProcessGroup", GROUP),
}
"""Title, the class in aiodist that '=' names are of, and the names."""
