"""How many bytes go from which rank to which: what the calls imply, and what the kernel has counted. Pure.

What calls imply needs no counter where data moves, which shared memory has not: of a message its bytes; of a
collective the least that has to go from member to member, whatever algorithm carries it out. An all_reduce
counts as each member's part sent to whom it is reduced by, and back: 2/n of the tensor for each pair. What
the kernel has counted is exact, with all that goes over a connection, and there for TCP only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.base.operations import ROLES, Kind, Parts
from aiodist.observe.recorder.reading import Sum
from aiodist.observe.view import JobView, RankView

LARGEST = 64
"""Rows and columns of what is shown: with more ranks, neighbours are added up."""

Table = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Bytes from rank to rank, since the job began.

    Args:
        ranks: of the rows and columns, in their order.
        implied: by the calls that each rank has issued; [from, to].
        counted: acknowledged by the peer over TCP; [from, to].
    """

    ranks: tuple[int, ...]
    implied: Table
    counted: Table

    def to_json(self, largest: int = LARGEST) -> dict[str, Any]:
        """As plain values: 'labels' of the rows and columns, 'each' (ranks in one of them), 'implied' and
        'counted' as rows."""
        count = len(self.ranks)
        each = max(1, -(-count // largest))
        starts = np.arange(0, count, each)
        labels = [_label(self.ranks[start : start + each]) for start in starts.tolist()]
        tables = {"implied": _added(self.implied, starts), "counted": _added(self.counted, starts)}
        return {"labels": labels, "each": each} | {name: table.tolist() for name, table in tables.items()}


def matrix(job: JobView) -> Matrix:
    """The bytes between all ranks that were seen."""
    ranks = tuple(view.rank for view in job.ranks)
    places = {rank: place for place, rank in enumerate(ranks)}
    implied = np.zeros((len(ranks), len(ranks)))
    counted = np.zeros_like(implied)
    for view in job.ranks:
        for one in view.recording.sums:
            if one.total and one.group is not None:
                _imply(view, one, places, implied)
        for link in view.recording.links:
            if link.rank in places and link.rank != view.rank:
                counted[places[view.rank], places[link.rank]] += link.sent
    np.fill_diagonal(implied, 0.0)
    return Matrix(ranks, implied, counted)


def _imply(view: RankView, one: Sum, places: dict[int, int], implied: Table) -> None:
    """Add what a rank gives by operations of one sort."""
    assert one.group is not None
    members: Sequence[int] = one.group.ranks
    if view.rank not in members or one.op not in Kind.__members__:
        return
    roles, row = ROLES[Kind[one.op]], implied[places[view.rank]]
    nbytes, size = float(one.total), len(members)
    root = members[one.root] if 0 <= one.root < size else -1
    if not roles.gives(view.rank, root):
        return
    if roles.message:
        if root in places:
            row[places[root]] += nbytes
        return
    to = [places[rank] for rank in ([root] if roles.root_gets else members) if rank in places]
    whole = roles.agrees_on_part or (roles.source is Parts.ONE and not roles.reduces) or roles.root_gets
    part = nbytes if whole else nbytes / size
    if roles.reduces and roles.source is Parts.ONE and not roles.root_gets:
        part *= 2  # to whom reduces it, and back
    row[to] += part


def _label(ranks: Sequence[int]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}–{ranks[-1]}"


def _added(table: Table, starts: npt.NDArray[Any]) -> Table:
    if not len(starts):
        return table
    added: Table = np.add.reduceat(np.add.reduceat(table, starts, axis=0), starts, axis=1)
    return added
