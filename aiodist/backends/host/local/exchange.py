"""One running operation between ranks of one host, and what all kinds of them have in common.

An operation is published in the call, and then goes on as peers let it. Where all of its data goes in one
block, `look` carries it from one wait for a peer's word to the next; where it goes in several, `steps` is a
generator that yields at each wait. Who drives it, the loop or the bulk thread, calls `step` again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any

from aiodist.backends.base import Array, Operation
from aiodist.backends.buffers import Buffers
from aiodist.backends.host.local.board import CODE, FILL, RESULT, ZEROS, Peer, view
from aiodist.backends.host.local.plan import Plan, digest_of
from aiodist.types import Call

Steps = Generator[None, None, None]

OVER = -2
"""The phase of an operation that has ended."""

WITHDRAWN = -1
"""A phase without an end: a peer has withdrawn what was read, or has published something else."""


class Exchange:
    """One operation.

    Args:
        plan: what is the same whenever it is issued again.
        seq: its number.
        send: the parts that this rank gives, contiguous arrays of one axis: see `Buffers`.
        recv: the parts that it is given.
        made: what is copied before and after, where anything is.
        call: what ranks agree on, where that is more than the plan says (`Call.detail`).

    Attributes:
        code: the word that publishes it.
        signature: what stands beside that word.
        moves: counts the words that were written: whoever drives sees whether something happened.
        phase: what `look` waits for.
        dead: make no further progress.
        needs: bytes of staging; 0: none.
        staging: where they are. It has them before it begins.
        operation: the group's; None while it is not in flight.
        work: the user's handle.
    """

    __slots__ = (
        "base",
        "code",
        "dead",
        "generator",
        "head",
        "made",
        "moves",
        "needs",
        "operation",
        "phase",
        "plan",
        "recv",
        "ring",
        "send",
        "seq",
        "signature",
        "staging",
        "work",
    )

    def __init__(
        self,
        plan: Plan,
        seq: int,
        send: list[Array],
        recv: list[Array],
        made: Buffers | None = None,
        call: Call | None = None,
    ) -> None:
        board = plan.board
        self.plan = plan
        self.seq = seq
        self.send = send
        self.recv = recv
        self.made = made
        if call is None or not call.detail:
            self.signature = plan.signature
            self.code = plan.digest | (seq + 1) & board.low
        else:
            self.signature = call.signature
            self.code = digest_of(call) << 16 | (seq + 1) & board.low
        self.head = head = board.head(seq)
        self.base = board.base + head
        self.moves = 0
        self.phase = 0
        self.dead = False
        self.staging = 0
        self.ring: Callable[[], None] = board.ring_loops
        self.operation: Operation | None = None
        self.work: Any = None
        self.needs = self.lay_out()
        self.generator = self.steps() if plan.in_blocks else None

    # ── what kinds define ────────────────────────────────────────────────────────────────────────────

    def lay_out(self) -> int:
        """Find where the data of this operation lies → bytes of staging that it needs. No data is touched."""
        return 0

    def begin(self) -> None:
        """Fill what can be filled at once, and publish. In the call, or when the slot is free."""
        self.publish()

    def look(self) -> bool:
        """Go on as far as peers let it, where all goes in one block; whether the operation is over."""
        raise NotImplementedError

    def steps(self) -> Steps:
        """All that comes after `begin`, where the data goes in several blocks."""
        raise NotImplementedError

    # ── driving ──────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> bool:
        """Go on as far as peers let it; whether the operation is over."""
        if self.generator is None:
            return self.look()
        try:
            next(self.generator)
        except StopIteration:
            return True
        return False

    @property
    def at_work(self) -> bool:
        """Whether a step of it is under way, further up the stack."""
        return self.generator is not None and getgeneratorstate(self.generator) == GEN_RUNNING

    def poll(self) -> None:
        """Bring it on while it is awaited (`work.Driver`)."""
        self.plan.owner.poll(self)

    def take_room(self, spare: bool = False) -> bool:
        """Take the staging that it needs, if there is room now; `spare`: what the group keeps for itself."""
        take = self.plan.board.spare if spare else self.plan.board.span
        self.staging = take(self.needs, self.seq)
        return self.staging != 0

    def compare(self) -> None:
        """Tell once of a peer that has published something else under this number; then go no further."""
        if self.phase == WITHDRAWN:
            return
        code, head, low = self.code, self.head, self.plan.board.low
        for peer in self.plan.board.peers:
            if peer.base:
                theirs = peer.words[peer.base + head + CODE]
                if theirs and theirs != code and not (theirs ^ code) & low:
                    self.phase = WITHDRAWN
                    self.plan.owner.disagrees(self.seq, peer)
                    return

    # ── for the kinds ────────────────────────────────────────────────────────────────────────────────

    def fill(self) -> None:
        """Copy and multiply what is staged."""
        if self.made is not None:
            self.made.fill()

    def empty(self) -> None:
        """Copy what is staged to the user's arrays."""
        if self.made is not None:
            self.made.empty()

    def publish(self, source: int = 0, result: int = 0, filled: int = 0) -> None:
        """Say what this operation is, and where its data lies. Peers go on from here.

        Args:
            source, result: words for SOURCE and RESULT (`board.place_word`).
            filled: blocks of the source that peers may read now.
        """
        plan, base = self.plan, self.base
        board = plan.board
        words = board.words
        words[base + FILL : base + RESULT + 1] = ZEROS
        words[base + FILL] = filled
        words[base + RESULT - 1] = source
        words[base + RESULT] = result
        board.sign(self.seq, self.signature)
        words[base + CODE] = self.code
        self.moves += 1
        board.ring_all()

    def arrived(self, ends: Sequence[tuple[memoryview, int]]) -> bool:
        """Whether peers have published the same operation."""
        code, head = self.code, self.head
        return all(words[base + head] == code for words, base in ends)

    def arrivals(self, peers: Sequence[Peer]) -> Steps:
        """Wait until peers have published the same operation; tell of one that has published another."""
        mine, head, board = self.code, self.head, self.plan.board
        for peer in peers:
            while not (peer.base or board.found(peer)):
                yield
            words, at = peer.words, peer.base + head + CODE
            while (theirs := words[at]) != mine:
                if theirs and not (theirs ^ mine) & board.low:
                    self.plan.owner.disagrees(self.seq, peer)
                    while True:
                        yield
                yield

    def put(self, word: int, value: int) -> None:
        """Write a word of the slot, and wake who waits for it."""
        self.plan.board.words[self.base + word] = value
        self.moves += 1
        self.ring()

    def has_reached(self, ends: Sequence[tuple[memoryview, int]], word: int, value: int) -> bool:
        """Whether peers have written at least a value to a word."""
        at = self.head + word
        return all(words[base + at] >= value for words, base in ends)

    def reached(self, peers: Sequence[Peer], word: int, value: int) -> Steps:
        """Wait until peers have written at least a value to a word."""
        offset = self.head + word
        for peer in peers:
            words, at = peer.words, peer.base + offset
            while words[at] < value:
                yield

    def confirmed(self, peers: Sequence[Peer]) -> Steps:
        """Make sure that what was just read of peers' memory is what they have published.

        Comes before anything that is derived from it is handed on, or reported.

        A peer whose operation has failed withdraws it before its user may write to the array again, which is
        exposed here. So where its word is still there after the reading, what was read is older than that
        (on x86-64 loads are done in order). Where it is not, wait for ever: its group has broken, and the
        control links say so.
        """
        if self.withdrawn(peers):
            while True:
                yield

    def withdrawn(self, peers: Sequence[Peer]) -> bool:
        """Whether a peer has withdrawn the operation, whose memory was just read: see `confirmed`."""
        mine, at = self.code, self.head + CODE
        return any(peer.words[peer.base + at] != mine for peer in peers)

    def word(self, peer: Peer, word: int) -> int:
        """A word of a peer's slot, as it is now."""
        return int(peer.words[peer.base + self.head + word])

    def at(self, peer: Peer, offset: int, count: int) -> Array:
        """Elements on a peer's home."""
        return self.plan.theirs(peer, offset, count)

    def mine(self, offset: int, count: int) -> Array:
        """Elements on this process's home."""
        return view(self.plan.board.bytes, offset, count, self.plan.dtype)
