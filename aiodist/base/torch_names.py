"""What to write for torch's names that are spelled differently here. Loaded when one is asked for."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

_AVAILABLE = "is_backend_available('{}')"
_COALESCE = "`async with pg.coalesce():`"
_GATHER = "`await pg.gather(tensor, dst, out)`"
_SPLIT = "`await pg.split(color, key)` or new_subgroups: rows and columns are groups"

HERE = {
    "TCPStore": "TcpStore, by `await TcpStore.connect(host, port, job, secret)`; a StoreServer serves it",
    "Backend": "a string, backend='host'; register_backend adds one",
    "BackendConfig": "a string, backend='cpu:host,cuda:nccl'",
    "DeviceMesh": _SPLIT,
    "init_device_mesh": _SPLIT,
    "DistBackendError": "GroupBroken and its kinds PeerLost, CollectiveTimeout and CollectiveMismatch",
    "DistError": "AiodistError",
    "DistNetworkError": "RendezvousError, and PeerLost once the group exists",
    "DistStoreError": "RendezvousError",
    "all_gather_coalesced": _COALESCE,
    "all_reduce_coalesced": _COALESCE,
    "default_pg_timeout": "pg.timeout, or timeout= of init_process_group",
    "gather_into_tensor": _GATHER,
    "gather_single": _GATHER,
    "get_backend_config": "get_backend",
    "is_gloo_available": _AVAILABLE.format("host"),
    "is_mpi_available": _AVAILABLE.format("mpi"),
    "is_nccl_available": _AVAILABLE.format("nccl"),
    "is_ucc_available": _AVAILABLE.format("host"),
    "is_xccl_available": _AVAILABLE.format("host"),
    "reduce_op": "ReduceOp",
    "set_timeout": "`pg.timeout = seconds`",
    "shrink_group": "`pg = await pg.shrink(exclude=[…])`",
}
"""torch's name → ours, and how it is used."""


ARGUMENTS = {
    **dict.fromkeys(("world", "size", "nprocs", "num_processes", "n", "np"), "world_size"),
    **dict.fromkeys(("url", "address", "addr", "init", "method"), "init_method"),
    **dict.fromkeys(("process_id", "rank_id", "my_rank"), "rank"),
    **dict.fromkeys(("name", "group"), "group_name"),
    **dict.fromkeys(("device", "gpu"), "device_id"),
}
"""A word for an argument of `init_process_group` → ours."""

_PEERS = ("dst", "src", "root", "dest", "source", "destination", "peer", "to", "rank")
CALL_ARGUMENTS = {
    **dict.fromkeys(("operation", "reduce_op", "reduction", "reduce"), ("op",)),
    **dict.fromkeys(_PEERS, ("dst", "src")),
    **dict.fromkeys(("output", "result", "into", "target", "recv"), ("out", "tensor")),
    **dict.fromkeys(
        ("input", "array", "data", "value", "x", "t", "buffer", "send"), ("tensor", "obj", "objs")
    ),
    **dict.fromkeys(("object", "message", "objects", "object_list"), ("obj", "objs", "message")),
    **dict.fromkeys(("asynchronous", "non_blocking", "blocking", "wait"), ("async_op",)),
    **dict.fromkeys(("pickle", "pickled"), ("allow_pickle",)),
    **dict.fromkeys(("deadline", "seconds", "limit"), ("timeout",)),
    **dict.fromkeys(("splits", "counts", "rows"), ("sizes", "in_splits")),
    **dict.fromkeys(("input_split_sizes", "send_counts"), ("in_splits",)),
    **dict.fromkeys(("output_split_sizes", "recv_counts"), ("out_splits",)),
}
"""A word for an argument of a group's method → ours, of which it may have one."""


def hint(name: str, known: Collection[str] = ()) -> str:
    """The name to write for one that is not here, for the end of a sentence; '' for names of nobody.

    Args:
        known: names that are here.
    """
    if name in HERE:
        return f"; torch's {name} is here {HERE[name]}"
    close = _closest(name, known)
    return f"; did you mean {close}?" if close else ""


def argument_hint(names: Collection[str], known: Collection[str]) -> str:
    """The hint for a misspelled argument, which may be one that torch does not know either."""
    unknown = [name for name in names if name not in known]
    meant = [ARGUMENTS.get(name, "") or _closest(name, known) for name in unknown]
    found = [name for name in meant if name in known]
    return f"; did you mean {' and '.join(f'{name}=' for name in found)}?" if found else ""


def call_hint(name: str, known: Collection[str]) -> str:
    """The argument to write in a call in place of one that it does not have; '' where nobody knows."""
    listed = (one for one in CALL_ARGUMENTS.get(name.lower(), ()) if one in known)
    return next(listed, "") or _closest(name, known)


def _closest(name: str, known: Collection[str]) -> str:
    """The known name that was meant, perhaps: the same but for case and underscores, or nearly so."""
    plain: Mapping[str, str] = {one.replace("_", "").lower(): one for one in known}
    spelled = name.replace("_", "").lower()
    return next((plain[one] for one in difflib.get_close_matches(spelled, plain, 1, 0.75)), "")
