"""torch's forms of tensors, ops and timeouts, as ours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._C import _from_dlpack as from_dlpack
from torch._C import _to_dlpack as to_dlpack
from torch._C._distributed_c10d import ReduceOp as TorchOp

from aiodist.base.errors import UsageError
from aiodist.base.types import Premultiplied, ReduceOp, premul_sum
from aiodist.integrations.torch.versions import pass_over

_KINDS: Any = TorchOp.RedOpType
_OPS: dict[Any, ReduceOp] = {
    getattr(_KINDS, name): getattr(ReduceOp, name)
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}


_QUICK = {torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.int8, torch.uint8}


def plain(tensor: Any) -> Any:
    """The tensor without its history, sharing its memory: what arrives is written past autograd.

    A view of it in NumPy would forbid torch to resize its storage, and FSDP frees parameters that way. So on
    the host it is under a storage of its own, and `as_given` finds the tensor again.

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
        raise UsageError(
            "a lazily conjugated tensor cannot be sent", hint="Send tensor.resolve_conj().resolve_neg()"
        )
    if tensor.is_nested:
        raise UsageError("a nested tensor cannot be sent", hint="Send tensor.values(), or padded")
    if tensor.device.type != "cpu" or tensor.is_quantized:
        return tensor.detach()
    try:
        alias: Any = from_dlpack(to_dlpack(tensor))
    except (BufferError, RuntimeError):  # of a dtype or a class that has no such form
        alias = None
    if alias is None or alias.dtype is not tensor.dtype:  # as of int1; what is wrong with it is said later
        return tensor.detach()
    alias.given = tensor
    return alias


def quick(tensor: Any) -> Any:
    """The memory of a usual tensor on the host, as an array, 8 µs sooner; None: `plain` has to look at it."""
    if type(tensor) is not torch.Tensor or tensor.dtype not in _QUICK or tensor.is_neg() or tensor.is_nested:
        return None
    try:
        array = np.from_dlpack(tensor)  # refuses the rest, and leaves the storage as it is
    except (BufferError, RuntimeError, TypeError, ValueError):
        return None
    return array if array.flags.writeable and tensor.data_ptr() else None


def as_given(tensors: Sequence[Any]) -> list[Any]:
    """Tensors under the storages that torch knows, without their history."""
    return [getattr(tensor, "given", tensor).detach() for tensor in tensors]


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


def apart(given: Sequence[Any], written: Sequence[Any]) -> list[Any]:
    """What is read, copied where it shares memory with what is written: torch's calls may work in place."""
    spans = [_span(tensor) for tensor in written]
    return [tensor.clone() if _within(_span(tensor), spans) else tensor for tensor in given]


def _span(tensor: Any) -> tuple[int, int]:
    """Addresses between which a tensor's elements lie."""
    if tensor.is_contiguous():
        start = tensor.data_ptr()
        return start, start + tensor.nbytes
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.data_ptr() + storage.nbytes()


def _within(span: tuple[int, int], spans: list[tuple[int, int]]) -> bool:
    return any(span[0] < end and start < span[1] for start, end in spans)


def fitting(whole: Any, part: Any) -> tuple[Any, Any]:
    """A tensor and a rank's part of it, flat where their shapes do not fit: torch compares only the sizes."""
    joined = whole.ndim == part.ndim and whole.shape[1:] == part.shape[1:]
    stacked = whole.shape[1:] == part.shape
    if joined or stacked or not (whole.is_contiguous() and part.is_contiguous()):
        return whole, part
    return whole.view(-1), part.view(-1)


def _op_of(asked: Any) -> ReduceOp | Premultiplied:
    """An op of torch's as ours; SUM where there is none."""
    if asked is None:
        return ReduceOp.SUM
    kind = getattr(asked, "op", asked)  # the class with a factor wraps the kind
    try:
        return _OPS[kind]
    except (KeyError, TypeError):
        if kind == _KINDS.PREMUL_SUM:
            return premul_sum(float(asked.__getstate__()[1]))
        raise UsageError(f"{asked!r} is not an operation that ranks can reduce by") from None


class TorchOptions(NamedTuple):
    """The options of a call, beside its tensors.

    Attributes:
        op: by which values are reduced.
        root: a group rank.
        limit: seconds; None for the group's.
    """

    op: ReduceOp | Premultiplied
    root: int
    limit: float | None


def asked(*given: Any, **named: Any) -> TorchOptions:
    """Read what follows the tensors of a call, in both of c10d's forms.

    Args:
        given: one of torch's Options, or a root, an op and a timeout, each of which may be missing; they are
            told apart by their types, since each call has them in another order.
        named: the same as `opts`, `root`, `op` and `timeout`.

    Raises:
        TypeError: it is none of these.
        UsageError: the op is none that ranks can reduce by.
    """
    if len(given) == 1 and not named and hasattr(given[0], "timeout"):  # as torch's own calls have it
        options = given[0]
        return TorchOptions(
            _op_of(getattr(options, "reduceOp", None)),
            int(getattr(options, "rootRank", 0)),
            seconds_of(options.timeout),
        )
    options, root, op, timeout = (named.pop(name, None) for name in ("opts", "root", "op", "timeout"))
    pass_over("a call", named, "{call} takes opts, root, op and timeout, not {unknown}")
    for value in given:
        if hasattr(value, "timeout"):
            options = value
        elif isinstance(value, timedelta):
            timeout = value
        elif isinstance(value, (TorchOp, _KINDS)):
            op = value
        elif isinstance(value, int):
            root = value
        elif value is not None:
            neither = "{unknown} is neither a root, an op, a timeout nor Options of torch's"
            pass_over("a call", [repr(value)], neither)
    return TorchOptions(
        _op_of(getattr(options, "reduceOp", None) if op is None else op),
        int(getattr(options, "rootRank", 0) if root is None else root),
        seconds_of(getattr(options, "timeout", None) if timeout is None else timeout),
    )


def seconds_of(timeout: timedelta | None) -> float | None:
    """torch says "no timeout of its own" by 0 and by less."""
    if timeout is None or timeout.total_seconds() <= 0:
        return None
    return timeout.total_seconds()
