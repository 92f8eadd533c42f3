"""Kernels for the two functional collectives that C++ cannot hand to a group written in Python.

torch 2.13 lets Python serve only some of the methods by which C++ calls a group; these two use others. What
is asked of a group that is not ours goes on to torch's own kernels, without the GIL: gloo's threads take it
while they hold the lock that the kernel waits for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as c10d
from torch._C._distributed_c10d import _register_work, _resolve_process_group


@functools.cache
def serve(kind: type) -> torch.library.Library:
    """Have torch call ours for groups of this class. → what must live as long as they."""
    library = torch.library.Library("_c10d_functional", "IMPL")
    kernels: list[Callable[..., Any]] = [all_gather_into_tensor_out, batch_p2p_ops]
    for ours in kernels:
        kernel = _chosen(kind, ours)
        for key in ("CPU", "CUDA"):
            library.impl(ours.__name__, kernel, key)
    return library


def _chosen(kind: type, ours: Callable[..., Any]) -> Callable[..., Any]:
    place = {"all_gather_into_tensor_out": 2, "batch_p2p_ops": 4}[ours.__name__]  # of the group
    # torch.library.get_kernel gives theirs, too, but what calls that keeps the GIL.
    call = getattr(torch.ops._c10d_functional, ours.__name__).default._op_dk
    theirs = functools.partial(call, torch._C.DispatchKey.CompositeExplicitAutograd)

    def kernel(*args: Any, **more: Any) -> Any:
        group = args[place]
        if isinstance(group, str):
            group = _resolve_process_group(group)
        elif not isinstance(group, c10d.ProcessGroup):
            group = c10d.ProcessGroup.unbox(group)
        if isinstance(group, kind):
            return ours(group, *args[:place], **more)
        return theirs(*args, **more)

    return kernel


def all_gather_into_tensor_out(group: Any, given: Any, _: int, *, out: Any) -> Any:
    """Gather every rank's tensor into `out`."""
    _register_work(out, group.all_gather_single(out, given))
    return out


def batch_p2p_ops(
    group: Any, names: list[str], peers: list[int], tags: list[int], tensors: list[Any]
) -> list[Any]:
    """Send and receive, in this order. → what arrives; an empty tensor for what is sent."""
    outs = []
    for name, peer, tag, tensor in zip(names, peers, tags, tensors, strict=True):
        if name == "isend":
            out, work = tensor.new_empty(0), group.send([tensor], peer, tag)
        else:
            out, work = tensor, group.recv([tensor], peer, tag)
        _register_work(out, work)
        outs.append(out)
    return outs
