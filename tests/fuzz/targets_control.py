"""Fuzzed: the control plane, from the bytes on a link to what a group makes of them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack
import numpy as np

from aiodist.base.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    GroupAborted,
    GroupBroken,
    PeerLost,
    WireError,
)
from aiodist.base.types import Call, Kind
from aiodist.group.breakage import pack, unpack
from aiodist.group.control.clocks import Stamp
from aiodist.group.control.liveness import LoopState
from aiodist.group.control.messages import EVERYBODY, MAX_BYTES, PING, Message, Say, decode
from aiodist.group.control.plane import ControlPlane
from aiodist.group.roster import Roster
from aiodist.group.seats import Seat
from aiodist.group.watch import Watch
from aiodist.net.wire import bounded
from aiodist.transport.control_link import ControlLink
from aiodist.transport.line import SocketLine
from tests.fuzz.engine import Judgement
from tests.fuzz.hand_loop import HandLoop
from tests.fuzz.mutate import framed, join, packed, raw, split
from tests.fuzz.target import Run, Target, words_are_fit

RANK, SIZE, NEIGHBOUR = 0, 16, 1
CONTEXT, ELSEWHERE = 77, 78
CALLS = {seq: Call(Kind.all_reduce, seq, np.dtype(np.float32), (4,)) for seq in (3, 4, 5)}

ERRORS: tuple[GroupBroken, ...] = (
    PeerLost([3], "process 12 ended"),
    CollectiveMismatch({0: "barrier()", 2: "all_reduce(float32[3], SUM)"}),
    CollectiveTimeout(2.5, [1, 2]),
    GroupAborted(2, "no disk"),
    GroupBroken("because"),
)


def bodies() -> list[tuple[Say, tuple[Any, ...]]]:
    """What is said of a group, and of ranks."""
    signature = CALLS[4].signature
    return [
        (Say.lost, (5, "connection ended without goodbye", -1)),
        *((Say.broken, (CONTEXT, *pack(error))) for error in ERRORS),
        (Say.broken, (ELSEWHERE, *pack(ERRORS[0]))),
        (Say.stalled, (CONTEXT, 4)),
        (Say.where, (CONTEXT, 4)),
        (Say.where, (ELSEWHERE, 4)),
        (Say.here, (CONTEXT, 4, True, signature, "all_reduce(float32[4])")),
        (Say.here, (CONTEXT, 4, False, b"", "")),
        (Say.missing, (CONTEXT, 4, (2, 3), (1,))),
        (Say.left, (CONTEXT, 3, 9, ())),
        (Say.left, (ELSEWHERE, 3, 9, ())),
        (Say.blocked, (2, int(LoopState.blocked), 8000, "train.py:41 in evaluate")),
        (Say.blocked, (RANK, int(LoopState.silent), 8000, "")),
    ]


def messages() -> list[bytes]:
    """One of each kind; for everybody, for this rank, and for another."""
    flood = (Say.lost, Say.broken, Say.left, Say.blocked)
    return [
        Message(say, origin, number, EVERYBODY if say in flood else target, 64, body).encode()
        for number, (say, body) in enumerate(bodies())
        for origin, target in ((1, RANK), (9, 12))
    ]


@contextmanager
def open_message() -> Iterator[Run]:
    def run(data: bytes) -> str:
        message = decode(data)
        if len(data) <= MAX_BYTES and decode(message.encode()) != message and "nan" not in repr(message):
            raise Judgement(f"{message} is another when it is passed on")
        return ""

    yield run


# ── verdicts ─────────────────────────────────────────────────────────────────────────────────────────


def verdicts() -> list[bytes]:
    """Packed errors."""
    return [msgpack.packb(pack(error)) for error in ERRORS]


@contextmanager
def open_verdict() -> Iterator[Run]:
    def run(data: bytes) -> str:
        try:
            code, *values = bounded.unpack(data, use_list=False, strict_map_key=True)
        except Exception:
            return "no msgpack"
        error = unpack(code, tuple(values))
        again = unpack(pack(error)[0], pack(error)[1:])
        if type(again) is not type(error) or not str(error.during("all_reduce", 3, "world")):
            raise Judgement(f"{error!r} is passed on as {again!r}")
        return ""

    yield run


# ── the plane, and a group that listens ──────────────────────────────────────────────────────────────


class Flight:
    """A group's registry, with operations 3 to 5 in flight."""

    def call(self, seq: int) -> Call | None:
        """As `flight.Flight`."""
        return CALLS.get(seq)

    def described(self, call: Call) -> str:
        """As `flight.Flight`."""
        return call.describe()

    def collectives(self) -> list[int]:
        """As `flight.Flight`."""
        return list(CALLS)


class Group:
    """What a `Watch` needs of a group."""

    def __init__(self, plane: ControlPlane, loop: HandLoop) -> None:
        roster = Roster(RANK, (0, 1, 2, 3), ("a",) * 4, "world", CONTEXT, 0, (Seat(0, 0),) * 4)
        self.broken: GroupBroken | None = None
        self.watch = Watch(
            *(roster, Flight(), plane, loop),  # type: ignore[arg-type]
            begun=lambda seq: seq < 6,
            seen=lambda seq: set(),
            breaks=self.breaks,
        )

    def breaks(self, error: GroupBroken, *, tell: bool = True) -> None:
        """As `GroupCore.break_group`."""
        if self.broken is None:
            self.broken = error
            self.watch.stop_asking()
            if tell:
                self.watch.tell_broken(error)


class Wire:
    """A link that only looks at what is sent."""

    def drain(self) -> None:
        """Nothing is under way."""

    def send(self, message: bytes) -> None:
        """As a control link: 1 to MAX_BYTES bytes."""
        if not 0 < len(message) <= MAX_BYTES:
            raise Judgement(f"{len(message)} bytes for a control link")
        decode(message)

    def post(self, message: bytes) -> None:
        """As `send`."""
        self.send(message)

    def close(self) -> None:
        """Nothing."""

    def kill(self) -> None:
        """Nothing."""


def process(loop: HandLoop) -> tuple[ControlPlane, Group]:
    """A rank of sixteen with a group of four, and links to all its neighbours."""
    plane = ControlPlane(RANK, SIZE)
    for neighbour in plane.core.neighbours:
        plane.attach(neighbour, Wire())
    group = Group(plane, loop)
    group.watch.start()
    return plane, group


def end(plane: ControlPlane, group: Group, loop: HandLoop) -> str:
    """Let the group's timers run out, and see what became of it."""
    loop.advance(5.0)
    group.watch.close()
    for error in (group.broken, *plane.core.lost.values()):
        text = error if isinstance(error, str) else str(error)
        if len(text) > 2 * MAX_BYTES:
            raise Judgement(f"{len(text)} characters in an error")
    return "lost" if NEIGHBOUR in plane.core.lost else "broken" if group.broken else ""


def talks() -> list[bytes]:
    """Messages in a row, framed as on a link; some end with goodbye."""
    one = messages()
    return [join([message]) for message in one] + [
        join([*one[6:]]),
        join([one[14], one[16], one[20], one[22], one[24]]),
        join([*one[14:22]]) + bytes(4),
        join([PING, Stamp(3.5, 2.5, 1.5).ping(), one[6]]),
        join([Message(Say.here, origin, 1, RANK, 64, (CONTEXT, 4, True, CALLS[4].signature, "x")).encode()])
        if (origin := 2)
        else b"",
    ]


@contextmanager
def open_plane() -> Iterator[Run]:
    def run(data: bytes) -> str:
        loop = HandLoop()
        plane, group = process(loop)
        for part in split(data):
            plane.received(NEIGHBOUR, part)
        return end(plane, group, loop)

    yield run


@contextmanager
def open_link() -> Iterator[Run]:
    def run(data: bytes) -> str:
        loop = HandLoop()
        plane, group = process(loop)
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            theirs.setblocking(False)
            ends: list[tuple[bool, str]] = []
            gone: list[Any] = []
            line = SocketLine(loop, ours)  # type: ignore[arg-type]
            link = ControlLink(loop, line, NEIGHBOUR, gone.append)  # type: ignore[arg-type]
            link.on_message = lambda message: plane.received(NEIGHBOUR, message)
            link.on_closed = lambda goodbye, cause: ends.append((goodbye, cause))
            step = 1 + (data[0] if data else 0) * 37
            for at in range(0, min(len(data), 40 * step), step):
                try:
                    theirs.send(data[at : at + step])
                except OSError:
                    break
                loop.turn()
                if len(link._in) > 2 * MAX_BYTES:
                    raise Judgement(f"{len(link._in)} bytes kept")
            theirs.close()
            loop.run_until_idle()
            if len(ends) != 1 or len(gone) != 1:
                raise Judgement(f"ended {ends}, gone {len(gone)} times")
            plane.ended(NEIGHBOUR, *ends[0])
            word = end(plane, group, loop)
            return "" if ends[0][0] else word

    yield run


def goodbyes() -> list[bytes]:
    """Talks that end as they should."""
    return [talk + bytes(4) for talk in talks()]


_MUTATORS = (raw, framed(packed), framed(packed), framed(raw))

TARGETS = [
    Target("control", "one message of a control link", messages, open_message, (WireError,), (raw, packed)),
    Target(
        "verdict",
        "why a group broke, as its members tell",
        verdicts,
        open_verdict,
        (WireError,),
        (raw, packed),
    ),
    Target(
        "plane", "what a neighbour says to the plane and its groups", talks, open_plane, (), _MUTATORS, 0.4
    ),
    Target("control-link", "the framing of control links", goodbyes, open_link, (), _MUTATORS, 0.25),
]

__all__ = ["TARGETS", "words_are_fit"]
