"""Who gives a sign of life: whom to ping, and who has been silent for too long. Pure.

A heartbeat is sent by a process's event loop, by nobody else; any message counts as one. So silence says
that the loop does not turn: the process was stopped, or is in a call that holds the interpreter. That the
*host* does not answer is found out sooner, by the kernel: pings make sure that there is always something
for the peer's kernel to acknowledge (`transport.control_link`).

Rules
    1. Silence is counted in time in which this process itself turned. Whoever was stopped, or blocked its
       own loop, learns that from its own late timer; the time that it missed accuses nobody.
    2. What waits in the sockets is read before anybody is judged. That is the shell's duty.
    3. Peers on this host are not pinged while they are silent: there is no network to try, and what they
       must find when they wake up (that they were given up) needs room in their socket.
"""

from __future__ import annotations

LATE = 2.0
"""Heartbeats: a timer that comes later than this was not late because of the loop's usual work."""

PATIENCE = 16
"""Heartbeats without an answer after which a peer on this host is pinged no more until it is heard."""


class _Peer:
    """What is known of one neighbour: when it was heard, on the clock and in time that counts."""

    __slots__ = ("counted", "far", "heard")

    def __init__(self, far: bool, heard: float, counted: float) -> None:
        self.far = far
        self.heard = heard
        self.counted = counted


class Liveness:
    """One process's view of its neighbours.

    Args:
        every: seconds between two pings.
        limit: seconds of silence after which a peer is given up.
        now: the time, in seconds of any steady clock.
    """

    def __init__(self, every: float, limit: float, now: float) -> None:
        self.every = every
        self.limit = limit
        self._last = now
        self._counted = 0.0  # seconds in which this process turned
        self._peers: dict[int, _Peer] = {}

    def attach(self, rank: int, far: bool, now: float) -> None:
        """A link is up; far: to another host. Its silence begins to count now."""
        self._peers[rank] = _Peer(far, now, self._counted + self._turned(now))

    def detach(self, rank: int) -> None:
        """A link is gone."""
        self._peers.pop(rank, None)

    def heard(self, rank: int, now: float) -> None:
        """Something came from a peer's loop."""
        peer = self._peers.get(rank)
        if peer is not None:
            peer.heard = now
            peer.counted = self._counted + self._turned(now)

    def silence(self, rank: int, now: float) -> float | None:
        """Seconds since the last sign of life of a peer, by the clock; None where nobody listens to it."""
        peer = self._peers.get(rank)
        return None if peer is None else max(now - peer.heard, 0.0)

    def tick(self, now: float) -> tuple[int, ...]:
        """The timer fired, `every` seconds after the last time or later. Returns whom to ping."""
        self._counted += self._turned(now)
        self._last = now
        fresh = self._counted - PATIENCE * self.every
        return tuple(rank for rank, peer in self._peers.items() if peer.far or peer.counted >= fresh)

    def _turned(self, now: float) -> float:
        """Of the seconds since the last tick, how many count."""
        return min(max(now - self._last, 0.0), LATE * self.every)

    def overdue(self) -> tuple[int, ...]:
        """Who has been silent for too long, as of the last tick."""
        since = self._counted - self.limit
        return tuple(rank for rank, peer in self._peers.items() if peer.counted < since)
