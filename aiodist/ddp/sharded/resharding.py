"""Resharding: ranks find out who has which shards, and bring them to where they belong now."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.base.errors import UsageError
from aiodist.ddp.holders import misfit
from aiodist.ddp.sharded.entries import alike
from aiodist.ddp.sharded.model import Model, flat
from aiodist.ddp.sharded.options import differing
from aiodist.ddp.sharded.partition import Interval, Partition, moves
from aiodist.ddp.sharded.shares import Shares, nbytes_of
from aiodist.group import ProcessGroup

Array = npt.NDArray[Any]
Row = Mapping[str, Any]
"""One member's state: known, came, lost, orphan, plan, steps, history, loaded, size, shards, entries,
options."""


def counted(rows: Sequence[Row]) -> list[Row]:
    """The rows, without what newcomers loaded before they met members with a state: that is the job's."""
    if not any(row["known"] and not row["came"] for row in rows):
        return list(rows)
    nothing = {"known": False, "size": 1, "shards": [0], "entries": []}
    return [{**row, **nothing} if row["came"] else row for row in rows]


def check(rows: Sequence[Row], pg: ProcessGroup, compared: Collection[str]) -> bool:
    """Whether all members have this rank's plan.

    Args:
        compared: names of the options that members with a state must have alike.

    Raises:
        UsageError: this rank has another plan than the members that have a state; or these are at other
            steps, or have other options, or only some of them have loaded theirs.
    """
    ranks = pg.ranks
    known = [row for row in rows if row["known"]]
    plans = [row["plan"] for row in rows]
    other = misfit(plans, [row["known"] for row in rows], pg.rank)
    if other is not None:
        raise UsageError(
            f"rank {ranks[other]} has other arrays, or another plan, than rank {ranks[pg.rank]}",
            hint="Construct ShardedOptimizer with the same shapes and arguments on all ranks",
        )
    for member, row in enumerate(rows):
        if row["known"] and row["steps"] != known[0]["steps"]:
            raise UsageError(
                f"rank {ranks[member]} is at step {row['steps']}, another one at {known[0]['steps']}: they "
                "have loaded different checkpoints",
                hint="Load the same one on all ranks",
            )
    loaded = {row["loaded"]: ranks[member] for member, row in enumerate(rows) if row["known"]}
    if len(loaded) > 1:
        raise UsageError(
            f"rank {loaded[True]} has loaded a state, and rank {loaded[False]} has not: their shares are of "
            "two models",
            hint="Load the same checkpoint on all ranks, also where a load was interrupted by a death",
        )
    held = {ranks[member]: row["options"] for member, row in enumerate(rows) if row["known"]}
    if (error := differing(held, compared)) is not None:
        raise error
    return all(plan == plans[pg.rank] for plan in plans)


def in_place(rows: Sequence[Row], model: Model) -> bool:
    """Whether each member holds already what it shall hold."""
    size = len(rows)
    return all(
        row["known"] and row["size"] == size and row["shards"] == model.held_by(member, size)
        for member, row in enumerate(rows)
    )


async def resharded(
    pg: ProcessGroup, model: Model, rows: Sequence[Row], source: int, own: Shares, example: Any
) -> tuple[Shares, list[Interval]]:
    """This rank's shares in a group, of what its members have.

    Args:
        source: the member whose arrays count where nobody has a state.
        own: what this rank has.
        example: of whose family the state's arrays are.

    Returns:
        new shares; and what nobody has, where something lacks: then nothing was sent.

    Raises:
        UsageError: on all members, before anything is sent: pieces of an array have other entries.
    """
    known = any(row["known"] for row in rows)
    held = [
        Partition(model.buckets, row["size"], model.whole).intervals(row["shards"])
        if row["known"] or (not known and member == source)
        else []
        for member, row in enumerate(rows)
    ]
    wanted = [model.partition.intervals(model.held_by(member, pg.size)) for member in range(pg.size)]
    found, missing = moves(wanted, held)
    if missing:
        return own, sorted(set(missing))
    entries = alike(piece for row in rows if row["known"] for piece in row["entries"])
    me, views = pg.rank, model.views()
    gives, takes = [0] * pg.size, [0] * pg.size
    outgoing: list[list[Array]] = [[] for _ in range(pg.size)]
    for move in found:
        listed = entries.get(move.index, [])
        nbytes = nbytes_of(move, model.forms[move.index][0], listed)
        if move.source == me:
            gives[move.target] += nbytes
            outgoing[move.target] += (
                own.packed(move, listed)
                if known
                else [flat(views[move.index])[move.start : move.stop].view(np.uint8)]
            )
        if move.target == me:
            takes[move.source] += nbytes
    sent = np.concatenate([np.empty(0, np.uint8), *(part for parts in outgoing for part in parts)])
    came = np.empty(sum(takes), np.uint8)
    await pg.all_to_all(sent, came, gives, takes)
    starts = np.cumsum([0, *takes])
    streams = [came[starts[member] : starts[member + 1]] for member in range(pg.size)]
    shares = model.shares(me, pg.empty)
    for move in found:
        if move.target == me:
            listed = entries.get(move.index, [])
            streams[move.source] = shares.take(move, listed, streams[move.source], example)
    return shares, []
