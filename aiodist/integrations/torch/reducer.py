"""What DDP's Reducer, which is C++, needs of a group written in Python.

*Buckets in memory that the other ranks of this host read where it lies.* The Reducer makes its buckets by
`at::empty`, when it is made and once more after the first backward pass. A group in C++ may give it other
memory; one in Python is not asked. So within these two calls a dispatch mode answers that one operator.

*The Work of `DDP.join`.* The Reducer waits for it in the backward pass, and keeps only its half in C++: where
nobody keeps the other, `wait` is that of C++, which never returns.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import Reducer
from torch.utils._python_dispatch import TorchDispatchMode

from aiodist.backends.arrays import view, wrap
from aiodist.base.errors import AiodistError
from aiodist.portal.facade import SyncProcessGroup

_LEAST = 64 << 10  # bytes: what is smaller is copied through a peer's slot in any case

_group_of: weakref.WeakKeyDictionary[Any, SyncProcessGroup] = weakref.WeakKeyDictionary()
_waited_for: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


@functools.cache
def serve(kind: type[Any]) -> None:
    """Have Reducers serve groups of this class, whose `ours` is the group behind it."""
    make, rebuild, wait_for = (
        Reducer.__init__,
        Reducer._rebuild_buckets,
        Reducer._set_forward_pass_work_handle,
    )

    @functools.wraps(make)
    def made(self: Any, *args: Any, **more: Any) -> None:
        ours = next((one.ours for one in (*args, *more.values()) if isinstance(one, kind)), None)
        _within(ours, make, self, *args, **more)
        if ours is not None:
            _group_of[self] = ours

    @functools.wraps(rebuild)
    def rebuilt(self: Any) -> Any:
        return _within(_group_of.get(self), rebuild, self)

    @functools.wraps(wait_for)
    def waits_for(self: Any, work: Any, *args: Any, **more: Any) -> None:
        _waited_for[self] = work
        wait_for(self, work, *args, **more)

    for theirs, mine in ((make, made), (rebuild, torch._disable_dynamo(rebuilt)), (wait_for, waits_for)):
        setattr(Reducer, theirs.__name__, mine)


def _within(ours: SyncProcessGroup | None, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
    if ours is None or ours.size == 1:
        return call(*args, **more)
    with _InSharedMemory(ours):
        return call(*args, **more)


class _InSharedMemory(TorchDispatchMode):  # type: ignore[misc]
    """Within it, large flat tensors on the host are made in memory of the group.

    Args:
        ours: the group.
    """

    def __init__(self, ours: SyncProcessGroup) -> None:
        super().__init__()
        self._ours = ours

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        made = None
        if func is torch.ops.aten.empty.memory_format:
            made = self._made(*args, **named)
        return func(*args, **named) if made is None else made

    def _made(self, shape: list[int], **named: Any) -> Any:
        """The tensor; None where it is not for here, or there is no room."""
        dtype = named.get("dtype") or torch.get_default_dtype()
        device = named.get("device") or torch.device("cpu")
        if device.type != "cpu" or len(shape) != 1 or math.prod(shape) * dtype.itemsize < _LEAST:
            return None
        like = torch.empty(0, dtype=dtype)
        try:
            array = self._ours.empty(shape[0], view(like, writable=True, what="a bucket").dtype)
        except AiodistError:  # no room, or the group is closed, which the next operation says
            return None
        return wrap(like, array)
