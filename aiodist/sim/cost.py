"""How long collectives and messages take: rounds of messages over shared links. Pure: no clock, no loop.

A rank enters a round when its last one is over. A message goes when its sender has entered the round and,
where it is large, its receiver has said so, by a short message. It takes the software's time, then its bytes
share the two links with the round's other messages, then it travels for the links' latency; a large one finds
its receiver asleep. A round of all ranks is a handful of NumPy operations. Where rounds are alike, and each
moves all times and all links on by the same, the rest follows at once.

Operations that are under way together share links: a link is a queue of work that is never idle while there
is some, so what they take together is right; each one waits for others' bytes, for at most as many as its own
for each of them, since real ones take turns.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from aiodist.sim.constants import Constants
from aiodist.sim.network import Floats, Ints, Network
from aiodist.sim.rounds import SimPlan, SimRound
from aiodist.transport.base import EAGER_MESSAGE

HEADER = 96 + 66
"""Bytes of a message beside its own: its frame's header, and those of the packets (`wire.frame`, TCP)."""

_HOPS = 2  # messages that a large one takes: the receiver's word that it may come, and itself

_STEADY = 1e-9  # of a round's time: what floating-point sums lose


@dataclass(slots=True)
class WireLoad:
    """The links of all hosts, in one direction.

    Args:
        free: when each is through with what it has to carry, if nothing more comes.
        work: seconds for which each has worked.
    """

    free: Floats
    work: Floats

    def copy(self) -> WireLoad:
        """Another one with the same."""
        return WireLoad(self.free.copy(), self.work.copy())

    def go_on(self, before: WireLoad, each: float, left: int) -> None:
        """Have what went on since `before` happen so many times more, each so many seconds later."""
        more = self.work - before.work
        self.free += np.where(more > 0, each * left, 0.0)
        self.work += more * left

    def moved(self, before: WireLoad, each: float) -> bool:
        """Whether all links that worked since `before` are through later by the same."""
        used = self.work > before.work
        if not used.any():
            return True
        return float(np.abs((self.free - before.free)[used] - each).max()) <= _STEADY * each

    def carry(
        self, hosts: Ints, wire: Floats, began: Floats, rate: Floats, credit: Floats
    ) -> tuple[Floats, Floats]:
        """Put messages on links, together → when each one's link is through with all, and the seconds that a
        burst spares it."""
        total = np.bincount(hosts, wire, self.free.size) / rate
        first = np.full(self.free.size, math.inf)
        np.minimum.at(first, hosts, began)
        used = total > 0
        first[~used] = 0.0
        start = np.maximum(self.free, first - credit)
        spared = np.where(used, np.maximum(first - start, 0.0), 0.0)
        self.free = np.where(used, start + total, self.free)
        self.work = self.work + total
        return np.maximum(self.free[hosts], began), spared[hosts]


@dataclass(slots=True)
class Wires:
    """What carries an operation's bytes, and does its work.

    Args:
        up, down: the hosts' links, outwards and inwards.
        cores, labour: as `WireLoad`, of the cores that all share, if they do.
    """

    up: WireLoad
    down: WireLoad
    cores: float = -math.inf
    labour: float = 0.0

    def copy(self) -> Wires:
        """Another one with the same."""
        return Wires(self.up.copy(), self.down.copy(), self.cores, self.labour)

    def go_on(self, before: Wires, each: float, left: int) -> None:
        """As `WireLoad.go_on`."""
        self.up.go_on(before.up, each, left)
        self.down.go_on(before.down, each, left)
        if self.labour > before.labour:
            self.cores += each * left
            self.labour += (self.labour - before.labour) * left

    def moved(self, before: Wires, each: float) -> bool:
        """As `WireLoad.moved`."""
        if self.labour > before.labour and abs(self.cores - before.cores - each) > _STEADY * each:
            return False
        return self.up.moved(before.up, each) and self.down.moved(before.down, each)


@dataclass(frozen=True, slots=True)
class Ends:
    """How a collective ends.

    Args:
        at: seconds, of each member; infinite while it depends on one that has not come.
        busy: seconds that each host's link works for it, outwards and inwards together at most.
        slowest: the host whose link works longest for it; -1: none does.
    """

    at: Floats
    busy: float = 0.0
    slowest: int = -1


class Fabric:
    """The links of a network, and what they still have to carry.

    Args:
        network: hosts and links.
        constants: what the software costs.
    """

    def __init__(self, network: Network, constants: Constants) -> None:
        self.network = network
        self.constants = constants
        self.host_of: Ints = np.array(network.host_of, np.int64)
        self.rate: Floats = np.array([link.bandwidth * network.payload for link in network.links])
        self.latency: Floats = np.array([link.latency for link in network.links])
        self.credit: Floats = np.array([link.burst / link.bandwidth for link in network.links])
        local = network.local
        self.local = constants.local if local is None else local.latency
        self.local_byte = constants.local_byte if local is None else 1 / local.bandwidth
        hosts = len(network.links)
        never: Floats = np.full(hosts, -math.inf)
        self.wires = Wires(WireLoad(never, np.zeros(hosts)), WireLoad(never.copy(), np.zeros(hosts)))
        self._flying: list[float] = []

    # ── one round ────────────────────────────────────────────────────────────────────────────────────

    def step(self, one: SimRound, nbytes: Floats, ranks: Ints, at: Floats, wires: Wires) -> Floats:
        """Carry out one round.

        Args:
            one: its messages, among the members.
            nbytes: of each.
            ranks: global rank of each member.
            at: when each member enters it; infinite: nobody knows.
            wires: of its links; moved on.

        Returns:
            When each member is through with it.
        """
        const, src, dst = self.constants, one.src, one.dst
        from_host, to_host = self.host_of[ranks[src]], self.host_of[ranks[dst]]
        far = from_host != to_host
        travel = np.where(far, self.latency[from_host] + self.latency[to_host], 0.0)
        large = nbytes > EAGER_MESSAGE
        hop = np.where(far, const.round, self.local)
        wake = const.wake
        if self.network.cores:  # they take turns
            turns = self.network.turns(np.unique(np.concatenate((src, dst))).size)
            hop, wake = hop * turns, wake * turns
        known = at[dst] + np.where(far, hop + travel, 0.0)
        ready = np.where(large, np.maximum(at[src], known), at[src]) + hop
        after = at.copy()
        if not np.isfinite(ready).all():
            never = ~np.isfinite(ready)
            after[src[never & large]] = math.inf
            after[dst[never]] = math.inf
            keep = ~never
            src, dst, nbytes, ready = src[keep], dst[keep], nbytes[keep], ready[keep]
            far, travel, large = far[keep], travel[keep], large[keep]
            from_host, to_host, hop = from_host[keep], to_host[keep], hop[keep]
            if not src.size:
                return after
        done = ready.copy()
        work = np.where(far, const.byte, self.local_byte) * nbytes  # of either end
        if far.any():
            wire = nbytes[far] + HEADER
            outward, inward = from_host[far], to_host[far]
            began = ready[far]
            alone = wire / np.minimum(self.rate[outward], self.rate[inward])
            up, spared = wires.up.carry(outward, wire, began, self.rate, self.credit)
            down, saved = wires.down.carry(inward, wire, began, self.rate, self.credit)
            done[far] = np.maximum(np.maximum(up, down), began + alone - np.minimum(spared, saved))
        size = at.size
        sending = np.bincount(src, work, size)
        taking = np.bincount(dst, work, size)
        done = np.maximum(done, ready + work)
        if self.network.cores:
            overhead = float((hop * np.where(large & far, _HOPS, 1)).sum()) / 2
            total = (2 * float(work.sum()) + overhead) / self.network.cores
            wires.cores = max(wires.cores, float(ready.min())) + total
            wires.labour += total
            done = np.maximum(done, wires.cores)
        # What was sent at once needs no receiver; what is large is through when the receiver's link is.
        np.maximum.at(after, src, np.where(large, done, at[src] + hop))
        np.maximum.at(after, dst, done + travel + np.where(large & far, wake, 0.0))
        counts = np.maximum(np.bincount(src, minlength=size), np.bincount(dst, minlength=size))
        more = np.maximum(counts - 1, 0) * const.message
        first = at + np.where(counts > 0, const.round, 0.0) if far.all() else at
        through: Floats = np.maximum(after, first + np.maximum(sending, taking)) + more
        return through

    # ── a collective ─────────────────────────────────────────────────────────────────────────────────

    def run(self, plan: SimPlan, chunks: Floats, ranks: Ints, at: Floats, wires: Wires) -> Floats:
        """Carry out all rounds of a plan.

        Args:
            plan: the algorithm.
            chunks: bytes of each chunk; with two buffers of the part from each member (first axis) for each,
                or for
                all alike: of one part, in an array of one.
            ranks: global rank of each member.
            at: when each member comes.
            wires: moved on.
        """
        sums = (
            np.concatenate(([0.0], np.cumsum(np.concatenate((chunks, chunks)))))
            if chunks.ndim == 1
            else chunks
        )
        mean = np.array([float(chunks.mean())]) if chunks.size else np.zeros(1)
        begun, over = at, at
        messages = 0
        for one in plan.rounds():
            if plan.two_buffers:
                nbytes = (
                    np.broadcast_to(chunks, one.src.shape) if chunks.size == 1 else chunks[one.src, one.dst]
                )
            elif one.times > 1:
                nbytes = np.broadcast_to(mean, one.src.shape)
            else:
                nbytes = sums[one.stop] - sums[one.start]
            if plan.at_once:
                messages += 1
                over = np.maximum(over, self.step(one, nbytes, ranks, begun, wires))
            else:
                over = self._repeat(one, nbytes, ranks, over, wires)
        return over + max(0, messages - 1) * self.constants.message

    def _repeat(self, one: SimRound, nbytes: Floats, ranks: Ints, at: Floats, wires: Wires) -> Floats:
        """Carry out a round as often as it says."""
        left = one.times
        while left:
            before = wires.copy() if left > 1 else wires
            after = self.step(one, nbytes, ranks, at, wires)
            left -= 1
            if left and np.isfinite(after).all():
                more = after - at
                each = float(more[0])
                if float(np.abs(more - each).max()) <= _STEADY * each and wires.moved(before, each):
                    wires.go_on(before, each, left)
                    return after + each * left
            at = after
        return at

    # ── what is under way together ───────────────────────────────────────────────────────────────────

    def begin(self, at: float) -> Wires:
        """Wires for an operation alone, that begins then: what they carry for others is not in the way."""
        wires, none = self.wires, np.zeros(self.rate.size)
        return Wires(
            WireLoad(np.minimum(wires.up.free, at), none),
            WireLoad(np.minimum(wires.down.free, at), none),
            min(wires.cores, at),
        )

    def contended(self, at: float, over: Wires, ends: Floats, commit: bool) -> Ends:
        """How an operation ends that has been worked out alone.

        Args:
            at: when it began.
            over: its wires, afterwards.
            ends: of its members, alone.
            commit: it has its time now: what comes later waits for it.
        """
        while self._flying and self._flying[0] <= at:
            heapq.heappop(self._flying)
        others = len(self._flying)
        delay, busy, slowest = 0.0, 0.0, -1
        for ours, its in ((self.wires.up, over.up), (self.wires.down, over.down)):
            host = int(its.work.argmax())
            if its.work[host] <= 0:
                continue
            if its.work[host] > busy:
                busy, slowest = float(its.work[host]), host
            late = np.maximum(ours.free, at) + its.work - its.free
            late = np.where(its.work > 0, np.minimum(late, others * its.work), 0.0)
            delay = max(delay, float(late.max()))
            if commit:
                start = np.maximum(ours.free, at - self.credit)
                ours.free = np.where(its.work > 0, start + its.work, ours.free)
                ours.work = ours.work + its.work
        if over.labour:
            delay = max(
                delay, min(max(self.wires.cores, at) + over.labour - over.cores, others * over.labour)
            )
            if commit:
                self.wires.cores = max(self.wires.cores, at) + over.labour
                self.wires.labour += over.labour
        found = ends + max(delay, 0.0)
        if commit and np.isfinite(found).all():
            heapq.heappush(self._flying, float(found.max()))
        return Ends(found, busy, slowest)

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────

    def message(self, src: int, dst: int, nbytes: int, sent: float, posted: float) -> tuple[float, float]:
        """When a message's send and receive end.

        Args:
            src, dst: global ranks.
            nbytes: its size.
            sent, posted: when the send and the receive were issued; `posted` infinite: it is not, yet.
        """
        ranks = np.array([src, dst])
        one = SimRound(np.array([0]), np.array([1]), np.array([0]), np.array([1]))
        at = np.array([sent, posted])
        begun = sent if math.isinf(posted) else max(sent, posted)
        wires = self.begin(begun)
        ends = self.step(one, np.array([float(nbytes)]), ranks, at, wires)
        found = self.contended(begun, wires, ends, bool(np.isfinite(ends).all()))
        if nbytes <= EAGER_MESSAGE:
            return float(ends[0]), float(found.at[1])
        return float(found.at[0]), float(found.at[1])


def parts(nbytes: float, chunks: int, itemsize: int = 1) -> Floats:
    """The bytes of each chunk of a buffer, as `schedules.steps.chunk_bounds` cuts it."""
    count = int(nbytes) // max(1, itemsize)
    base, extra = divmod(count, chunks)
    sizes = np.full(chunks, float(base * itemsize))
    sizes[:extra] += itemsize
    return sizes
