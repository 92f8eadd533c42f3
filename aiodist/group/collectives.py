"""The collectives that users call on a group: each checks its arguments and issues one operation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.errors import UsageError
from aiodist.group import arguments as check
from aiodist.group.core import NO_DATA, GroupCore
from aiodist.timeouts import Timeout
from aiodist.types import Kind, Premultiplied, ReduceOp, check_reduction
from aiodist.work import Work

Op = ReduceOp | Premultiplied


class Collectives:
    """See `ProcessGroup` for what all calls have in common.

    Args:
        core: of the group.
    """

    def __init__(self, core: GroupCore) -> None:
        self.rank, self.size = core.roster.rank, core.roster.size
        self._issue = core.issue

    def all_reduce(
        self,
        tensor: Any,
        op: Op = ReduceOp.SUM,
        out: Any = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Reduce over all ranks; every rank gets the bitwise same result.

        Args:
            tensor: any shape, equal on all ranks. Overwritten with the result unless `out` is given.
            op: how elements combine.
            out: where the result goes instead; same shape and dtype. The input then survives a failure.

        Returns:
            → `tensor`, or `out`.
        """
        if out is None:
            source = target = check.writable(tensor, "tensor")
            result = tensor
        else:
            source = check.readable(tensor, "tensor")
            result, target = check.output(out, tensor, source, source.shape)
        return self._issue(
            Kind.all_reduce, source, source, target, result, timeout, async_op, **reducing(op, source.dtype)
        )

    def broadcast(
        self, tensor: Any, src: int = 0, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[Any]:
        """Copy `src`'s tensor to all ranks.

        Args:
            tensor: same shape and dtype on all ranks; read on `src`, overwritten elsewhere.
            src: group rank that has the data.

        Returns:
            → `tensor`.
        """
        root = check.group_rank(src, self.size, "src")
        array = check.readable(tensor, "tensor") if root == self.rank else check.writable(tensor, "tensor")
        return self._issue(Kind.broadcast, array, array, array, tensor, timeout, async_op, root=root)

    def reduce(
        self,
        tensor: Any,
        dst: int = 0,
        op: Op = ReduceOp.SUM,
        out: Any = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Reduce over all ranks to one.

        Args:
            tensor: same shape and dtype on all ranks. On `dst` it is overwritten with the result unless `out`
                is given; elsewhere it is left as it was.
            dst: group rank that gets the result.
            op: how elements combine.
            out: on `dst`, where the result goes instead.

        Returns:
            → `tensor` or `out` on `dst`, None elsewhere.
        """
        root = check.group_rank(dst, self.size, "dst")
        target: Array | None = None
        result: Any = None
        if root != self.rank:
            source = check.readable(tensor, "tensor")
        elif out is None:
            source = target = check.writable(tensor, "tensor")
            result = tensor
        else:
            source = check.readable(tensor, "tensor")
            result, target = check.output(out, tensor, source, source.shape)
        return self._issue(
            Kind.reduce,
            source,
            source,
            target,
            result,
            timeout,
            async_op,
            root=root,
            **reducing(op, source.dtype),
        )

    def all_gather(
        self, tensor: Any, out: Any = None, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[Any]:
        """Every rank gets every rank's tensor.

        Args:
            tensor: same shape and dtype on all ranks; read.
            out: array of shape `(size, *tensor.shape)` for the result; a new one by default.

        Returns:
            → array of shape `(size, *tensor.shape)`; row r is rank r's tensor.
        """
        source = check.readable(tensor, "tensor")
        result, target = check.output(out, tensor, source, (self.size, *source.shape))
        return self._issue(Kind.all_gather, source, source, target, result, timeout, async_op)

    def reduce_scatter(
        self,
        tensor: Any,
        out: Any = None,
        op: Op = ReduceOp.SUM,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Reduce over all ranks, and give rank r the r-th part of the first axis.

        Args:
            tensor: same shape and dtype on all ranks; the first axis is divisible by `size`. Read.
            out: array of shape `(tensor.shape[0] // size, *tensor.shape[1:])`; a new one by default.
            op: how elements combine.

        Returns:
            → this rank's part of the reduction.
        """
        source = check.readable(tensor, "tensor")
        result, target = check.output(out, tensor, source, check.split_axis(source, self.size))
        return self._issue(
            Kind.reduce_scatter,
            source,
            source,
            target,
            result,
            timeout,
            async_op,
            **reducing(op, source.dtype),
        )

    def gather(
        self, tensor: Any, dst: int = 0, out: Any = None, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[Any]:
        """One rank gets every rank's tensor.

        Args:
            tensor: same shape and dtype on all ranks; read.
            dst: group rank that gets them.
            out: on `dst`, array of shape `(size, *tensor.shape)` for the result; a new one by default.

        Returns:
            → on `dst`, array of shape `(size, *tensor.shape)`; None elsewhere.
        """
        root = check.group_rank(dst, self.size, "dst")
        source = check.readable(tensor, "tensor")
        result, target = None, None
        if root == self.rank:
            result, target = check.output(out, tensor, source, (self.size, *source.shape))
        elif out is not None:
            raise UsageError(f"out is for dst={root}, this is rank {self.rank}", hint="Pass None here")
        return self._issue(Kind.gather, source, source, target, result, timeout, async_op, root=root)

    def scatter(
        self, out: Any, tensor: Any = None, src: int = 0, *, timeout: Timeout = None, async_op: bool = False
    ) -> Work[Any]:
        """Deal one rank's rows out to all ranks.

        Args:
            out: this rank's part; same shape and dtype on all ranks; overwritten.
            tensor: on `src`, array of shape `(size, *out.shape)`; row r goes to rank r. None elsewhere.
            src: group rank that has the data.

        Returns:
            → `out`.
        """
        root = check.group_rank(src, self.size, "src")
        target = check.writable(out, "out")
        source: Array | None = None
        if root == self.rank:
            if tensor is None:
                raise UsageError(f"tensor is missing on src={root}", hint="Pass the rows to deal out")
            source = check.readable(tensor, "tensor")
            if source.shape != (self.size, *target.shape):
                raise UsageError(
                    f"tensor has shape {source.shape}, expected {(self.size, *target.shape)}",
                    hint="It has one row for each rank, shaped like out",
                )
            check.same_dtype("tensor", source, target)
            check.apart("out", target, "tensor", source)
        elif tensor is not None:
            raise UsageError(f"tensor is for src={root}, this is rank {self.rank}", hint="Pass None here")
        return self._issue(Kind.scatter, target, source, target, out, timeout, async_op, root=root)

    def all_to_all(
        self,
        tensor: Any,
        out: Any = None,
        in_splits: Sequence[int] | None = None,
        out_splits: Sequence[int] | None = None,
        *,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Every rank sends a part of the first axis to every rank.

        Args:
            tensor: read. Same dtype and trailing shape on all ranks.
            out: array for the result; a new one by default, of the size that `out_splits` says, or of the
                input's shape where there are no splits.
            in_splits: rows that go to each rank; None: equal parts.
            out_splits: rows that come from each rank; None: equal parts of `out`. What one rank sends and
                the other expects is compared for each pair. All ranks pass splits, or none does.

        Returns:
            → array of the parts that came, in rank order.
        """
        source = check.readable(tensor, "tensor")
        sent = check.splits(source, in_splits, self.size, "tensor", "in_splits")
        if out is None and out_splits is None and in_splits is not None:
            raise UsageError("in_splits alone leaves open what arrives", hint="Pass out_splits, too")
        if out is None:
            rows = (
                source.shape[0]
                if out_splits is None
                else sum(check.counts(out_splits, self.size, "out_splits"))
            )
            result, target = check.output(None, tensor, source, (rows, *source.shape[1:]))
        else:
            result, target = out, check.writable(out, "out")
            if target.ndim != source.ndim or target.shape[1:] != source.shape[1:]:
                raise UsageError(f"out has shape {target.shape}, its rows must be shaped {source.shape[1:]}")
            check.same_dtype("out", target, source)
            check.apart("out", target, "tensor", source)
        received = check.splits(target, out_splits, self.size, "out", "out_splits")
        check.own_part(sent[self.rank], received[self.rank], "rows")
        width = math.prod(source.shape[1:])
        even = in_splits is None and out_splits is None
        return self._issue(
            Kind.all_to_all,
            (source.dtype, source.shape if even else source.shape[1:]),
            source,
            target,
            result,
            timeout,
            async_op,
            sizes=[count * width for count in received],
            sent=[count * width for count in sent],
            detail="" if even else "splits",
        )

    def barrier(self, *, timeout: Timeout = None, async_op: bool = False) -> Work[None]:
        """Return when all ranks have called it.

        Returns:
            → None.
        """
        return self._issue(Kind.barrier, NO_DATA, None, None, None, timeout, async_op)


def reducing(op: Op, dtype: np.dtype[Any]) -> dict[str, Any]:
    """The arguments of an operation that reduces: the agreed op, and this rank's factor."""
    return {
        "reduce": check_reduction(op, dtype),
        "factor": op.factor if isinstance(op, Premultiplied) else None,
    }
