"""A group's slots: one region in each member's segment, of the same layout.

    region   SLOTS words: in word i the number + 1 of the last operation in slot i that this rank has finished
             SLOTS slots of STRIDE bytes: words, signature, and room for a small payload

An operation's slot is its number modulo SLOTS. A rank writes a slot again when every member has finished what
it held. Readers find a region by the directory in its owner's segment.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.backends.host.local.hub import ASLEEP_BULK, ASLEEP_LOOP, Hub, PeerMemory
from aiodist.base.errors import GroupBroken
from aiodist.base.types import SIGNATURE_BYTES

SLOTS = 64
"""Operations of a group that can be under way at a time."""

PAYLOAD = 8 * 1024
"""Bytes of payload that a slot has room for."""

HEADER = 128
STRIDE = HEADER + PAYLOAD + 64  # not a multiple of a page, which would put all slots into the same cache sets
REGION = SLOTS * 8 + SLOTS * STRIDE

# Words of a slot, and what they say of the operation in it.
CODE, FILL, TOOK, OUT, TOOK_OUT, SOURCE, RESULT = range(7)
"""CODE: which operation, written last when it is published; 0 again when it is withdrawn.
FILL: blocks of the source that peers may read.
TOOK: blocks that this rank has taken from its peers' sources. OUT, TOOK_OUT: the same of results.
SOURCE, RESULT: where they lie in the segment, as `place_word` says it; 0 where there is nothing."""

ZEROS = memoryview(bytearray(8 * (RESULT - FILL + 1))).cast("Q")

_SIGNATURE = 64
_STRIDE8, _FIRST8 = STRIDE // 8, SLOTS
MASK = SLOTS - 1

NUMBER_BITS = 16
"""Low bits of an operation's number in the word that publishes it, 7 to 16. A slot holds the last number that
it was used for, or nothing, so they need not tell more than two uses of a slot apart. Read when a group is
made: tests lower it on all ranks, and find after fewer numbers where that does not hold."""


class Peer:
    """Another member's region, as seen from here.

    Attributes:
        member: its group rank.
        memory: its segment.
        words: its segment as 64-bit words.
        base: word of its region; 0 until it has made the group.
        entry: the group's, in the directory of its segment; -1 until it was found.
    """

    __slots__ = ("base", "entry", "member", "memory", "words")

    def __init__(self, member: int, memory: PeerMemory) -> None:
        self.member = member
        self.memory = memory
        self.words = memory.words
        self.base = 0
        self.entry = -1


Ends = tuple[tuple[memoryview, int], ...]
"""Segments as 64-bit words, and the word of the group's region in each."""


class Board:
    """One rank's part of a group's memory.

    Args:
        hub: the process's segment.
        context: names the group.
        ranks: global ranks of the members, in group order, all on this host.
        rank: this process's group rank.
        spare: bytes of staging that the group keeps for itself, if there is room.

    Attributes:
        signed: the signature that each slot still holds; compared by identity.
        ends: the regions of all peers, once all have made the group (`complete`); until then None.
        unseen: by slot, number and code of what has ended here without a look at what all peers published:
            who only gives, or takes from one, need not wait for the others. They are compared later (law 4).
    """

    def __init__(self, hub: Hub, context: int, ranks: Sequence[int], rank: int, spare: int = 0) -> None:
        self.hub = hub
        self.context = context
        self.rank = rank
        self.size = len(ranks)
        self.low = (1 << NUMBER_BITS) - 1
        self.words = hub.words
        self.bytes = hub.bytes
        self.at = hub.take(REGION)
        self.base = self.at // 8
        self.bytes[self.at : self.at + SLOTS * 8] = 0
        for slot in range(SLOTS):
            start = self.at + (_FIRST8 + slot * _STRIDE8) * 8
            self.bytes[start : start + HEADER] = 0
        self.peers = [
            Peer(member, hub.memories[global_rank])
            for member, global_rank in enumerate(ranks)
            if member != rank
        ]
        self.by_member = {peer.member: peer for peer in self.peers}
        self.ends: Ends | None = None
        self._heads = [_FIRST8 + slot * _STRIDE8 for slot in range(SLOTS)]
        self.signed: list[bytes | None] = [None] * SLOTS
        self.unseen: dict[int, tuple[int, int]] = {}
        self.memories = [peer.memory for peer in self.peers]
        self._members_here = list(self.peers)  # those not seen to leave
        self._spans: dict[int, deque[tuple[int, int]]] = {}  # by size: (offset, number of the last user)
        hub.boards.add(self)
        try:
            hub.announce(context, self.at)
        except MemoryError:
            hub.free(self.at)
            hub.boards.discard(self)
            raise
        self._spare_bytes = span_bytes(spare)
        self._spare = hub.spare(self._spare_bytes) if spare else 0
        self._spare_user = -1  # the number of the last operation that had it

    # ── finding things ───────────────────────────────────────────────────────────────────────────────

    def head(self, seq: int) -> int:
        """The first word of an operation's slot, counted from the start of a region."""
        return self._heads[seq & MASK]

    def complete(self) -> Ends | None:
        """The regions of all peers, if all have made the group by now."""
        if self.ends is None and all(self.found(peer) for peer in self.peers):
            self.ends = tuple((peer.words, peer.base) for peer in self.peers)
        return self.ends

    def found(self, peer: Peer) -> bool:
        """Whether a peer has made the group; not where it says that its region is beyond its segment."""
        if not peer.base and self._known(peer):
            at = peer.memory.offset(self.context, peer.entry)
            peer.base = at // 8 if at + REGION <= peer.memory.bytes.size else 0
        return peer.base != 0

    def _known(self, peer: Peer) -> bool:
        """Whether a peer's directory has told of the group."""
        if peer.entry < 0:
            peer.entry = peer.memory.find(self.context)
        return peer.entry >= 0

    def signature_of(self, peer: Peer, seq: int) -> bytes:
        """The signature that a peer has published in an operation's slot."""
        start = (peer.base + self.head(seq)) * 8 + _SIGNATURE
        signature = bytes(peer.memory.view[start : start + SIGNATURE_BYTES])
        return signature[:16] + seq.to_bytes(8, sys.byteorder) + signature[24:]  # one that is there is kept

    def look_back(self, slots: Iterable[int]) -> tuple[int, Peer] | None:
        """Look at what peers have published in slots that are `unseen` → a number and a peer that published
        something else under it. What all have published alike is seen now.

        A peer that has written there again meanwhile has looked at this rank's word before it did so. Of two
        that differ at least one finds it: each looks before it writes.
        """
        for slot in slots:
            seq, code = self.unseen[slot]
            at, seen = self._heads[slot] + CODE, True
            for peer in self.peers:
                theirs = peer.words[peer.base + at] if self.found(peer) else 0
                if theirs != code:
                    if theirs and not (theirs ^ code) & self.low:
                        return seq, peer
                    seen = seen and self.found(peer) and peer.words[peer.base + slot] > seq
            if seen:
                del self.unseen[slot]
        return None

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────

    def sign(self, seq: int, signature: bytes) -> None:
        """Write an operation's signature, where the slot does not still have it (`signed`)."""
        self.signed[seq & MASK] = signature
        start = (self.base + self.head(seq)) * 8 + _SIGNATURE
        self.hub.view[start : start + SIGNATURE_BYTES] = signature

    def payload_at(self, seq: int) -> int:
        """The place of a slot's own payload in the segment."""
        return (self.base + self.head(seq)) * 8 + HEADER

    def finished(self, seq: int) -> None:
        """Note that this rank reads nothing of an operation any more."""
        self.words[self.base + (seq & MASK)] = seq + 1

    def pass_over(self, seq: int) -> None:
        """Pass over a number without an operation, whose slot is free: nothing in it may look like one,
        however many numbers come before the next use of the slot."""
        self.words[self.base + self.head(seq) + CODE] = 0
        self.finished(seq)

    def all_finished(self, seq: int) -> bool:
        """Whether no member, this one included, touches anything of an operation any more."""
        slot = seq & MASK
        ends = self.ends or self.complete()
        if ends is None or self.words[self.base + slot] <= seq:
            return False
        for words, base in ends:  # noqa: SIM110 (a generator takes longer)
            if words[base + slot] <= seq:
                return False
        return True

    def begun(self, seq: int) -> set[int]:
        """Other members that have begun an operation: it stands in their slot, or is finished there."""
        slot, at = seq & MASK, self.head(seq) + CODE
        found = set()
        for peer in self.peers:
            if self.found(peer):
                word = peer.words[peer.base + at]
                stands = word != 0 and (word ^ (seq + 1)) & self.low == 0
                if stands or peer.words[peer.base + slot] > seq:
                    found.add(peer.member)
        return found

    def free(self, seq: int) -> bool:
        """Whether an operation's slot may be written."""
        return seq < SLOTS or self.all_finished(seq - SLOTS)

    def withdraw(self, heads: Iterable[int]) -> None:
        """Withdraw the operations in these slots, published and not finished here: they end without a result.

        When this returns, every peer that looks at CODE finds 0, and only afterwards can it find in memory
        what is written there later: peers look again when they have read (`Exchange.confirmed`).
        """
        if not self.hub.words:
            return  # closed: nobody of this process can write there through it any more
        for head in heads:
            self.words[self.base + head + CODE] = 0
        # Rings, too: a peer that looks and sleeps again costs nothing. Most of all it is a fence. Stores are
        # seen in order, but for those that NumPy and the C library write past the cache, which may overtake.
        self.ring_all()

    # ── waking peers that wait ────────────────────────────────────────────────────────────────────────

    def ring_loops(self) -> None:
        """Wake peers' loops that may wait for a word that was written, on the loop.

        No fence stands between the store and these loads, so a peer that falls asleep meanwhile may be missed
        here. It is woken when this turn ends: `Hub` rings once more then, with a fence.
        """
        self.hub.wrote = True
        for memory in self.memories:
            if memory.words[ASLEEP_LOOP]:
                memory.wake_loop()

    def ring_all(self) -> None:
        """Wake peers' loops and threads that may wait for a word that was written, on the loop."""
        self.hub.ring(self.memories)
        for memory in self.memories:
            if memory.words[ASLEEP_BULK]:
                memory.wake_bulk()

    def ring_bulks(self) -> None:
        """Wake peers' threads that may wait for a word that was written, in the bulk thread."""
        self.hub.fence_bulk()
        for memory in self.memories:
            if memory.words[ASLEEP_BULK]:
                memory.wake_bulk()

    # ── memory for what does not fit a slot ──────────────────────────────────────────────────────────

    def span(self, nbytes: int, seq: int) -> int:
        """Memory for an operation's blocks: the longest unused of its size if nobody reads it any more. It
        comes back by itself. 0 where there is no room now: see `spare`."""
        size = span_bytes(nbytes)
        spans = self._spans.setdefault(size, deque())
        if spans and self.all_finished(spans[0][1]):
            at, _ = spans.popleft()
        else:
            at = self.hub.stage(size)
        if at:
            spans.append((at, seq))
        return at

    def spare(self, nbytes: int, seq: int) -> int:
        """The memory that the group keeps for itself, if nobody reads it any more; else 0.

        Operations get it in the order of their numbers. So of those that are not finished the first has what
        it needs on every rank, sooner or later, however much users and other groups have: it waits for no
        operation that waits for it.
        """
        idle = self._spare_user < 0 or self.all_finished(self._spare_user)
        if not idle or span_bytes(nbytes) > self._spare_bytes:
            return 0
        self._spare_user = seq
        return self._spare

    def reclaim(self) -> None:
        """Free the spans that nobody reads any more."""
        for spans in self._spans.values():
            for _ in range(len(spans)):
                at, seq = spans.popleft()
                if self.all_finished(seq):
                    self.hub.free(at)
                else:
                    spans.append((at, seq))

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────

    def abandoned(self) -> bool:
        """Whether nobody will read this region any more: all other members have left the group.

        That they have finished what this rank has issued is not enough. A member that has heard of no end yet
        may look here for what comes next, and would take for it what another group has written at this place.
        """
        while self._members_here and self._has_left(self._members_here[-1]):
            self._members_here.pop()
        return not self._members_here

    def _has_left(self, peer: Peer) -> bool:
        """Whether a peer reads nothing of the group any more, or never made it (`Hub.will_not_join`)."""
        return self._known(peer) and peer.memory.has_left(self.context, peer.entry)

    def release(self) -> None:
        """Give all memory back."""
        self.hub.free(self.at)
        if self._spare:
            self.hub.free(self._spare)
        for spans in self._spans.values():
            for at, _ in spans:
                self.hub.free(at)
        self.close()

    def close(self) -> None:
        """Let go of the memory."""
        self._spans.clear()
        self.unseen.clear()
        self.hub.boards.discard(self)
        self.words, self.bytes = memoryview(b""), np.empty(0, np.uint8)
        self.peers, self.memories, self._members_here, self.ends = [], [], [], None
        self.by_member.clear()


def span_bytes(nbytes: int) -> int:
    """The memory that `Board.span` takes for so many bytes, in bytes."""
    return 1 << max(13, (nbytes - 1).bit_length())


def place_word(at: int, exposed: bool) -> int:
    """Pack a place for SOURCE or RESULT: any byte of the segment, aligned or not.

    Args:
        at: offset in the segment.
        exposed: all of it lies there, in the array that is communicated; else blocks go around in staging.
    """
    return at << 1 | exposed


def place_of(word: int) -> tuple[int, bool]:
    """Unpack what `place_word` packed: the offset, and whether all of it lies there."""
    return word >> 1, word & 1 == 1


def view(memory: Array, at: int, count: int, dtype: np.dtype[Any]) -> Array:
    """An array on a segment's memory."""
    return memory[at : at + count * dtype.itemsize].view(dtype)


def theirs(memory: PeerMemory, at: int, count: int, dtype: np.dtype[Any]) -> Array:
    """An array on a peer's segment, where the peer says that it is.

    Raises:
        GroupBroken: it says a place outside the segment.
    """
    if at + count * dtype.itemsize > memory.bytes.size:
        raise GroupBroken(
            f"rank {memory.peer_segment.rank} says that its data lies where it has no memory to share",
            hint="See that rank's output",
        )
    return view(memory.bytes, at, count, dtype)
