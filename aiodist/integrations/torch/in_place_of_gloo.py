"""aiodist for programs that say "gloo": `aiodist run --torch train.py`.

torch makes a gloo group by calling a class of its module; ours takes its place there. `get_backend()` still
says "gloo", since it was asked for. Gloo itself still serves where a group written in Python cannot: beside
another backend in one group ("cpu:gloo,cuda:nccl"; a warning says so), in the checks of
TORCH_DISTRIBUTED_DEBUG=DETAIL on groups of other backends, and in torch's RPC, which makes its group in C++.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch.distributed
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from aiodist.integrations.torch.group import AiodistProcessGroup
from aiodist.integrations.torch.meeting import meet_over_store
from aiodist.integrations.torch.versions import pass_over, takes_more

_LOGGED = "_get_ddp_logging_data"
_READ_BY_GLOO = ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT")
_OF_ITS_NETWORK = ("Device", "_Options", "create_device", "create_default_device")  # ours needs none of it
_THREADS = 2  # of a group of ours: the loop's, and the one for large operations
_PATIENCE = timedelta(minutes=30)  # torch's, where it says none
_GLOO: Any = getattr(distributed_c10d, "ProcessGroupGloo", ())

_itself: ContextVar[bool] = ContextVar("whether gloo itself is needed", default=False)


@takes_more
class GlooStandIn(AiodistProcessGroup):
    """A group of ours, made as torch makes one of gloo's.

    Args:
        store: of this group alone.
        rank, size: in it.
        timeout: for meeting, and of operations.
    """

    asked_as = "gloo"

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta = _PATIENCE, *further: Any, **newer: Any
    ) -> None:
        pass_over("ProcessGroupGloo", [*further, *newer])
        ours = meet_over_store(store, rank, size, timeout.total_seconds())
        super().__init__(ours, "", list(range(size)))
        self.options = SimpleNamespace(global_ranks_in_group=[], group_name="", _timeout=timeout)

    def _set_sequence_number_for_group(self) -> None:
        """Ours counts by itself."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the timeout of operations that say nothing else."""
        super().set_timeout(timeout)
        self.options = SimpleNamespace(**{**vars(self.options), "_timeout": timeout})

    setTimeout = _set_default_timeout = set_timeout


class _EitherKind(type):
    """The kind of a class that makes groups of ours, or of gloo's where these are needed, and knows both."""

    def __call__(cls, *args: Any, **more: Any) -> Any:
        return (_GLOO if _itself.get() else GlooStandIn)(*args, **more)

    def __instancecheck__(cls, it: object) -> bool:
        return isinstance(it, (GlooStandIn, _GLOO))


class _Gloo(metaclass=_EitherKind):
    """What torch calls to make a group of gloo's, and by which it knows one."""


def _by_gloo(function: Callable[..., Any], needed: Callable[..., bool]) -> Callable[..., Any]:
    """A function of torch's, within which gloo's groups are gloo's own where they are needed."""

    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        before = _itself.set(needed(*args, **more))
        try:
            return function(*args, **more)
        finally:
            _itself.reset(before)

    return call


def _is_mixed(size: int, rank: int, ranks: list[int], backend: Any, *_: Any, **more: Any) -> bool:
    """Whether a group shall have other backends beside gloo: torch drops them for one written in Python."""
    named = {part.rpartition(":")[2] for part in str(backend).lower().split(",")}
    mixed = len(named) > 1
    if mixed and "gloo" in named and not rank:
        warnings.warn(
            f"gloo itself serves a group of {backend!s}, not aiodist: torch puts no group written in Python "
            'beside another backend. aiodist serves all devices where the program says "gloo" or "aiodist"',
            stacklevel=2,
        )
    return mixed


def take_its_place() -> None:
    """Have torch make groups of ours where a program asks for gloo."""
    distributed_c10d.ProcessGroupGloo = _Gloo
    for name, needed in (
        ("_new_process_group_helper", _is_mixed),
        ("_create_process_group_wrapper", lambda *_, **more: True),
    ):
        function = _by_gloo(getattr(distributed_c10d, name), needed)
        for module in (distributed_c10d, torch.distributed):
            if hasattr(module, name):
                setattr(module, name, function)
    known = getattr(DistributedDataParallel, _LOGGED)

    def known_as_gloo(self: Any) -> Any:
        # C++ would ask a group that calls itself gloo for gloo's innards, so ours has another name there.
        facts = known(self)
        if isinstance(self.process_group, GlooStandIn):
            facts["backend_name"] = "gloo"
            facts |= {name.lower(): os.environ.get(name, "N/A") for name in _READ_BY_GLOO}
            facts["gloo_num_threads"] = _THREADS
        return facts

    setattr(DistributedDataParallel, _LOGGED, known_as_gloo)
    for name in _OF_ITS_NETWORK:
        setattr(GlooStandIn, name, getattr(_GLOO, name))
