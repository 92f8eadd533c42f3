"""Collectives as sends and receives between members: which part goes where. Geometry only; no memory is read.

gather, scatter and all_to_all *are* these moves. An engine without native ones posts them all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from aiodist.backends.base import Array


class Move(NamedTuple):
    """One side of one message of a collective.

    Attributes:
        sends: whether this rank sends; else it receives.
        peer: group rank of the other side; this rank itself where it keeps a part: a send and a receive.
        array: contiguous, one axis. Never empty.
    """

    sends: bool
    peer: int
    array: Array


def gathered(rank: int, size: int, root: int, source: Array, target: Array | None) -> list[Move]:
    """Everybody's source to the root, which has them one after the other."""
    moves = [Move(True, root, source)]
    if rank == root:
        assert target is not None
        moves += [Move(False, peer, part) for peer, part in enumerate(parts(target, size))]
    return worth(moves)


def scattered(rank: int, size: int, root: int, source: Array | None, target: Array) -> list[Move]:
    """The root's parts to everybody."""
    moves = [Move(False, root, target)]
    if rank == root:
        assert source is not None
        moves += [Move(True, peer, part) for peer, part in enumerate(parts(source, size))]
    return worth(moves)


def all_gathered(size: int, source: Array, target: Array) -> list[Move]:
    """Everybody's source to everybody."""
    moves = [Move(True, peer, source) for peer in range(size)]
    moves += [Move(False, peer, part) for peer, part in enumerate(parts(target, size))]
    return worth(moves)


def exchanged(
    size: int, source: Array, target: Array, sent: Sequence[int] | None, sizes: Sequence[int] | None
) -> list[Move]:
    """A part of everybody's to everybody.

    Args:
        sent: elements that go to each member; None: equal parts.
        sizes: elements that come from each.
    """
    moves = [Move(True, peer, part) for peer, part in enumerate(parts(source, size, sent))]
    moves += [Move(False, peer, part) for peer, part in enumerate(parts(target, size, sizes))]
    return worth(moves)


def parts(array: Array, size: int, counts: Sequence[int] | None = None) -> list[Array]:
    """An array of one axis in `size` parts, equal ones unless counts are given."""
    if counts is None:
        counts = [array.size // size] * size
    ends = list(accumulate(counts, initial=0))
    return [array[start:end] for start, end in pairwise(ends)]


def worth(moves: list[Move]) -> list[Move]:
    """Those that move anything: libraries differ in what they make of empty messages."""
    return [move for move in moves if move.array.size]
