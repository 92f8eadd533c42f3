"""One running operation between ranks of one host, and what all kinds of them have in common.

An operation is published in the call, and then goes on as peers let it. Its driver, the loop or the bulk
thread, calls `advance` again and again, which carries it from one wait for a peer to the next.
"""

# Why it is this way.
#
# Nobody waits inside an exchange. The loop may not block, and the bulk thread runs the operations of all
# groups, which ranks may have issued in different order: a thread that waited in one for a peer that
# waits in another would never end. So an exchange is something that can be asked again at any time, and
# says whether it is over.
#
# It has two forms. Data that goes in one block needs two or three waits: a number says which one it is
# at (`phase`), and `advance` is straight code between them. That is the form for speed. Data in several
# blocks is a pipeline, filling one block while the block before is reduced and the one before that is
# collected, with a wait between any two steps. As a generator (`steps`) this reads in the order in which
# it happens. To resume it costs more than a comparison of a number, which does not matter for a block.
#
# What a rank reads of a peer it has to read before the peer writes there again, and the peer learns of
# it by counts that only grow: TOOK (blocks taken of sources), TOOK_OUT (of results). Counts instead of
# flags: a flag would have to be taken back before the next use of the slot, and to take it back is to
# race with who reads it late. Publishing sets all counts to 0 before CODE is written, and nobody looks
# at them earlier.
#
# A peer may withdraw what is being read (its operation failed, and its user may write there). It writes
# 0 to CODE first. So whoever has read looks at CODE once more before anything that was derived from the
# reading is handed on or reported (`confirmed`, `withdrawn`): copying first and asking afterwards, as a
# seqlock does. The answer "it is gone" ends nothing here. The group has broken, the control links carry
# the reason, and the Work fails by those.
#
# An exchange is kept and used again for its slot, since to make it costs more than to run it. `reset`
# gives it the next operation; `drop` takes everything of the user's out of it, so that what is kept
# holds no array.

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Sequence
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any

from aiodist.backends.base import Array, Operation
from aiodist.backends.buffers import Buffers
from aiodist.backends.host.local.board import CODE, FILL, MASK, RESULT, ZEROS, Peer
from aiodist.backends.host.local.plan import Plan, digest_of
from aiodist.base.types import Call
from aiodist.observe.recorder.layout import ARRIVED

Steps = Generator[None, None, None]

NOTHING: list[Array] = []
"""The parts of an exchange that stands for no operation."""

TAKE, COLLECT, LEND, WITHDRAWN = 0, 1, 2, -1
"""Phases of an exchange in one block: what it waits for.

TAKE: peers have yet to publish; then what they give is taken, or reduced. COLLECT: they have yet to reduce
their parts, which are then collected. LEND: they have yet to read this rank's arrays, which are the user's
own. WITHDRAWN, which has no end: a peer has withdrawn what was read, or has published something else."""


class Exchange:
    """One operation, and after it the next of the same plan in the same slot.

    Args:
        plan: what is the same whenever it is issued again.
        seq: a number whose slot it is for.

    Attributes:
        seq: the operation's number.
        send: the parts that this rank gives, contiguous arrays of one axis: see `Buffers`.
        recv: the parts that it is given.
        made: what is copied before and after, where anything is.
        code: the word that publishes it.
        signature: what stands beside that word.
        moves: counts the words that were written: the driver sees whether something happened.
        phase: what `advance` waits for.
        ended: it goes no further: it is over, or its group is broken.
        needs: bytes of staging; 0: none.
        step: has this exchange advance, and ends it if it is over (`plan.Owner`).
        staging: where they are. It has them before it begins.
        operation: the group's; None while it is not in flight.
        work: the user's handle.
        seen: the loop came round while it was pending.
    """

    __slots__ = (
        "base",
        "board",
        "code",
        "ended",
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
        "seen",
        "send",
        "seq",
        "signature",
        "slot",
        "staging",
        "step",
        "work",
    )

    alike = False
    """Whether every use is laid out alike, in one block; `needs` is known when the exchange is made."""

    send: list[Array]
    recv: list[Array]

    def __init__(self, plan: Plan, seq: int) -> None:
        board = plan.board
        self.plan = plan
        self.board = board
        self.head = head = board.head(seq)
        self.base = board.base + head
        self.slot = seq & MASK
        self.moves = 0
        self.needs = 0
        self.ended = False
        self.phase = TAKE
        self.staging = 0
        self.made: Buffers | None = None
        self.signature = plan.signature
        self.generator: Steps | None = None
        self.ring: Callable[[], None] = board.ring_loops
        self.operation: Operation | None = None
        self.work: Any = None
        self.step = plan.owner.step

    def reset(self, seq: int, send: list[Array], recv: list[Array]) -> None:
        """Stand for another operation; see the class."""
        self.seq = seq
        self.send = send
        self.recv = recv
        self.code = self.plan.digest | (seq + 1) & self.board.low
        self.ended = self.seen = False
        if self.alike:
            return
        self.phase, self.staging = TAKE, 0
        self.needs = self.lay_out()
        if self.plan.in_blocks:
            self.generator = self.steps()

    def amend(self, made: Buffers | None, call: Call) -> None:
        """Note what is copied before and after, and what ranks agree on beyond the plan (`Call.detail`)."""
        self.made = made
        if call.detail:
            self.signature = call.signature
            self.code = digest_of(call) << 16 | (self.seq + 1) & self.board.low

    def drop(self) -> None:
        """Let go of the operation, and of all that is the user's."""
        self.send = self.recv = NOTHING
        self.operation = self.work = self.made = self.generator = None
        self.signature = self.plan.signature

    # ── what kinds define ────────────────────────────────────────────────────────────────────────────

    def lay_out(self) -> int:
        """Find where the data of this operation lies → bytes of staging that it needs. No data is touched."""
        return 0

    def begin(self) -> None:
        """Fill what can be filled at once, and publish. In the call, or when the slot is free."""
        self.publish()

    def advance(self) -> bool:
        """Go on as far as peers let it → whether the operation is over."""
        return self.go_on()

    def steps(self) -> Steps:
        """All that comes after `begin`, where the data goes in several blocks."""
        raise NotImplementedError

    # ── driving ──────────────────────────────────────────────────────────────────────────────────────

    def go_on(self) -> bool:
        """Resume `steps` → whether they are over."""
        assert self.generator is not None
        for _ in self.generator:
            return False
        return True

    @property
    def at_work(self) -> bool:
        """Whether a step of it is under way, further up the stack."""
        return self.generator is not None and getgeneratorstate(self.generator) == GEN_RUNNING

    def poll(self) -> None:
        """Bring it on while it is awaited (`work.Driver`), for as long as this turn of the loop may."""
        step = self.step
        if step(self):
            return
        hub = self.board.hub
        if not hub.looks:
            hub.end_of_turn_soon()  # which rings with a fence for what was written here
            return
        for _ in range(hub.looks):  # before the clock is asked: what peers do alike they do at the same time
            if step(self):
                return
        ends = hub.start_polling()
        over = False
        while not over:
            os.sched_yield()  # the peer may wait for this very core
            over = time.monotonic() >= ends
            for _ in range(hub.looks):
                if step(self):
                    over = True
                    break
        hub.turn.stop_polling()

    def take_room(self, spare: bool = False) -> bool:
        """Take the staging that is needed, if there is room now; `spare`: what the group keeps for itself."""
        take = self.board.spare if spare else self.board.span
        self.staging = take(self.needs, self.seq)
        return self.staging != 0

    def compare(self) -> None:
        """Report once a peer that has published something else under this number; then go no further."""
        if self.phase == WITHDRAWN:
            return
        code, head, low = self.code, self.head, self.board.low
        for peer in self.board.peers:
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
        board, base = self.board, self.base
        if self.slot in board.unseen:
            self.plan.owner.reuse(self.slot)
        words = board.words
        words[base + FILL : base + RESULT + 1] = ZEROS
        words[base + FILL] = filled
        words[base + RESULT - 1] = source
        words[base + RESULT] = result
        if board.signed[self.slot] is not self.signature:
            board.sign(self.seq, self.signature)
        words[base + CODE] = self.code
        self.moves += 1
        self.plan.ring()

    def publish_code(self) -> None:
        """Publish an operation of which peers read nothing but its code, signature and payload."""
        board = self.board
        if self.slot in board.unseen:
            self.plan.owner.reuse(self.slot)
        if board.signed[self.slot] is not self.signature:
            board.sign(self.seq, self.signature)
        board.words[self.base] = self.code  # who finds the code finds all the rest
        board.ring_loops()

    def arrived(self) -> bool:
        """Whether all peers have published the same operation."""
        ends = self.board.ends or self.board.complete()
        if ends is None:
            return False
        code, head = self.code, self.head
        for words, base in ends:  # noqa: SIM110 (a generator takes longer)
            if words[base + head] != code:
                return False
        return True

    def arrivals(self, peers: Sequence[Peer]) -> Steps:
        """Wait until peers have published the same operation; report one that has published another."""
        mine, head, board = self.code, self.head, self.board
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
        if self.operation is not None:
            self.operation.happened(ARRIVED)

    def put(self, word: int, value: int) -> None:
        """Write a word of the slot, and wake peers that wait for it."""
        self.board.words[self.base + word] = value
        self.moves += 1
        self.ring()

    def have_reached(self, peers: Sequence[Peer], word: int, value: int) -> bool:
        """Whether peers, who have all arrived, have written at least a value to a word."""
        at = self.head + word
        for peer in peers:  # noqa: SIM110
            if peer.words[peer.base + at] < value:
                return False
        return True

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
        code, head = self.code, self.head
        for peer in peers:  # noqa: SIM110
            if peer.words[peer.base + head] != code:
                return True
        return False

    def word(self, peer: Peer, word: int) -> int:
        """A word of a peer's slot, as it is now."""
        return int(peer.words[peer.base + self.head + word])
