"""The floor of every operation between ranks of one host: its copies and sums by NumPy, never synchronised.

What is done is in `moves`. All ranks do it at once, on memory that all of them map: their arrays, or, where
these are private, what is staged. The values mean nothing, as nobody waits for anybody.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from benchmarks.harness.cases import Array, Case
from benchmarks.ranks.base import Peer
from benchmarks.ranks.moves import KNOWN, Place, phases, staging

_PAGE = 4096
_APART = 1024
"""Bytes by which staging begins later than a page. Large arrays of NumPy begin 16 bytes after one, and a copy
to a place a little further into its page than its source takes about six times as long on AMD's Zen 3, where
the C library copies by `rep movsb`. A floor shall not have that."""


class PassesPeer(Peer):
    """See `Peer`."""

    arrays: dict[tuple[str, int], Array]
    moves: list[tuple[Array, Array, Array | None]]

    async def prepare(self, case: dict[str, Any]) -> dict[str, Any]:
        wanted = Case(**case)
        if wanted.what not in KNOWN or wanted.dtype != "float32":
            return {"absent": f"there is no floor of {wanted.what} of {wanted.dtype}"}
        length, out_length = wanted.lengths(self.size)
        shared = {"tensor": length, "out": out_length} if wanted.shared else {}
        self.places: dict[str, tuple[int, int]] = {}  # of what all map: offset in bytes, elements
        nbytes = 0
        for name, count in {**shared, "staging": staging(wanted, self.size)}.items():
            self.places[name] = nbytes + _APART * (name == "staging"), count
            nbytes += -(-4 * count // _PAGE) * _PAGE + _PAGE
        self.wanted, self.nbytes = wanted, nbytes
        self.descriptor = os.memfd_create("passes")
        os.ftruncate(self.descriptor, nbytes)
        return {"share": f"/proc/{os.getpid()}/fd/{self.descriptor}"}

    async def attach(self, shares: list[str]) -> None:
        """Map the memory of all ranks, which they have told after `prepare`."""
        self.arrays = {}
        for rank, path in enumerate(shares):
            with open(path, "r+b") as file:  # noqa: ASYNC230 - nobody else is on a loop here
                mapped = mmap.mmap(file.fileno(), self.nbytes)
            for name, (offset, count) in self.places.items():
                self.arrays[name, rank] = np.frombuffer(mapped, np.float32, count, offset)
        lengths = self.wanted.lengths(self.size, self.rank)
        for name, count in zip(("tensor", "out"), lengths, strict=True):
            self.arrays.setdefault((name, self.rank), np.empty(count, np.float32))
        for (_, rank), array in self.arrays.items():
            if rank == self.rank:
                array[:] = 0
        self.moves = [
            (self._array(into), self._array(one), None if other is None else self._array(other))
            for phase in phases(self.wanted, self.size, self.rank)
            for into, one, other in phase
        ]
        self.once = self._pass

    async def drop(self) -> None:
        self.arrays, self.moves = {}, []
        self.once = None
        os.close(self.descriptor)  # not before all have mapped it

    def _array(self, place: Place) -> Array:
        return self.arrays[place.array, place.rank][place.begin : place.end]

    def _pass(self) -> None:
        add = np.add
        for into, one, other in self.moves:
            if other is None:
                into[...] = one
            else:
                add(one, other, into)
