"""The saved form of a rank's shares, and shares made from what any number of ranks saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from aiodist.backends.arrays import view
from aiodist.base.errors import CheckpointError
from aiodist.ddp.checkpoint.parts import Parts
from aiodist.ddp.checkpoint.tree import Alike, Some
from aiodist.ddp.sharded.entries import ALIKE, ELEMENTS, SCALAR, WHOLE
from aiodist.ddp.sharded.model import Model
from aiodist.ddp.sharded.shares import Shares

VALUES = "values"


def kept(model: Model, shares: Shares) -> Some:
    """Values and state of this rank's own shard, by array: views."""
    arrays = Some()
    for one, (_, entries) in zip(shares.pieces[: shares.own], shares.entries(), strict=False):
        count = model.counts[one.index]
        state: dict[str, Any] = Alike({ELEMENTS: {}, WHOLE: {}, SCALAR: {}}, ALIKE)
        state[VALUES] = Parts(one.values.dtype, (count,), [(one.start, one.values.reshape(-1))])
        for name, kind, *rest in entries:
            if kind == SCALAR:
                state[kind][name] = rest
                continue
            array = view(one.state[name], writable=False)
            shape, start = ((count,), one.start) if kind == ELEMENTS else (array.shape, 0)
            state[kind][name] = Parts(array.dtype, shape, [(start, array.reshape(-1))])
        arrays[str(one.index)] = state
    return arrays


def shapes_of(model: Model) -> list[list[Any]]:
    """The trained arrays, as a checkpoint tells them."""
    return [[dtype.name, *shape] for dtype, shape in model.forms]


def check(model: Model, name: str, groups: int, saved: Mapping[str, Any]) -> None:
    """Refuse what was kept of another model, or by another optimiser.

    Args:
        model, name: the model, and the name of the optimiser.
        groups: of parameters with options of their own, that the optimiser has here.
        saved: what was kept.

    Raises:
        CheckpointError: it was.
    """
    if saved["optimizer"] != name:
        raise CheckpointError(
            f"the checkpoint is of {saved['optimizer']}, and the optimizer here is {name}",
            hint="Construct it with the optimizer that was saved",
        )
    if len(saved["options"]) not in (0, groups):
        raise CheckpointError(
            f"the checkpoint has {len(saved['options'])} groups of parameters, and here are {groups}",
            hint="Construct the optimizer with the groups that were saved",
        )
    theirs, ours = saved["shapes"], shapes_of(model)
    for index, (their, our) in enumerate(zip(theirs, ours, strict=False)):
        if their != our:
            raise CheckpointError(
                f"trained array {index} is {their[0]}{their[1:]} in the checkpoint, here {our[0]}{our[1:]}",
                hint="It is of another model",
            )
    if len(theirs) != len(ours):
        raise CheckpointError(
            f"the checkpoint has {len(theirs)} trained arrays, and here are {len(ours)}",
            hint="It is of another model",
        )


def restored(model: Model, rank: int, arrays: Mapping[str, Any], example: Any) -> Shares:
    """A rank's shares, of what was kept.

    They lie in ordinary memory, so this may be done in a thread.

    Args:
        example: of whose family the state's arrays are.

    Raises:
        CheckpointError: it was kept of whole arrays, and cannot be divided; or files are damaged.
    """
    shares = model.shares(rank, np.empty)
    for one in shares.pieces:
        saved = arrays[str(one.index)]
        if saved[WHOLE] and not model.whole:
            raise CheckpointError("the checkpoint is of whole arrays", hint="Pass whole=True")
        one.values.reshape(-1)[...] = saved[VALUES].read(one.start, one.stop)
        for name, rest in saved[SCALAR].items():
            shares.entry(one, [name, SCALAR, *rest], example)
        for kind in (ELEMENTS, WHOLE):
            for name, stored in saved[kind].items():
                state = shares.entry(one, [name, kind, stored.dtype.name, list(stored.shape), None], example)
                assert state is not None
                first, last = (one.start, one.stop) if kind == ELEMENTS else (0, state.size)
                state[...] = stored.read(first, last)
    return shares
