"""One running operation of a local group, and what all kinds of them have in common.

An exchange is published in the call, and then goes on in steps: `steps` is a generator that yields where it
has to wait for a peer's word, and is resumed, by the loop or by the bulk thread, until it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from aiodist.backends.base import Array, Operation
from aiodist.backends.buffers import Buffers
from aiodist.backends.host.local.board import CODE, FILL, RESULT, SOURCE, ZEROS, Peer, theirs, view
from aiodist.backends.host.local.plan import Plan

if TYPE_CHECKING:
    from aiodist.backends.host.local.board import Board
    from aiodist.environment.thresholds import Thresholds

Steps = Generator[None, None, None]


class Exchange:
    """One operation.

    Args:
        board: the group's memory.
        operation: what to do.
        plan: what ranks agree on.
        made: on which memory.
        limits: thresholds.
        disagrees: called with the peer whose signature differs; from the loop or the bulk thread.

    Attributes:
        moves: counts the words that were written: whoever resumes sees whether something happened.
        dead: make no further progress.
        needs: bytes of staging; 0: none. What `lay_out` says.
        staging: where they are. It has them before it begins.
    """

    __slots__ = (
        "base",
        "board",
        "code",
        "dead",
        "disagrees",
        "generator",
        "head",
        "limits",
        "made",
        "moves",
        "needs",
        "operation",
        "plan",
        "ring",
        "seq",
        "staging",
        "words",
    )

    def __init__(
        self,
        board: Board,
        operation: Operation,
        plan: Plan,
        made: Buffers | None,
        limits: Thresholds,
        disagrees: Callable[[Exchange, Peer], None],
    ) -> None:
        self.board = board
        self.operation = operation
        self.plan = plan
        self.made = made
        self.limits = limits
        self.disagrees = disagrees
        self.seq = operation.call.seq
        self.code = board.code(plan.digest, self.seq)
        self.head = board.head(self.seq)
        self.base = board.base + self.head
        self.words = board.words
        self.moves = 0
        self.dead = False
        self.ring: Callable[[], None] = board.ring_loops
        self.staging = 0
        self.needs = self.lay_out()
        self.generator = self.steps()

    # ── what kinds define ────────────────────────────────────────────────────────────────────────────

    def lay_out(self) -> int:
        """Work out which blocks go where → bytes of staging that they need. No data is touched."""
        return 0

    def begin(self) -> None:
        """Fill what can be filled at once, and publish. In the call, or when the slot is free."""
        self.publish()

    def steps(self) -> Steps:
        """All that comes after."""
        raise NotImplementedError

    def take_room(self, spare: bool = False) -> bool:
        """Take the staging that it needs, if there is room now; `spare`: what the group keeps for itself."""
        take = self.board.spare if spare else self.board.span
        self.staging = take(self.needs, self.seq)
        return self.staging != 0

    # ── driving ──────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> bool:
        """Go on as far as peers let us; whether the operation is over."""
        try:
            next(self.generator)
        except StopIteration:
            return True
        return False

    # ── for the kinds ────────────────────────────────────────────────────────────────────────────────

    def publish(self, source: int = 0, result: int = 0, filled: int = 0) -> None:
        """Say what this operation is, and where its data lies. Peers go on from here.

        Args:
            source, result: words for SOURCE and RESULT (`board.place_word`).
            filled: blocks of the source that peers may read now.
        """
        words, base, board = self.words, self.base, self.board
        words[base + FILL : base + RESULT + 1] = ZEROS
        words[base + FILL] = filled
        words[base + SOURCE] = source
        words[base + RESULT] = result
        board.sign(self.seq, self.operation.call.signature)
        words[base + CODE] = self.code
        self.moves += 1
        board.ring_all()

    def arrivals(self, peers: Sequence[Peer]) -> Steps:
        """Wait until peers have published the same operation."""
        mine, head, low = self.code, self.head, self.board.low
        for peer in peers:
            while not (peer.base or self.board.found(peer)):
                yield
            words, at = peer.words, peer.base + head + CODE
            while (theirs := words[at]) != mine:
                if theirs and not (theirs ^ mine) & low:
                    self.disagrees(self, peer)
                    while True:
                        yield
                yield

    def put(self, word: int, value: int) -> None:
        """Write a word of the slot, and wake who waits for it."""
        self.words[self.base + word] = value
        self.moves += 1
        self.ring()

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
        mine, head = self.code, self.head
        for peer in peers:
            if peer.words[peer.base + head + CODE] != mine:
                while True:
                    yield

    def word(self, peer: Peer, word: int) -> int:
        """A word of a peer's slot, as it is now."""
        return int(peer.words[peer.base + self.head + word])

    def in_home(self, arrays: Sequence[Array]) -> int:
        """Where the first of several arrays lies if this process's home holds them, else 0."""
        return self.board.hub.offset_of(arrays[0]) if arrays else 0

    def at(self, peer: Peer, offset: int, count: int, like: Array) -> Array:
        """An array on a peer's home."""
        return theirs(peer.near, offset, count, like.dtype)

    def mine(self, offset: int, count: int, like: Array) -> Array:
        """An array on this process's home."""
        return view(self.board.bytes, offset, count, like.dtype)
