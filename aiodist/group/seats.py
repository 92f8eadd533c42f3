"""The nodes of a job, and where its ranks sit on them. Pure.

Ranks that share a host are of one node. What a launcher says of nodes and local ranks counts where all ranks
that it concerns say it, and it does not contradict the hosts: two agents of one host may well be two nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

UNSAID = -1
"""The number of a node, or of a local rank, that no launcher has said."""


class Said(NamedTuple):
    """One rank's knowledge of its place, as it brings it to the others.

    Attributes:
        host: a name that the ranks of its host share, and no others.
        node: number of its node, by its launcher; `UNSAID`: it does not say.
        local: rank on the node, likewise.
    """

    host: str
    node: int = UNSAID
    local: int = UNSAID


class Seat(NamedTuple):
    """A rank's place, in numbers that only their order counts of: of its node, and on it."""

    node: int
    local: int


class RankSeat(NamedTuple):
    """One member's place in a group: ranks from 0, and of how many."""

    local_rank: int
    local_size: int
    node_rank: int
    node_count: int


def seats_of(said: Sequence[Said]) -> tuple[Seat, ...]:
    """The seats of all ranks, by rank."""
    nodes = _nodes(said)
    members: dict[int, list[Said]] = {}
    for node, one in zip(nodes, said, strict=True):
        members.setdefault(node, []).append(one)
    complete = {
        node
        for node, those in members.items()
        if len({one.local for one in those} - {UNSAID}) == len(those)  # all, and each another
    }
    return tuple(
        Seat(node, one.local if node in complete else rank)
        for rank, (node, one) in enumerate(zip(nodes, said, strict=True))
    )


def place_in(seats: Sequence[Seat], member: int) -> RankSeat:
    """The place of one of these, among these: of the members of a group, in group order."""
    mine = seats[member]
    nodes = sorted({seat.node for seat in seats})
    local = sorted((seat.local, other) for other, seat in enumerate(seats) if seat.node == mine.node)
    return RankSeat(local.index((mine.local, member)), len(local), nodes.index(mine.node), len(nodes))


def _nodes(said: Sequence[Said]) -> list[int]:
    """The node of each rank: as all say, if none of these nodes has two hosts; else the first rank there."""
    hosts: dict[int, str] = {}
    if all(one.node != UNSAID and hosts.setdefault(one.node, one.host) == one.host for one in said):
        return [one.node for one in said]
    first: dict[str, int] = {}
    return [first.setdefault(one.host, rank) for rank, one in enumerate(said)]
