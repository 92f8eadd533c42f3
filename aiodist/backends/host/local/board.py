"""A group's slots: one region in each member's home, of the same layout.

    region   SLOTS words: in word i the number + 1 of the last operation in slot i that this rank has finished
             SLOTS slots of STRIDE bytes: words, signature, and room for a small payload

An operation's slot is its number modulo SLOTS. A rank writes a slot again when every member has finished what
it held. Readers find a region by the directory in its owner's home.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.backends.host.local.hub import ASLEEP_BULK
from aiodist.types import SIGNATURE_BYTES

if TYPE_CHECKING:
    from aiodist.backends.host.local.hub import Hub, Near

SLOTS = 64
"""Operations of a group that can be under way at a time."""

PAYLOAD = 8 * 1024
"""Bytes of payload that a slot has room for."""

HEADER = 128
STRIDE = HEADER + PAYLOAD + 64  # not a multiple of a page, which would put all slots into the same cache sets
REGION = SLOTS * 8 + SLOTS * STRIDE

# Words of a slot, and what they say of the operation in it.
CODE, FILL, TOOK, OUT, TOOK_OUT, SOURCE, RESULT = range(7)
"""CODE: which operation, written last when it is published. FILL: blocks of the source that peers may read.
TOOK: blocks that this rank has taken from its peers' sources. OUT, TOOK_OUT: the same of results.
SOURCE, RESULT: where they lie in the home; odd where all of it lies there, even where blocks go around."""

ZEROS = memoryview(bytearray(8 * (RESULT - FILL + 1))).cast("Q")

_SIGNATURE = 64
_STRIDE8, _FIRST8 = STRIDE // 8, SLOTS
MASK = SLOTS - 1
LOW = 0xFFFF


class Peer:
    """Another member's region, as seen from here.

    Attributes:
        member: its group rank.
        near: its home.
        words: its home as 64-bit words.
        base: word of its region; 0 until it has made the group.
    """

    __slots__ = ("base", "member", "near", "words")

    def __init__(self, member: int, near: Near) -> None:
        self.member = member
        self.near = near
        self.words = near.words
        self.base = 0


class Board:
    """One rank's part of a group's memory.

    Args:
        hub: the process's home.
        context: names the group.
        ranks: global ranks of the members, in group order, all near.
        rank: this process's group rank.
    """

    def __init__(self, hub: Hub, context: int, ranks: Sequence[int], rank: int) -> None:
        self.hub = hub
        self.context = context
        self.rank = rank
        self.size = len(ranks)
        self.words = hub.words
        self.bytes = hub.bytes
        self.at = hub.take(REGION, 4096)
        self.base = self.at // 8
        self.bytes[self.at : self.at + SLOTS * 8] = 0
        for slot in range(SLOTS):
            start = self.at + (_FIRST8 + slot * _STRIDE8) * 8
            self.bytes[start : start + HEADER] = 0
        self.peers = [
            Peer(member, hub.near[global_rank]) for member, global_rank in enumerate(ranks) if member != rank
        ]
        self.by_member = {peer.member: peer for peer in self.peers}
        self.signed: list[object] = [None] * SLOTS  # the quick plan whose signature a slot still holds
        self.nears = [peer.near for peer in self.peers]
        self._spans: dict[int, deque[tuple[int, int]]] = {}  # by size: (offset, number of the last user)
        try:
            hub.announce(context, self.at)
        except MemoryError:
            hub.free(self.at)
            raise

    # ── finding things ───────────────────────────────────────────────────────────────────────────────

    def head(self, seq: int) -> int:
        """The first word of an operation's slot, counted from the start of a region."""
        return _FIRST8 + (seq & MASK) * _STRIDE8

    def found(self, peer: Peer) -> bool:
        """Whether a peer has made the group."""
        if not peer.base:
            peer.base = peer.near.find(self.context) // 8
        return peer.base != 0

    def signature_of(self, peer: Peer, seq: int) -> bytes:
        """What a peer says that it does in an operation's slot."""
        start = (peer.base + self.head(seq)) * 8 + _SIGNATURE
        signature = bytes(peer.near.view[start : start + SIGNATURE_BYTES])
        return (
            signature[:16] + seq.to_bytes(8, sys.byteorder) + signature[24:]
        )  # a quick one's is not renewed

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────

    def sign(self, seq: int, signature: bytes) -> None:
        """Write an operation's signature; `publish` comes after it."""
        self.signed[seq & MASK] = None
        self.write_signature(seq, signature)

    def write_signature(self, seq: int, signature: bytes) -> None:
        """Write it, where `signed` is seen to."""
        start = (self.base + self.head(seq)) * 8 + _SIGNATURE
        self.hub.view[start : start + SIGNATURE_BYTES] = signature

    def payload_at(self, seq: int) -> int:
        """Where a slot's own payload lies in the home."""
        return (self.base + self.head(seq)) * 8 + HEADER

    def finished(self, seq: int) -> None:
        """This rank reads nothing of an operation any more."""
        self.words[self.base + (seq & MASK)] = seq + 1

    def finished_here(self, seq: int) -> bool:
        """Whether this rank reads nothing of an operation any more; of none below 0."""
        return seq < 0 or self.words[self.base + (seq & MASK)] > seq

    def all_finished(self, seq: int) -> bool:
        """Whether no member, this one included, touches anything of an operation any more."""
        slot = seq & MASK
        return self.words[self.base + slot] > seq and all(
            peer.base and peer.words[peer.base + slot] > seq for peer in self.peers
        )

    def free(self, seq: int) -> bool:
        """Whether an operation's slot may be written."""
        return seq < SLOTS or self.all_finished(seq - SLOTS)

    # ── waking who waits for a word ──────────────────────────────────────────────────────────────────

    def ring_loops(self) -> None:
        """A word was written, on the loop, that peers' loops may wait for."""
        self.hub.ring(self.nears)

    def ring_all(self) -> None:
        """A word was written, on the loop, that loops and threads may wait for."""
        self.hub.ring(self.nears)
        for near in self.nears:
            if near.words[ASLEEP_BULK]:
                near.neighbour.ring_bulk()

    def ring_bulks(self) -> None:
        """A word was written, in the bulk thread, that peers' threads may wait for."""
        self.hub.fence_bulk()
        for near in self.nears:
            if near.words[ASLEEP_BULK]:
                near.neighbour.ring_bulk()

    # ── memory for what does not fit a slot ──────────────────────────────────────────────────────────

    def span(self, nbytes: int, seq: int) -> int:
        """Memory for an operation's blocks: the longest unused of its size if nobody reads it any more. It
        returns by itself."""
        size = 1 << max(13, (nbytes - 1).bit_length())
        spans = self._spans.setdefault(size, deque())
        if spans and self.all_finished(spans[0][1]):
            at, _ = spans.popleft()
        else:
            at = self.hub.take(size, 4096)
        spans.append((at, seq))
        return at

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────

    def abandoned(self, issued: int) -> bool:
        """Whether nobody will read this region any more, after this rank issued so many operations."""
        last = range(max(0, issued - SLOTS), issued)
        for peer in self.peers:
            if not last or peer.near.left(self.context):
                continue
            if not self.found(peer):
                return False  # it has yet to make the group
            if not all(peer.words[peer.base + (seq & MASK)] > seq for seq in last):
                return False
        return True

    def release(self) -> None:
        """Give all memory back."""
        self.hub.free(self.at)
        for spans in self._spans.values():
            for at, _ in spans:
                self.hub.free(at)
        self.close()

    def close(self) -> None:
        """Let go of the memory."""
        self._spans.clear()
        self.words, self.bytes = memoryview(b""), np.empty(0, np.uint8)
        self.peers, self.nears = [], []
        self.by_member.clear()


def code(digest: int, seq: int) -> int:
    """The word that publishes an operation: 48 bits of what it is, 16 of its number."""
    return digest << 16 | (seq + 1) & LOW


def view(near_bytes: Array, at: int, count: int, dtype: np.dtype[Any]) -> Array:
    """An array on somebody's home."""
    return near_bytes[at : at + count * dtype.itemsize].view(dtype)
