"""What to write for torch's names that are spelled differently here. Loaded when one is asked for."""

from __future__ import annotations

_AVAILABLE = "is_backend_available('{}')"
_COALESCE = "`async with pg.coalesce():`"
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
    "get_backend_config": "get_backend",
    "is_gloo_available": _AVAILABLE.format("host"),
    "is_mpi_available": _AVAILABLE.format("mpi"),
    "is_nccl_available": _AVAILABLE.format("nccl"),
    "is_ucc_available": _AVAILABLE.format("host"),
    "is_xccl_available": _AVAILABLE.format("host"),
    "reduce_op": "ReduceOp",
    "shrink_group": "`pg = await pg.shrink(exclude=[…])`",
}
"""torch's name → ours, and how it is used."""


def hint(name: str) -> str:
    """The name to write for one that is not here, for the end of a sentence; '' for names of nobody."""
    return f"; torch's {name} is here {HERE[name]}" if name in HERE else ""
