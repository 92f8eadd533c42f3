"""One running operation of a local group, and what all kinds of them have in common.

An exchange is published in the call, and then goes on in steps: `steps` is a generator that yields where it
has to wait for a peer's word, and is resumed, by the loop or by the bulk thread, until it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from aiodist.backends.base import Array, Operation
from aiodist.backends.host.local.board import CODE, FILL, LOW, RESULT, SOURCE, ZEROS, Peer, code, view
from aiodist.backends.host.local.memory import Memory
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
        "operation",
        "plan",
        "ring",
        "seq",
        "words",
    )

    def __init__(
        self,
        board: Board,
        operation: Operation,
        plan: Plan,
        made: Memory | None,
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
        self.code = code(plan.digest, self.seq)
        self.head = board.head(self.seq)
        self.base = board.base + self.head
        self.words = board.words
        self.moves = 0
        self.dead = False
        self.ring: Callable[[], None] = board.ring_loops
        self.generator = self.steps()

    # ── what kinds define ────────────────────────────────────────────────────────────────────────────

    def begin(self) -> None:
        """Fill what can be filled at once, and publish. In the call, or when the slot is free."""
        self.publish()

    def steps(self) -> Steps:
        """All that comes after."""
        raise NotImplementedError

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
        """Say what this operation is, and where its data lies. Peers go on from here."""
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
        mine, head = self.code, self.head
        for peer in peers:
            while not (peer.base or self.board.found(peer)):
                yield
            words, at = peer.words, peer.base + head + CODE
            while (theirs := words[at]) != mine:
                if theirs and not (theirs ^ mine) & LOW:
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

    def word(self, peer: Peer, word: int) -> int:
        """A word of a peer's slot, as it is now."""
        return int(peer.words[peer.base + self.head + word])

    def in_home(self, arrays: Sequence[Array]) -> int:
        """Where the first of several arrays lies if this process's home holds them, else 0."""
        return self.board.hub.offset_of(arrays[0]) if arrays else 0

    def at(self, peer: Peer, offset: int, count: int, like: Array) -> Array:
        """An array on a peer's home."""
        return view(peer.near.bytes, offset, count, like.dtype)

    def mine(self, offset: int, count: int, like: Array) -> Array:
        """An array on this process's home."""
        return view(self.board.bytes, offset, count, like.dtype)
