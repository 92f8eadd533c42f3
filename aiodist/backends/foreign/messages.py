"""Messages between two members: matched by the host engine, carried by the foreign one.

    sender ── envelope (what, how much, which number, the engine's greeting) ─▶ receiver    in the user's tag
    sender ◀─ ready ─────────────────────────────────── receiver    where the engine asks for it
    sender ══ the data, by the engine ════════════════▶ receiver

So tags, their order and receiving from anybody are as everywhere in aiodist, and a message that does not fit
its receive is found before the library sees it. `ready` messages come in the order in which the receiver has
begun to receive: with it both sides begin alike, in libraries that know no tags.
"""

from __future__ import annotations

import struct
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from aiodist.backends.arrays.kernels.cost import copy_cost_ns
from aiodist.backends.base import Array, Operation
from aiodist.backends.foreign.engine import Done
from aiodist.backends.foreign.group import EngineGroup
from aiodist.backends.foreign.task import Task
from aiodist.backends.host.level import InternalGroup
from aiodist.backends.inner import InnerOperation
from aiodist.base.types import Call, Kind, agree

_ENVELOPE = struct.Struct("<32sQ")
_READY = struct.Struct("<Q")
_READY_TAG = 2**31  # users' tags end below
_BYTE = np.dtype(np.uint8)


class ForeignMessages:
    """The point-to-point side of one group on one rank. Ranks are group ranks.

    Args:
        group: its engine.
        level: the internal group in which envelopes travel.
    """

    def __init__(self, group: EngineGroup, level: InternalGroup) -> None:
        self._group = group
        self._level = level
        self._sent: defaultdict[int, count[int]] = defaultdict(count)  # messages to each peer
        self._numbers: defaultdict[tuple[Kind, int, int], count[int]] = defaultdict(count)  # internal ones
        self._waiting: dict[tuple[int, int], Task] = {}  # sends that the receiver is not ready for
        self._halves: dict[int, tuple[Task, Done]] = {}  # a side of messages to this rank itself, by number
        self._turns: dict[int, deque[PeerTurn]] = {}  # by peer, in the order of its ready messages

    def send(self, operation: Operation) -> None:
        """Start a send."""
        group, peer = self._group, operation.peer
        number = next(self._sent[peer])
        task = group.engine.prepare(operation)
        assert isinstance(operation.source, np.ndarray)
        head = _ENVELOPE.pack(_signature(operation.source), number)
        envelope = np.frombuffer(head + group.engine.greeting(peer), np.uint8)
        if group.engine.ready:
            self._waiting[peer, number] = task
            packed, turn = np.empty(_READY.size, np.uint8), PeerTurn()
            self._turns.setdefault(peer, deque()).append(turn)
            ready = partial(self._is_ready, peer, turn, packed)
            self._post(Kind.recv, operation, peer, _READY_TAG, ready, packed)
            self._post(Kind.send, operation, peer, operation.tag, _nothing, envelope)
        else:
            filled = partial(self._carry, task, True, peer, number)
            go = partial(group.fill, task, filled)
            self._post(Kind.send, operation, peer, operation.tag, go, envelope)

    def recv(self, operation: Operation) -> None:
        """Post a receive."""
        envelope = np.empty(_ENVELOPE.size + self._group.engine.greets, np.uint8)
        posted = self._make(Kind.recv, operation, operation.peer, operation.tag, envelope)
        posted.of = operation
        posted.then = lambda: self._came(operation, posted.result, envelope)
        self._submit(posted)

    def _came(self, operation: Operation, source: int, envelope: Array) -> None:
        """Take the envelope of the message for a receive."""
        group = self._group
        if group.stopped:
            return
        theirs, number = _ENVELOPE.unpack(envelope[: _ENVELOPE.size].tobytes())
        assert isinstance(operation.target, np.ndarray)
        mine = _signature(operation.target)
        if not agree(mine, theirs):
            group.channels.unfit(source, number, mine, theirs, operation)
            return
        operation.result = operation.senders[source]
        group.engine.greeted(source, envelope[_ENVELOPE.size :].tobytes())
        task = group.engine.prepare(operation)
        if group.engine.ready:
            packed = np.frombuffer(_READY.pack(number), np.uint8)
            self._post(Kind.send, operation, source, _READY_TAG, _nothing, packed)
        self._carry(task, False, source, number)

    def _received(self, task: Task) -> None:
        group = self._group
        if not group.stopped:
            group.drain(task, task.operation.succeed)

    def _is_ready(self, peer: int, turn: PeerTurn, packed: Array) -> None:
        (number,) = _READY.unpack(packed.tobytes())
        task = self._waiting.pop((peer, number))
        turn.go = partial(self._carry, task, True, peer, number)
        self._group.fill(task, partial(self._filled, peer, turn))

    def _filled(self, peer: int, turn: PeerTurn) -> None:
        """Send what may be sent: in the order in which the peer receives, also where some took a thread to
        fill, or a ready message overtook another."""
        turn.filled = True
        turns = self._turns[peer]
        while turns and turns[0].filled:
            turns.popleft().go()

    def _carry(self, task: Task, sends: bool, peer: int, number: int) -> None:
        """Have the engine send or receive the data; nothing is left to it where there is none."""
        group, operation = self._group, task.operation
        array, ended = (operation.source, self._sent_all) if sends else (operation.target, self._received)
        assert isinstance(array, np.ndarray)
        done = partial(ended, task)
        move = group.engine.send if sends else group.engine.recv
        if group.stopped:
            return
        if not array.size:
            group.channels.guard(done)
        elif peer == group.channels.rank:
            other = self._halves.pop(number, None)
            if other is None:
                self._halves[number] = task, done
            else:
                group.channels.guard(self._to_oneself, *((task, done), other)[:: 1 if sends else -1])
        else:
            group.channels.guard(move, task, peer, number, done)

    def _to_oneself(self, sent: tuple[Task, Done], received: tuple[Task, Done]) -> None:
        """Move a message to this rank itself, of which both sides have begun."""
        group, (source, over), (target, came) = self._group, sent, received

        def done() -> None:
            over()
            came()

        if group.engine.stages:
            group.engine.to_oneself(source, target, done)
            return
        read, written = source.source, target.target
        assert read is not None
        assert written is not None
        copies = partial(np.copyto, written, read)
        if group.channels.off_loop(copy_cost_ns(read.nbytes), copies, done):
            done()

    def _sent_all(self, task: Task) -> None:
        if not self._group.stopped:
            task.operation.succeed()

    # ── internal messages ────────────────────────────────────────────────────────────────────────────

    def _post(self, kind: Kind, operation: Operation, peer: int, tag: int, then: Any, array: Array) -> None:
        posted = self._make(kind, operation, peer, tag, array)
        posted.then = then
        self._submit(posted)

    def _submit(self, posted: InnerOperation) -> None:
        if not self._group.stopped:
            self._level.backend.submit(posted)

    def _make(self, kind: Kind, operation: Operation, peer: int, tag: int, array: Array) -> InnerOperation:
        call = Call(kind, next(self._numbers[kind, peer, tag]), _BYTE, array.shape, None, peer)
        sends = kind is Kind.send
        source, target = (array, None) if sends else (None, array)
        senders = range(self._group.channels.size)
        return InnerOperation(call, operation.work, source, target, peer=peer, tag=tag, senders=senders)


class PeerTurn:
    """A place in the order in which a peer receives.

    Attributes:
        filled: what is sent lies where the engine reads it.
        go: sends it.
    """

    __slots__ = ("filled", "go")
    go: Callable[[], None]

    def __init__(self) -> None:
        self.filled = False


def _signature(array: Array) -> bytes:
    """The dtype and number of elements, which both sides must have alike."""
    return Call(Kind.send, 0, array.dtype, (array.size,)).signature


def _nothing() -> None:
    """Do nothing: the message goes on by itself."""
