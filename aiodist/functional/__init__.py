"""The module-level calls, with torch.distributed's names and signatures.

A thin shell: each finds its group (the loop's default where `group` is None), translates global ranks to
the group's, and calls the method of the same name. `src` and `dst` are global ranks here, as in torch;
`group_src` and `group_dst` are the group's. Every call returns a started `Work` to await.
Errors are those that `ProcessGroup` names; tensors and lists are borrowed until the Work is done.

On a process that is no member of `group` a call warns, does nothing and gives None.
"""

from aiodist.functional.collectives import (
    all_gather,
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    all_to_all,
    all_to_all_single,
    barrier,
    broadcast,
    gather,
    monitored_barrier,
    reduce,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
    scatter,
)
from aiodist.functional.groups import (
    get_backend,
    get_global_rank,
    get_group_rank,
    get_pg_count,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    split_group,
)
from aiodist.functional.handles import GroupMember, Skipped
from aiodist.functional.objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from aiodist.functional.point_to_point import P2POp, batch_isend_irecv, irecv, isend, recv, send

__all__ = [
    "GroupMember",
    "P2POp",
    "Skipped",
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
]
