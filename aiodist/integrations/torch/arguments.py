"""torch's forms of tensors, ops and timeouts, as ours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import ReduceOp as TorchOp

from aiodist.errors import UsageError
from aiodist.types import Premultiplied, ReduceOp, premul_sum

_KINDS: Any = TorchOp.RedOpType
_OPS: dict[Any, ReduceOp] = {
    getattr(_KINDS, name): getattr(ReduceOp, name)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}


def plain(tensor: Any) -> Any:
    """The tensor without its history, sharing its memory: what arrives is written past autograd.

    Raises:
        UsageError: it is none that can be sent: no tensor, sparse, without memory, quantised.
    """
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"a torch.Tensor is needed, not {type(tensor).__name__}")
    if tensor.layout is not torch.strided:
        raise UsageError(
            f"a tensor of layout {tensor.layout} cannot be sent", hint="Send to_dense(), or its parts"
        )
    if tensor.is_meta:
        raise UsageError("a tensor on the meta device has no memory to send")
    if tensor.is_conj() or tensor.is_neg():
        raise UsageError("a lazily conjugated tensor cannot be sent", hint="Send tensor.resolve_conj()")
    return tensor.detach()


def sparse_in(tensors: Any) -> Any:
    """The one sparse tensor (sparse_coo, on the host) of a list, or given bare; None where it is none."""
    tensor = tensors if isinstance(tensors, torch.Tensor) else tensors[0] if len(tensors) == 1 else None
    is_one = isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo
    return tensor if is_one and tensor is not None and tensor.device.type == "cpu" else None


def one(tensors: Any, what: str) -> Any:
    """The one tensor of a list, or the tensor that is given bare."""
    if isinstance(tensors, torch.Tensor):
        return plain(tensors)
    if len(tensors) != 1:
        raise UsageError(f"{what} takes one tensor a rank, not {len(tensors)}")
    return plain(tensors[0])


def all_of(tensors: Sequence[Any]) -> list[Any]:
    """Each of them."""
    return [plain(tensor) for tensor in tensors]


def op_of(options: Any) -> ReduceOp | Premultiplied:
    """The op in options, which may be missing, or be the op itself."""
    asked = getattr(options, "reduceOp", options)
    if asked is None:
        return ReduceOp.SUM
    kind = getattr(asked, "op", asked)  # the class with a factor wraps the kind
    if kind == _KINDS.PREMUL_SUM:
        factor = asked.__getstate__()[1]
        return premul_sum(float(factor))
    try:
        return _OPS[kind]
    except (KeyError, TypeError):
        raise UsageError(f"{asked!r} is no op that ranks can reduce by") from None


def limit_of(options: Any) -> float | None:
    """Seconds, where options say a timeout; None for the group's."""
    return seconds_of(getattr(options, "timeout", None))


def seconds_of(timeout: timedelta | None) -> float | None:
    """torch says "no timeout of its own" by 0 and by less."""
    if timeout is None or timeout.total_seconds() <= 0:
        return None
    return timeout.total_seconds()
