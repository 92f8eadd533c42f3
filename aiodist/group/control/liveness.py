"""Liveness of processes and of their event loops: whom to ping, look at, tell of, give up. Pure.

These are two facts. *A loop turns* if a message came that only a loop sends, a ping say. *A process lives* if
its loop turns; if its watchdog speaks, a thread that says that the loop does not turn, and where it is
(`watchdog`); if a process on its host looks at it (/proc) and sees that it is not stopped; or if one of those
says so to all (`Say.blocked`).

Rules
    1. A loop that does not turn ends nothing. Those who wait are told, from `warn_after` on.
    2. A process that is seen to be stopped is given up `evict_after` after its last sign of life.
    3. A process of which nothing is known is given up after `evict_silent_after`. That is minutes: its
       host answers and its connections stand, so it is stopped, or in a call that holds the interpreter.
    4. Silence is counted in time in which this process itself turned. A process that was stopped, or blocked
       its own loop, learns that from its own late timer; the time that it missed accuses nobody.
    5. What waits in the sockets is read before anybody is judged. That is the shell's duty.
    6. Peers whose loops are silent are not pinged: what they must find when they wake up (that they were
       given up, say) needs room in their socket. That its host lives the kernel goes on to find out
       (`transport.control_link`).
    7. What is known of a silent peer is told to all, once after each doubling of its time: by the watchdog
       of the peer itself, or, where that cannot speak, by a neighbour. A rank that has been told already
       says nothing. So a thousand ranks learn of it at the cost of a few floods, and those that can see
          the process answer those that cannot.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

LATE = 2.0
"""Heartbeats: a timer that comes later than this was not late because of the loop's usual work."""

PATIENCE = 16
"""Heartbeats without a sign of its loop after which a peer is pinged no more until it is heard."""

SLACK = 4.0
"""Heartbeats that a peer's own message may be late before a neighbour speaks for it."""

WORDS_AT_LEAST = 4
"""Messages about a living process whose loop is blocked in the time after which a silent one is given up."""


class LoopState(enum.IntEnum):
    """State of a process whose event loop is blocked, as far as is known. Codes are part of the protocol."""

    runs = 0  # again
    blocked = 1  # its watchdog says so, and where the loop's thread is
    held = 2  # its process was checked and is not stopped, but not even its watchdog speaks
    stopped = 3  # its process was checked, and is stopped
    silent = 4  # nobody could look


CHANGES = {
    (LoopState.blocked, LoopState.stopped),
    (LoopState.held, LoopState.stopped),
    (LoopState.silent, LoopState.stopped),
    (LoopState.silent, LoopState.held),
    (LoopState.stopped, LoopState.held),
}
"""What is told at once: (what all have been told, what is seen now). A stop, because that process will be
given up; its end; and a look at one that others cannot look at. The rest waits until it is due: that a
process lives is known already, and who cannot look knows less than who could."""

_WORDS = {
    LoopState.held: "a call holds its interpreter",
    LoopState.stopped: "it is stopped (by a signal or a debugger)",
    LoopState.silent: "it gives no sign of life: it is stopped, or a call holds its interpreter",
}


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits of patience, in seconds.

    Attributes:
        heartbeat: between two signs of life.
        warn_after: until those who wait for a loop that does not turn are told.
        evict_after: until a process that is stopped is given up.
        evict_silent_after: until one is given up that is silent, and that no process can look at.
    """

    heartbeat: float = 0.25
    warn_after: float = 5.0
    evict_after: float = 30.0
    evict_silent_after: float = 600.0

    def next_word(self, reported: float) -> float:
        """The next time to speak of a blocked loop: seconds of its time, after a report at `reported`."""
        return min(max(2 * reported, self.warn_after), reported + self.evict_silent_after / WORDS_AT_LEAST)


@dataclass(slots=True)
class Blocked:
    """A loop that does not turn, as far as is known here.

    Attributes:
        state: why.
        where: the line that its thread is in, where its watchdog could say.
        since: when it turned last, on this process's clock.
        reported: seconds that it had not turned when all were last told.
    """

    state: LoopState
    where: str
    since: float
    reported: float

    def seconds(self, now: float) -> float:
        """The seconds for which it has not turned."""
        return max(now - self.since, 0.0)

    def describe(self, now: float) -> str:
        """The state in words: 'has not run its event loop for 8 s: train.py:41 in evaluate'."""
        why = _WORDS.get(self.state) or self.where or "its line is not known"
        seconds = self.seconds(now)
        return f"has not run its event loop for {seconds:.{0 if seconds >= 1 else 1}f} s: {why}"


@dataclass(slots=True)
class _Peer:
    """The record of one peer. All but `heard` in time that counts."""

    linked: bool
    heard: float  # anything from itself, on the clock
    turned: float  # a sign of its loop
    spoke: float  # a sign from itself
    lived: float  # a sign of its process, whoever gave it
    unstopped: float  # known not to be stopped: as `lived`, or by a look
    stopped: bool | None = None  # as of the last look since its last sign


class LoopProgress:
    """A watchdog's count: it has to speak when its loop has not turned for so long.

    Time in which the watchdog itself did not run counts for nothing: its process was stopped, or a call held
    the interpreter.

    Args:
        patience: its process's.
        now: the time, in seconds of any steady clock.
    """

    def __init__(self, patience: Patience, now: float) -> None:
        self.every = min(0.5, patience.warn_after / 4, patience.evict_silent_after / 16)
        self._patience = patience
        self._last = now
        self._turns = -1
        self._blocked = 0.0
        self._due = 0.0

    def tick(self, now: float, turns: int) -> float | None:
        """Look at the loop, `every` seconds after the last time or later.

        Args:
            turns: changes whenever the loop turns.

        Returns:
            → seconds since it turned, if it is time to speak; else None.
        """
        passed, self._last = min(max(now - self._last, 0.0), LATE * self.every), now
        if turns != self._turns:
            self._turns, self._blocked, self._due = turns, 0.0, self._patience.next_word(0.0)
            return None
        self._blocked += passed
        if self._blocked < self._due:
            return None
        self._due = self._patience.next_word(self._blocked)
        return self._blocked


class Liveness:
    """One process's view of the others.

    Args:
        patience: the limits.
        now: the time, in seconds of any steady clock.
        visible: whose processes can be checked from here.

    Attributes:
        blocked: whose loops do not turn, and why: what was told to all, or is now.
    """

    def __init__(self, patience: Patience, now: float, visible: Iterable[int] = ()) -> None:
        self.patience = patience
        self.visible = set(visible)
        self.blocked: dict[int, Blocked] = {}
        self._last = now
        self._counted = 0.0  # seconds in which this process turned
        self._peers: dict[int, _Peer] = {}

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────

    def attach(self, rank: int, now: float) -> None:
        """Count a peer's silence from now on: a link is up."""
        counted = self._at(now)
        self._peers[rank] = _Peer(True, now, counted, counted, counted, counted)

    def detach(self, rank: int) -> None:
        """Forget a peer that is lost, has left, or is to be linked anew."""
        self._peers.pop(rank, None)
        self.blocked.pop(rank, None)

    def turned(self, rank: int, now: float) -> None:
        """Note a sign of a peer's loop."""
        self.blocked.pop(rank, None)
        peer = self._spoke(rank, now)
        if peer is not None:
            peer.turned = peer.spoke

    def lives(self, rank: int, now: float) -> None:
        """Note a sign of a peer that does not need its loop."""
        self._spoke(rank, now)

    def checked(self, rank: int, stopped: bool) -> None:
        """Note a look at a peer's process, just after a tick: stopped, or not."""
        peer = self._peers.get(rank)
        if peer is not None:
            peer.stopped = stopped
            if not stopped:
                peer.lived = peer.unstopped = self._counted

    def learn(self, rank: int, state: LoopState, seconds: float, where: str, now: float) -> None:
        """Note what all were told of a peer's loop."""
        peer, known = self._peers.get(rank), self.blocked.get(rank)
        if state is LoopState.runs:
            self.blocked.pop(rank, None)
            if peer is not None and not peer.linked:
                del self._peers[rank]
            return
        if state is LoopState.silent and known is not None:  # who says so knows less
            known.reported = max(known.reported, seconds)
            return
        self.blocked[rank] = Blocked(state, where, now - seconds, seconds)
        if peer is None and rank in self.visible:
            last = self._at(now) - seconds
            peer = self._peers[rank] = _Peer(False, now - seconds, last, last, last, last)
        if peer is not None and state in (LoopState.blocked, LoopState.held):
            peer.lived = peer.unstopped = self._at(now)

    # ── what to do ───────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> tuple[int, ...]:
        """Count a heartbeat, which comes one after the last or later. Returns whom to ping."""
        self._counted, self._last = self._at(now), now
        fresh = self._counted - PATIENCE * self.patience.heartbeat
        return tuple(rank for rank, peer in self._peers.items() if peer.linked and peer.turned >= fresh)

    def unsure(self) -> tuple[int, ...]:
        """The ranks to look at, as of the last tick: those that are silent, and visible."""
        since = self._counted - LATE * self.patience.heartbeat
        return tuple(rank for rank in self.visible if rank in self._peers and self._peers[rank].spoke < since)

    def overdue(self) -> dict[int, str]:
        """The ranks to give up, as of the last tick, and why."""
        patience, found = self.patience, {}
        for rank, peer in self._peers.items():
            if peer.stopped and self._counted - peer.unstopped > patience.evict_after:
                found[rank] = f"it was stopped for {patience.evict_after:g} s (by a signal or a debugger)"
            elif self._counted - peer.lived > patience.evict_silent_after:
                found[rank] = (
                    f"it gave no sign of life for {patience.evict_silent_after:g} s"
                    " (it is stopped, or a call holds its interpreter)"
                )
        return found

    def news(self, now: float) -> list[tuple[int, LoopState, float]]:
        """The news for all, as of the last tick: whose loop does not turn, why, for how many seconds. The
        caller tells itself, too (`learn`)."""
        return [
            (rank, state, self._counted - peer.turned)
            for rank, peer in self._peers.items()
            if (state := self._remark(rank, peer, now)) is not None
        ]

    def silence(self, rank: int, now: float) -> float | None:
        """Seconds since the last sign of life that came from a peer itself, by the clock; None where it is
        not linked."""
        peer = self._peers.get(rank)
        return None if peer is None else max(now - peer.heard, 0.0)

    def quiet(self, rank: int, now: float) -> bool:
        """Whether a linked peer's loop gave no sign for longer than its pings may take: it is busy, most
        likely. Of others it is not known here."""
        peer = self._peers.get(rank)
        if peer is None or not peer.linked:
            return False
        return self._at(now) - peer.turned > SLACK * self.patience.heartbeat

    # ── small things ─────────────────────────────────────────────────────────────────────────────────

    def _spoke(self, rank: int, now: float) -> _Peer | None:
        peer = self._peers.get(rank)
        if peer is not None:
            peer.heard, peer.stopped = now, None
            peer.spoke = peer.lived = peer.unstopped = self._at(now)
        return peer

    def _remark(self, rank: int, peer: _Peer, now: float) -> LoopState | None:
        """The state to tell of a peer now, if any."""
        patience, known = self.patience, self.blocked.get(rank)
        state = (
            LoopState.silent
            if peer.stopped is None
            else LoopState.stopped
            if peer.stopped
            else LoopState.held
        )
        slack = SLACK * patience.heartbeat
        if known is None:
            silent = self._counted - peer.spoke
            return state if silent >= min(patience.warn_after, patience.evict_after / 2) + slack else None
        due = known.seconds(now) >= patience.next_word(known.reported) + slack
        return state if due or (known.state, state) in CHANGES else None

    def _at(self, now: float) -> float:
        """A time, in time that counts."""
        return self._counted + min(max(now - self._last, 0.0), LATE * self.patience.heartbeat)
