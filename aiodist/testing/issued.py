"""One step of a random program on one rank: issued, and held against what it must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from aiodist.backends.work import Work
from aiodist.base.errors import UsageError
from aiodist.base.operations import ROLES, Kind, Parts, Uneven
from aiodist.group import ProcessGroup
from aiodist.testing.programs import (
    Array,
    Step,
    expected,
    laid_out,
    room,
    rows,
    same,
    same_bits,
    tensor,
    value,
)


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
    tensors: tuple[Any, ...]

    def spoil(self) -> None:
        """Write to the tensors: they are the program's again."""
        for array in self.tensors:
            array[...] = True if array.dtype.kind == "b" else 77


class IssuingPlace(Protocol):
    """The place of a program's tensors, if not on the host."""

    def put(self, array: Array, layout: str) -> Any:
        """A tensor there with the values of an array, laid out as for `laid_out`."""

    def get(self, tensor: Any) -> Array:
        """The tensor's values as an array of the host."""


async def perform(pg: ProcessGroup, step: Step, place: IssuingPlace | None = None) -> None:
    """Carry out one step on this rank and check its result. Tensors on the host are written to at once."""
    issued = issue(pg, step, place=place)
    if issued.work is not None:
        issued.check(await issued.work)
        if place is None:
            issued.spoil()


def issue(
    pg: ProcessGroup, step: Step, timeout: float | None = None, place: IssuingPlace | None = None
) -> Issued:
    """Start one step on this rank: what is passed, and what it must give, follow from the table of roles."""
    make = room(step, pg.rank, lambda nbytes: _shared(pg, nbytes))
    tensors: list[Any] = []

    def lay(array: Array) -> Any:
        tensors.append(place.put(array, step.layout) if place else laid_out(array, step.layout, make))
        return tensors[-1]

    get: Callable[[Any], Array] = place.get if place else np.asarray
    options: dict[str, Any] = {"async_op": True, "timeout": timeout}
    if step.kind is Kind.send:
        return Issued(step, *_message(pg, step, lay, get, options, place), tuple(tensors))
    size, rank, root, roles = pg.size, pg.rank, step.root, ROLES[step.kind]
    gives, gets = roles.gives(rank, root), roles.gets(rank, root)
    must = expected(step, rank, size)
    before = tensor(step, rank, size) if gives or roles.one_tensor else None
    source = None if before is None else _given(step, lay(before), place)
    target = None
    if must is not None and (step.separate or roles.root_gives) and not roles.one_tensor:
        target = lay(np.zeros(must.shape, step.dtype))
    renewed = target is None and gets and _frozen(source)
    overwritten = target is None and not roles.cut and gets and not renewed

    def check(result: Any) -> None:
        if must is None:
            assert result is (source if roles.one_tensor else None), step.describe()
        elif renewed:
            if isinstance(source, np.generic):
                assert isinstance(result, np.generic) == (not must.ndim), step.describe()
            else:
                assert result is not source, step.describe()
            same(result, must, step, exact=not roles.reduces)
        else:
            into = source if overwritten else target
            assert into is None or result is into, step.describe()
            same(get(result), must, step, exact=not roles.reduces)
        if source is not None and not overwritten:
            same_bytes(get(source), before, step)

    arguments = _arguments(step, rank, size)
    if roles.source is not Parts.NONE:
        arguments["tensor"] = source
        if target is not None:
            arguments["out"] = target
    work = getattr(pg, step.kind.name)(**arguments, **options)
    return Issued(step, work, check, tuple(tensors))


def _arguments(step: Step, rank: int, size: int) -> dict[str, Any]:
    """The arguments of a collective besides its tensors."""
    roles = ROLES[step.kind]
    arguments: dict[str, Any] = {}
    if roles.rooted:
        arguments[roles.root_name] = step.root
    if roles.reduces:
        arguments["op"] = step.op
    if step.uneven:
        table = rows(step, size)
        coming = [row[rank] for row in table]
        if roles.uneven is Uneven.PAIRS:
            arguments["in_splits"], arguments["out_splits"] = table[rank], coming
        else:
            arguments["sizes"] = table[rank] if roles.source is Parts.EACH else coming
    return arguments


def _message(
    pg: ProcessGroup,
    step: Step,
    lay: Callable[[Array], Any],
    get: Callable[[Any], Array],
    options: dict[str, Any],
    place: IssuingPlace | None,
) -> tuple[Work[Any] | None, Callable[[Any], None]]:
    """A message from the step's root to its receiver."""
    root, target = step.root, step.receiver(pg.size)
    checks: list[Callable[[], None]] = []
    sending = receiving = None
    if pg.rank == root:
        mine = _given(step, lay(value(step, root)), place)
        sending = pg.send(mine, target, tag=step.salt, **options)
        checks.append(lambda: same_bytes(get(mine), value(step, root), step))
    if pg.rank == target:
        into = lay(np.zeros(step.shape, step.dtype))
        receiving = pg.recv(into, root, tag=step.salt, **options)
        checks.append(lambda: same_bytes(get(into), value(step, root), step))

    def check(result: Any) -> None:
        assert result == (None if receiving is None else root), step.describe()
        assert sending is None or receiving is None or sending.done(), step.describe()
        for one in checks:
            one()

    return receiving or sending, check


def _given(step: Step, laid: Any, place: IssuingPlace | None) -> Any:
    """The argument that is passed for a tensor."""
    if place is not None or not step.frozen:
        return laid
    if not laid.ndim and step.salt % 2:
        return laid[()]  # a scalar
    frozen = laid.view()
    frozen.flags.writeable = False
    return frozen


def _frozen(source: Any) -> bool:
    return isinstance(source, np.generic | np.ndarray) and not source.flags.writeable


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
