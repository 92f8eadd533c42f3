"""A group's slots: one region in each member's segment, of the same layout.

    region   SLOTS words: in word i the number + 1 of the last operation in slot i that this rank has finished
             SLOTS slots of STRIDE bytes: words, signature, and room for a small payload

An operation's slot is its number modulo SLOTS. A rank writes a slot again when every member has finished what
it held. Readers find a region by the directory in its owner's segment. The engine reads and writes what is in
regions (`_engine/slots.h`, with the same numbers); here is where they lie, and when they come and go.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Sequence

from aiodist.backends.host.local.hub import Hub, PeerMemory, engine
from aiodist.base.errors import GroupBroken

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
        entry: the group's, in the directory of its segment; -1 until it was found.
    """

    __slots__ = ("entry", "member", "memory")

    def __init__(self, member: int, memory: PeerMemory) -> None:
        self.member = member
        self.memory = memory
        self.entry = -1


class Board:
    """One rank's part of a group's memory.

    Args:
        hub: the process's segment.
        context: names the group.
        ranks: global ranks of the members, in group order, all on this host.
        rank: this process's group rank.
        spare: bytes of staging that the group keeps for itself, if there is room.

    Attributes:
        slots: the regions of all members.
    """

    def __init__(self, hub: Hub, context: int, ranks: Sequence[int], rank: int, spare: int = 0) -> None:
        self.hub = hub
        self.context = context
        self.rank = rank
        self.size = len(ranks)
        self.at = hub.take(REGION)
        self.peers = [
            Peer(member, hub.memories[global_rank])
            for member, global_rank in enumerate(ranks)
            if member != rank
        ]
        memories = [peer.memory.shared for peer in self.peers]
        memories.insert(rank, hub.shared)
        self.slots = engine().Slots(memories, rank, (1 << NUMBER_BITS) - 1, hub.end_of_turn)
        self.slots.place(rank, self.at)
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

    # ── finding regions ──────────────────────────────────────────────────────────────────────────────

    def complete(self) -> bool:
        """Whether all peers have made the group by now."""
        return self.slots.complete or all([self.found(peer) for peer in self.peers])  # noqa: C419 (each is looked for)

    def found(self, peer: Peer) -> bool:
        """Whether a peer has made the group; not where it says that its region is beyond its segment, or
        begins within a word."""
        if not self.slots.has_made(peer.member) and self._known(peer):
            at = peer.memory.offset(self.context, peer.entry)
            if at and not at % 8 and at + REGION <= peer.memory.bytes.size:
                self.slots.place(peer.member, at)
        return self.slots.has_made(peer.member)

    def _known(self, peer: Peer) -> bool:
        """Whether a peer's directory has told of the group."""
        if peer.entry < 0:
            peer.entry = peer.memory.find(self.context)
        return peer.entry >= 0

    # ── what stands in slots ─────────────────────────────────────────────────────────────────────────

    def signature_of(self, member: int, seq: int) -> bytes:
        """The signature that a peer has published in an operation's slot."""
        signature = self.slots.signature(member, seq)
        return signature[:16] + seq.to_bytes(8, sys.byteorder) + signature[24:]  # one that is there is kept

    def look_back(self, numbers: Iterable[int]) -> tuple[int, int] | None:
        """Look at what peers have published under `Slots.unseen` numbers → a number and a peer's group rank
        that published something else under it."""
        self.complete()
        return self.slots.look_back(numbers)

    def begun(self, seq: int) -> set[int]:
        """Other members that have begun an operation: it stands in their slot, or is finished there."""
        self.complete()
        return self.slots.begun(seq)

    def all_finished(self, seq: int) -> bool:
        """Whether no member, this one included, touches anything of an operation any more."""
        return self.complete() and self.slots.all_finished(seq)

    def free(self, seq: int) -> bool:
        """Whether an operation's slot may be written."""
        return seq < SLOTS or self.all_finished(seq - SLOTS)

    def outside(self, member: int) -> GroupBroken:
        """The error of a peer that names a place outside its segment."""
        rank = next(peer.memory.peer_segment.rank for peer in self.peers if peer.member == member)
        return GroupBroken(
            f"rank {rank} says that its data lies where it has no memory to share",
            hint="See that rank's output",
        )

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
        self.hub.boards.discard(self)
        self.slots.close()
        self.peers, self._members_here = [], []


def span_bytes(nbytes: int) -> int:
    """The memory that `Board.span` takes for so many bytes, in bytes."""
    return 1 << max(13, (nbytes - 1).bit_length())
