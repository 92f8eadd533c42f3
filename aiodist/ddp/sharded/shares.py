"""The shards that a rank holds: memory for their values, gradients and the optimiser's state, by pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.backends.arrays import view, wrap
from aiodist.base.types import dtype_named
from aiodist.ddp.sharded.entries import ELEMENTS, SCALAR, Entry, described, length_of, scalar_of
from aiodist.ddp.sharded.partition import Partition, ShardMove
from aiodist.ddp.sharded.updates import HeldState

Array = npt.NDArray[Any]
Allocate = Callable[[int, np.dtype[Any]], Array]


class Shares:
    """Some shards' memory on this rank, the first of which is its own.

    Args:
        partition: whose shards.
        shards: their numbers.
        arrays: dtype and shape of each array.
        dtypes: of each bucket.
        whole: pieces have their arrays' shapes.
        allocate: makes memory for a number of elements: where peers can read it, say.

    Attributes:
        values: for each shard, then each bucket: its run, with padding.
        gradients: likewise.
        pieces: of all shards.
        own: how many of these are of the first shard; they come first.
    """

    def __init__(
        self,
        partition: Partition,
        shards: Sequence[int],
        arrays: Sequence[tuple[np.dtype[Any], tuple[int, ...]]],
        dtypes: Sequence[np.dtype[Any]],
        whole: bool,
        allocate: Allocate,
    ) -> None:
        self.size, self.shards = partition.size, list(shards)
        self._whole = whole
        self.values: list[list[Array]] = []
        self.gradients: list[list[Array]] = []
        self.pieces: list[HeldState] = []
        self.own = 0
        for shard in shards:
            lengths = [lengths[shard] for lengths in partition.lengths]
            for runs in (self.values, self.gradients):
                runs.append([allocate(n, dtype) for n, dtype in zip(lengths, dtypes, strict=True)])
                for run in runs[-1]:
                    run[...] = 0  # padding, too, is defined
            for one in partition.pieces(shard):
                here = slice(one.at, one.at + one.stop - one.start)
                shape = (arrays[one.index][1] or (1,)) if whole else (one.stop - one.start,)
                values, gradient = (
                    runs[-1][one.bucket][here].reshape(shape) for runs in (self.values, self.gradients)
                )
                self.pieces.append(HeldState(one.index, one.start, one.stop, values, gradient))
            self.own = self.own or len(self.pieces)
        self._of: dict[int, list[HeldState]] = {}
        for held in self.pieces:
            self._of.setdefault(held.index, []).append(held)

    def entries(self) -> list[tuple[int, list[Entry]]]:
        """Of each piece the index of its array, and the description of the optimiser's state."""
        return [(one.index, described(one.state, one.values.shape, self._whole)) for one in self.pieces]

    def packed(self, move: ShardMove, entries: Sequence[Entry]) -> list[Array]:
        """The bytes of a move: values, then the state's entries in order."""
        one = self._holder(move)
        here = slice(move.start - one.start, move.stop - one.start)
        parts = [_bytes_of(one.values.reshape(-1)[here])]
        for entry in entries:
            if entry[1] != SCALAR:
                flat = np.ascontiguousarray(view(one.state[entry[0]], writable=False)).reshape(-1)
                parts.append(_bytes_of(flat[here] if entry[1] == ELEMENTS else flat))
        return parts

    def take(self, move: ShardMove, entries: Sequence[Entry], stream: Array, example: Any) -> Array:
        """Write the elements of a move that begins a stream of bytes; the rest of the stream is returned.

        Args:
            example: of whose family the state's tensors are.
        """
        one = self._holder(move)
        here = slice(move.start - one.start, move.stop - one.start)
        rest = _taken(one.values.reshape(-1)[here], stream)
        for entry in entries:
            state = self.entry(one, entry, example)
            if state is not None:
                rest = _taken(state[here] if entry[1] == ELEMENTS else state, rest)
        return rest

    def take_over(self, other: Shares) -> None:
        """Take values and state of the same shards in other memory."""
        for one, theirs in zip(self.pieces, other.pieces, strict=True):
            one.values[...] = theirs.values
            one.state = theirs.state

    def _holder(self, move: ShardMove) -> HeldState:
        """The piece that has a move's elements."""
        return next(one for one in self._of[move.index] if one.start <= move.start and move.stop <= one.stop)

    def entry(self, one: HeldState, entry: Entry, example: Any) -> Array | None:
        """A piece's state of a name, flat, made where it is not there; None for a scalar, which is set."""
        name, kind, dtype = entry[:3]
        if kind == SCALAR:
            one.state[name] = scalar_of(entry, example)
            return None
        if name not in one.state:
            shape = one.values.shape if kind == ELEMENTS else tuple(entry[3])
            one.state[name] = wrap(example, np.zeros(shape, dtype_named(dtype)))
        return view(one.state[name], writable=True).reshape(-1)


def nbytes_of(move: ShardMove, dtype: np.dtype[Any], entries: Sequence[Entry]) -> int:
    """Bytes that a move carries."""
    count = move.stop - move.start
    return count * dtype.itemsize + sum(
        length_of(entry, count) * dtype_named(entry[2]).itemsize for entry in entries if entry[1] != SCALAR
    )


def _bytes_of(flat: Array) -> Array:
    return np.ascontiguousarray(flat).view(np.uint8)


def _taken(target: Array, stream: Array) -> Array:
    """Fill a flat array from a stream of bytes; the rest of it."""
    if target.size:
        target.view(np.uint8)[...] = stream[: target.nbytes]
    return stream[target.nbytes :]
