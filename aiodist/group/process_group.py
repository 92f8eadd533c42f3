"""The process group: what users hold. Its calls are in the files that its bases come from.

Names without an underscore are for users. Of the others the calls use `GroupCore._issue`, `_reserve`,
`_composed` and `_check_here`, and `epochs` what hands a group on or ends it: `_regroup`, `_family`,
`_successor`, `_ready`, `_break`, `_close`, and what these leave behind.
"""

from __future__ import annotations

from aiodist.group.changes import Changes
from aiodist.group.collectives import Collectives
from aiodist.group.point_to_point import PointToPoint
from aiodist.group.subgroups import Subgroups


class ProcessGroup(Collectives, PointToPoint, Changes, Subgroups):
    """A fixed set of processes that communicate. Made by `init_process_group` and `new_group`.

    Every operation is a plain method that starts it at once and returns a `Work`; `await` gives the
    result. Members issue the same collectives in the same order (law 1). Tensors are borrowed until the
    Work is done (law 6): NumPy arrays and whatever shares memory with one. Ranks are group ranks.

    All operations take
        timeout: seconds, or a timedelta; None takes the group's. When it passes, the group breaks.
        async_op: False says "I await it here": a Work dropped un-awaited warns. True: "I hold the handle".
    and raise
        UsageError: at the call, before anything is sent and without taking a number.
        GroupClosed: at the call, after `aclose`.
        GroupBroken: from the Work: `PeerLost`, `CollectiveTimeout`, `CollectiveMismatch`, `GroupAborted`. The
            group does no more work; tensors of failed in-place operations are undefined.

    Attributes:
        rank: of this process in the group.
        size: number of members.
        ranks: the members' global ranks, in group order.
        name: for people.
        epoch: counts membership changes, 0 at first.
        hosts: name of each member's host, in group order.
        timeout: seconds; of operations that say nothing else.
        backend: what carries operations out, 'host' or 'cpu:host,cuda:nccl'.
        device: index of this process's CUDA device; None where the group takes no tensors on devices.
    """
