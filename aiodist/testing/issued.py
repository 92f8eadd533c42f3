"""One step of a random program on one rank: issued, and held against what it must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from aiodist.errors import UsageError
from aiodist.group import ProcessGroup
from aiodist.testing.programs import Array, Step, laid_out, reduced, room, same, same_bits, splits, value
from aiodist.types import Kind
from aiodist.work import Work


@dataclass(frozen=True, slots=True)
class Issued:
    """A step that was issued.

    Args:
        step: what.
        work: its handle; None where this rank has no part in the step.
        check: fails unless the operation gave what it must. Called with the Work's result.
        tensors: all that the operation reads or writes on this rank.
    """

    step: Step
    work: Work[Any] | None
    check: Callable[[Any], None]
    tensors: tuple[Array, ...]

    def spoil(self) -> None:
        """Write to the tensors: they are the program's again."""
        for tensor in self.tensors:
            tensor[...] = True if tensor.dtype.kind == "b" else 77


async def perform(pg: ProcessGroup, step: Step) -> None:
    """Carry out one step on this rank and check its result. Its tensors are written to at once."""
    issued = issue(pg, step)
    if issued.work is not None:
        issued.check(await issued.work)
        issued.spoil()


def issue(pg: ProcessGroup, step: Step, timeout: float | None = None) -> Issued:
    """Start one step on this rank."""
    make = room(step, pg.rank, lambda nbytes: _shared(pg, nbytes))
    tensors: list[Array] = []

    def lay(array: Array) -> Array:
        tensors.append(laid_out(array, step.layout, make))
        return tensors[-1]

    def zeros(*extents: int) -> Array:
        return lay(np.zeros((*extents, *step.shape), step.dtype))

    size, rank, root, salt = pg.size, pg.rank, step.root, step.salt
    options: dict[str, Any] = {"async_op": True, "timeout": timeout}
    mine = lay(value(step, rank))
    before = mine.copy()

    def kept() -> None:
        same_bytes(mine, before, step)

    def issued(work: Work[Any] | None, check: Callable[[Any], None]) -> Issued:
        return Issued(step, work, check, tuple(tensors))

    match step.kind:
        case Kind.barrier:
            return issued(pg.barrier(**options), lambda result: None)
        case Kind.all_reduce:
            out = zeros() if step.separate else mine

            def check(result: Any) -> None:
                assert result is out
                same(out, reduced(step, size), step)
                if out is not mine:
                    kept()

            return issued(pg.all_reduce(mine, step.op, out if step.separate else None, **options), check)
        case Kind.broadcast:

            def check(result: Any) -> None:
                assert result is mine
                same_bytes(mine, value(step, root), step)

            return issued(pg.broadcast(mine, root, **options), check)
        case Kind.reduce:

            def check(result: Any) -> None:
                if rank == root:
                    assert result is mine
                    same(mine, reduced(step, size), step)
                else:
                    assert result is None
                    kept()

            return issued(pg.reduce(mine, root, step.op, **options), check)
        case Kind.all_gather | Kind.gather:
            gets = step.kind is Kind.all_gather or rank == root
            rows = zeros(size) if step.separate and gets else None

            def check(result: Any) -> None:
                assert result is rows or not step.separate
                if gets:
                    same_bytes(result, np.stack([value(step, r) for r in range(size)]), step)
                else:
                    assert result is None
                kept()

            if step.kind is Kind.all_gather:
                return issued(pg.all_gather(mine, rows, **options), check)
            return issued(pg.gather(mine, root, rows, **options), check)
        case Kind.reduce_scatter:
            part = step.shape[0] // size

            def check(result: Any) -> None:
                same(result, reduced(step, size)[rank * part : (rank + 1) * part], step)
                kept()

            return issued(pg.reduce_scatter(mine, op=step.op, **options), check)
        case Kind.scatter:
            dealt = lay(value(step, root, size)) if rank == root else None

            def check(result: Any) -> None:
                assert result is mine
                same_bytes(mine, value(step, root, size)[rank], step)

            return issued(pg.scatter(mine, dealt, root, **options), check)
        case Kind.all_to_all:
            table = splits(step, size)
            sent = lay(value(step, rank, sum(table[rank])))
            counts = [table[source][rank] for source in range(size)]

            def check(result: Any) -> None:
                parts = []
                for source in range(size):
                    start = sum(table[source][:rank])
                    theirs = value(step, source, sum(table[source]))
                    parts.append(theirs[start : start + table[source][rank]])
                same_bytes(result, np.concatenate(parts), step)

            if step.separate:
                return issued(pg.all_to_all(sent, **options), check)
            return issued(pg.all_to_all(sent, None, table[rank], counts, **options), check)
    assert step.kind is Kind.send
    target = (root + 1) % size
    if rank == root:
        return issued(pg.send(mine, target, tag=salt, **options), lambda result: kept())
    if rank == target:
        into = zeros()

        def check(result: Any) -> None:
            assert result == root
            same_bytes(into, value(step, root), step)

        return issued(pg.recv(into, root, tag=salt, **options), check)
    return issued(None, lambda result: None)


def _shared(pg: ProcessGroup, nbytes: int) -> Array:
    """Memory that other ranks read; ordinary memory where all of it is taken, which depends on what ended."""
    try:
        return pg.empty(nbytes, np.uint8)
    except UsageError as error:
        if "no room for" not in error.message:
            raise
        return np.empty(nbytes, np.uint8)


def same_bytes(got: Any, expected: Any, step: Step) -> None:
    """Fail unless two arrays hold the same bytes."""
    assert same_bits(got, expected), step.describe()
