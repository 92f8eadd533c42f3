"""One process's side of shared memory: its segment and its peers', sleeping, and waking peers.

The loop sleeps in `_end_of_turn`, which runs at most once a turn, and is woken by its bell, an eventfd. In
`await` a Work polls for a while.
"""

# Why it is this way.
#
# Words carry all information, bells only wake. A rank writes words of its own segment and reads those of
# its peers; nothing in shared memory is locked, so a process that dies at any instruction leaves no lock
# behind. A bell that rings without need costs a wake-up and changes nothing. So wherever it is unclear
# whether a peer sleeps, it is rung.
#
# The lost wake-up is what has to be excluded. One side does
#
#     write ASLEEP; look at the peers' words; sleep          (_end_of_turn)
#
# and the other
#
#     write a word; look at the peers' ASLEEP; ring          (ring)
#
# If each looks before the other's store is visible, one sleeps for ever: Dekker's pattern, the one
# reordering that x86-64 does (a load may pass an older store to another place). So a fence stands
# between the store and the load on both sides (`_engine.fence`).
#
# The engine rings with a fence whenever it writes a word that peers wait for, but for the note that an
# operation is finished: peers that wait for its slot are rung when the turn ends (`_end_of_turn`). Rings of
# messages ring without a fence at once (`wake`), which finds nearly every sleeper, and with one then. A loop
# that does not come to its end of turn cannot ring; that is the loop's user's doing, and peers wait for its
# next operation anyway.
#
# `_end_of_turn` is a callback of the loop (call_soon) and not a timer or a selector hook, so that it works on
# every loop: asyncio's and uvloop's. It is queued by whoever writes or waits (`end_of_turn.due`), runs after
# the callbacks that were ready before it, and queues itself again only while awaits poll. A process in
# which nothing waits runs no code of the hub at all; one that was sent a message by a ring always waits for
# the next.
#
# A sleeper is rung once. What stands in ASLEEP counts how often the process went to sleep, and who has rung
# it for that number does not do so again: to write to an eventfd is a call, and on a busy core that call
# lets the other process run at once. Nothing is lost by it. The bell stays rung until the sleeper has heard
# it, and before it sleeps again, under another number, it looks once more.
#
# Sleeping is one word for the whole process and not one for each group. A peer that finishes anything
# rings everybody who sleeps, also for a group that the sleeper does not wait in. To find out who waits
# for what would take longer than to wake one process too many, and could forget somebody.
#
# The bulk thread has a word of its own. The loop may sleep while the thread works, and the other way round,
# and to wake the wrong one would not help. One bell serves both (`shm.segment`): the thread listens to it
# only while it has work, so what is meant for the loop does not wake an idle thread. Whoever hears the bell
# passes on what was meant for the other; to hear it is a call to the system, and so a fence.
#
# The directory maps a group's context to its region. It is searched by peers, and written by the owner
# only: the offset first and the context last, so that whoever finds the context finds its offset. An
# entry is taken again in the order in which groups went, so that peers who look late still learn that a
# group was here.

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from aiodist import _engine
from aiodist.backends.threads import post
from aiodist.base.environment.cores import cores
from aiodist.base.errors import UsageError
from aiodist.net.turn import Turn
from aiodist.transport.link import Waiting
from aiodist.transport.shm.heap import PAGE
from aiodist.transport.shm.segment import HEAD, RING_BULK, Holder, PeerSegment, Segment

ASLEEP_LOOP, ASLEEP_BULK = 512, 520
"""Words of a segment: its loop sleeps, its bulk thread sleeps. 0, or which sleep it is, counted from 1. Each
has a cache line, after the nonce's page."""

_DIRECTORY, _ENTRIES = 8192, 4096  # (context, offset of its region) from here on; the lowest bit: it has left
assert _DIRECTORY + _ENTRIES * 16 == HEAD

_GONE = 1  # the offset of a group that this process has left, and of which nothing is here

_SPINS = 8  # looks at peers' words before the core is offered to others
_CROWDED = 4
"""Times as long is polled where ranks share cores, still within law 7. Peers that poll offer their cores, and
to be woken takes longer: on 2 cores an all_reduce of 8 B on 4 ranks takes 9 to 26 µs so, 14 to 60 without."""

_LOOKS = 4  # groups that were left are looked at when memory is taken: a few at a time, whatever their number

_KEPT = 8  # this part of a segment is kept for operations and new groups: users' arrays do not get it

Array = np.ndarray[Any, Any]

_NOTHING, _NO_BYTES, _NO_WORDS = memoryview(b""), np.empty(0, np.uint8), np.empty(0, np.uint64)


def supported() -> bool:
    """Whether ranks of one host can share memory: with the compiled engine."""
    return _engine.compiled is not None


def engine() -> _engine.Compiled:
    """The compiled engine, without which no memory is shared."""
    assert _engine.compiled is not None
    return _engine.compiled


class PeerMemory:
    """A peer's segment, as words and bytes.

    Attributes:
        shared: all of it, for the engine.
        words: all of it as 64-bit words, read-only.
        bytes: all of it as an array.
    """

    __slots__ = ("_contexts", "_offsets", "bytes", "peer_segment", "shared", "view", "words")

    def __init__(self, peer_segment: PeerSegment) -> None:
        self.peer_segment = peer_segment
        self.view = peer_segment.view
        whole = len(self.view) // 8 * 8
        self.words = self.view[:whole].cast("Q")
        self.bytes: Array = np.frombuffer(self.view, np.uint8)
        table = self.bytes[_DIRECTORY:HEAD].view(np.uint64)
        self._contexts, self._offsets = table[0::2], table[1::2]
        self.shared = engine().Memory(self.view, peer_segment.bell, RING_BULK)

    def close(self) -> None:
        """Let go of the memory."""
        self.shared.release()
        self.view, self.words, self.bytes = _NOTHING, _NOTHING, _NO_BYTES
        self._contexts = self._offsets = _NO_WORDS

    def find(self, context: int) -> int:
        """The directory's entry of a group, -1 where it is not made yet. A search: remember what it finds."""
        found = np.flatnonzero(self._contexts == np.uint64(context))
        engine().fence()  # its offset was written before
        return int(found[0]) if len(found) else -1

    def offset(self, context: int, entry: int) -> int:
        """The start of a group's region, 0 where it is gone or was never made. The entry may be another's
        by now: it was taken from the group before the offset changed."""
        at = int(self._offsets[entry]) & ~1
        engine().fence()
        return at if int(self._contexts[entry]) == context else 0

    def has_left(self, context: int, entry: int) -> bool:
        """Whether the peer has left a group whose entry was found before."""
        return int(self._contexts[entry]) != context or bool(int(self._offsets[entry]) & 1)


class _Left(NamedTuple):
    """A group that this process has left: clears it away if nobody reads it any more, and returns whether it
    did; or releases its memory unasked."""

    cleared: Callable[[], bool]
    release: Callable[[], None]


class Hub:
    """The hub of one process; see the module. It runs in the loop's thread, but for `free`
    and `call`.

    Args:
        segment: this process's memory and bells.
        peer_segments: of this host, by global rank.
        loop: the event loop.
        local_ranks: processes of this job on this host, this one included.
        poll: seconds of polling in a turn of the loop, `_CROWDED` times as many where there are more ranks
            than processors; 0: none.

    Attributes:
        room: bytes of the segment that there are to give out.
        turn: the present turn of the loop.
        end_of_turn: its end, and what polls until then, for the engine, too.
        shared: all of the segment, for the engine.
        boards: groups' memory; asked for what is idle where there is no room, as the segment's holders are.
    """

    def __init__(
        self,
        segment: Segment,
        peer_segments: Mapping[int, PeerSegment],
        loop: asyncio.AbstractEventLoop,
        local_ranks: int,
        poll: float,
    ) -> None:
        self.segment = segment
        self.view = segment.view
        whole = len(self.view) // 8 * 8
        self.words = self.view[:whole].cast("Q")
        self.bytes: Array = np.frombuffer(self.view, np.uint8)
        self.address = self.bytes.__array_interface__["data"][0]
        self.shared = engine().Memory(self.view, writable=True)
        self.memories = {rank: PeerMemory(peer_segment) for rank, peer_segment in peer_segments.items()}
        self.turn = Turn.of(loop)
        crowded = local_ranks > cores()
        looks = 0 if not poll else 1 if crowded else _SPINS
        self.end_of_turn = engine().EndOfTurn(self.turn, poll * (_CROWDED if crowded else 1), looks)
        self._loop = loop
        self._heap = segment.heap
        self.room = len(self.view) - HEAD
        self._users_stop = len(self.view) - self.room // _KEPT
        self.boards: set[Holder] = set()
        segment.on_idle = self._room_again
        self._short = False  # an operation waits for room
        self._returned: list[int] = []  # by finalizers, which may run anywhere
        self.waiting: set[Waiting] = set()  # groups, and the rings of links
        self._entries: dict[int, int] = {}
        self.leases = 0  # arrays in the segment that are held
        self._reusable: deque[int] = deque()  # entries of groups that are gone, the longest gone first
        self._fence = engine().fence
        self._sleeps = 0
        self._left_groups: deque[_Left] = deque()  # perhaps still read
        table = self.bytes[_DIRECTORY:HEAD].view(np.uint64)
        self._contexts, self._offsets = table[0::2], table[1::2]
        loop.add_reader(segment.bell, self._rung)

    # ── memory ───────────────────────────────────────────────────────────────────────────────────────

    def take(self, nbytes: int, stop: int | None = None) -> int:
        """A piece of the segment, below `stop` if that is given. It begins on a cache line; a large one lies
        well for copies (`heap.APART`).

        Raises:
            MemoryError: there is no room, also where all that is idle is freed.
        """
        self._clear_away()
        take = self._heap.take_large if nbytes >= PAGE else self._heap.take
        try:
            return take(nbytes, stop=stop)
        except MemoryError:
            for holder in (*self.boards, *self.segment.holders):
                holder.reclaim()
            self._clear_away(len(self._left_groups))
            return take(nbytes, stop=stop)

    def stage(self, nbytes: int) -> int:
        """A piece for an operation's blocks; 0 where there is no room now. When a piece comes back the groups
        that wait (`watch`) are asked to go on."""
        for _ in range(2):
            try:
                return self.take(nbytes)
            except MemoryError:
                self._short = True  # said before the last look: what another thread gives back is not missed
        return 0

    def spare(self, nbytes: int) -> int:
        """A piece that is kept in reserve; 0 where others would soon need it."""
        if self.taken() + nbytes > self.room * 3 // 4:
            return 0
        return self.stage(nbytes)

    def free(self, at: int) -> None:
        """Give a piece back. From any thread: a finalizer may run anywhere."""
        self._returned.append(at)
        if self._short:
            self._short = False
            self.call(self.end_of_turn_soon)

    def _room_again(self) -> None:
        """Have operations that wait for room look again."""
        if self._short:
            self._short = False
            self.end_of_turn_soon()

    def taken(self) -> int:
        """Bytes that are given out."""
        self._clear_away()
        return self._heap.taken()

    def statistics(self) -> dict[str, int]:
        """Counts of the segment as of now: see `ProcessGroup.statistics`."""
        return {
            "bytes": self.room,
            "taken_bytes": self.taken(),
            "arrays": self.leases,
            "waiting": len(self.waiting),
        }

    def _clear_away(self, most: int = _LOOKS) -> None:
        for _ in range(min(most, len(self._left_groups))):
            group = self._left_groups.popleft()
            if not group.cleared():
                self._left_groups.append(group)
        while self._returned:
            self._heap.free(self._returned.pop())

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A new array in the segment, freed with its last view.

        Raises:
            UsageError: there is no room.
        """
        count = 1
        for extent in shape:
            count *= extent
        nbytes = count * dtype.itemsize
        try:
            at = self.take(nbytes, self._users_stop)
        except MemoryError:
            raise UsageError(
                f"no room for {nbytes} bytes in shared memory: {self.taken()} of {self.room} are taken, and"
                f" {len(self.view) - self._users_stop} are kept for operations",
                hint="Drop arrays of pg.empty that are done with, or use ordinary ones; ulimit -v limits it",
            ) from None
        lease = _Lease(self, at, nbytes)
        return np.asarray(lease).view(dtype)[:count].reshape(shape)

    # ── the directory ────────────────────────────────────────────────────────────────────────────────

    def announce(self, context: int, at: int) -> None:
        """Enter a group's region in the directory.

        Raises:
            MemoryError: the directory is full.
        """
        free = np.flatnonzero(self._contexts == 0)
        if len(free):
            entry = int(free[0])
        elif self._reusable:
            entry = self._reusable.popleft()
        else:
            raise MemoryError(f"more than {_ENTRIES} are open")
        self._entries[context] = entry
        self._contexts[entry] = 0
        self._fence()
        self._offsets[entry] = at
        self._fence()
        self._contexts[entry] = context
        self.ring(self.memories.values())  # peers that came before us may wait for it

    def will_not_join(self, context: int) -> None:
        """Note that this process never makes a group: peers that made it find that here, and that this
        process does not read their regions. They find nothing where the directory is full."""
        if context not in self._entries:
            with contextlib.suppress(MemoryError):
                self.announce(context, _GONE)
                self._reusable.append(self._entries.pop(context))

    def leave(self, context: int, abandoned: Callable[[], bool], release: Callable[[], None]) -> None:
        """Leave a group: its region stays until nobody reads it any more.

        Args:
            context: names the group.
            abandoned: whether that is so now. Asked where memory is needed.
            release: called once, when it is so or this process's memory is closed.
        """
        entry = self._entries.pop(context)
        if not self.words:  # closed: a world that was abandoned went before its group
            release()
            return
        self._offsets[entry] |= np.uint64(1)

        def cleared() -> bool:
            if not abandoned():
                return False
            self._offsets[entry] = _GONE  # peers that look later must know that it was here
            self._reusable.append(entry)
            release()
            return True

        self._left_groups.append(_Left(cleared, release))
        self.ring(self.memories.values())  # peers that wait for room may free a region of their own now

    # ── polling, sleeping, ringing ───────────────────────────────────────────────────────────────────

    def segment_bytes(self, ranks: Iterable[int]) -> int:
        """The size of the smallest segment of some ranks of this host; all of them find the same."""
        sizes = [len(self.memories[rank].view) for rank in ranks if rank in self.memories]
        return min([len(self.view), *sizes])

    def ring(self, memories: Any) -> None:
        """Wake peers whose loop sleeps: a word was written that they may wait for."""
        self._fence()
        for memory in memories:
            memory.shared.wake_loop()

    def knows(self, rank: int) -> bool:
        """Whether a rank is a local peer (`link.Waking`)."""
        return rank in self.memories

    def wake(self, rank: int) -> None:
        """Wake a peer if its loop sleeps: something was written that it may wait for (`link.Waking`)."""
        memory = self.memories.get(rank)
        if memory is not None:
            memory.shared.wake_loop()
        self.end_of_turn_soon()  # which looks again, with a fence

    def call(self, function: Callable[..., Any], *args: Any) -> None:
        """Have the loop call something; from any thread. A closed loop is told nothing."""
        post(self._loop, function, *args)

    def watch(self, waiting: Waiting) -> None:
        """Drive a group, or a link, in which something waits."""
        self.waiting.add(waiting)
        self.end_of_turn_soon()

    def end_of_turn_soon(self) -> None:
        """Make sure that this turn ends with a look around."""
        if not self.end_of_turn.due:
            self.end_of_turn.due = True
            self._loop.call_soon(self._end_of_turn)

    def awake(self) -> None:
        """Have nobody ring until this turn of the loop ends: the caller polls."""
        if not self.end_of_turn.polled:
            self.end_of_turn.polled = True
            self.end_of_turn_soon()
            if self.words[ASLEEP_LOOP]:
                self.words[ASLEEP_LOOP] = 0

    def _end_of_turn(self) -> None:
        """Stop polling, once a turn, and sleep if nothing more comes."""
        self.end_of_turn.due = False
        polled, self.end_of_turn.polled = self.end_of_turn.polled, False
        if not self.words:
            return  # closed meanwhile
        self.ring(self.memories.values())  # for what was finished in this turn without ringing
        if not self._progress():
            return
        if polled:  # an await polls, and will in the next turn
            self.end_of_turn_soon()
            return
        self._fall_asleep()
        if not self._progress():
            self.words[ASLEEP_LOOP] = 0
        # What rings wrote meanwhile was rung without a fence (`wake`). A peer that fell asleep then may have
        # missed it, and nobody else would wake it.
        self.ring(self.memories.values())

    def _rung(self) -> None:
        loop, bulk = self.segment.hear()
        if bulk:
            self.segment.wake_thread()
        if loop:
            self.woken()

    def woken(self) -> None:
        """Go on: the bell was rung for the loop."""
        if not self.words:
            return  # closed meanwhile
        self.words[ASLEEP_LOOP] = 0
        if self._progress() and not self.end_of_turn.due:
            # Nothing was there for it. Had it rung in turn, two who wait would never sleep.
            self._fall_asleep()
            if not self._progress():
                self.words[ASLEEP_LOOP] = 0

    def _fall_asleep(self) -> None:
        """Say that this loop is about to sleep. A look around has to follow."""
        self._sleeps += 1
        self.words[ASLEEP_LOOP] = self._sleeps
        self._fence()

    def _progress(self) -> bool:
        """Go on with all → whether anything still waits."""
        for waiting in list(self.waiting):
            try:
                waits = waiting.progress()
            except Exception as error:  # of one: the others go on
                waiting.failed(error)
                waits = False
            if not waits:
                self.waiting.discard(waiting)
        return bool(self.waiting)

    def close(self) -> None:
        """Stop listening, and let go of the memory: it stays mapped as long as anybody looks."""
        self._loop.remove_reader(self.segment.bell)
        self.segment.on_idle = lambda: None
        del self.segment  # or an array of a user's, which knows the hub, would keep it mapped for ever
        self.waiting.clear()
        self.boards.clear()
        for _, release in self._left_groups:
            release()
        self._left_groups.clear()
        for memory in self.memories.values():
            memory.close()
        self.memories.clear()
        self.shared.release()
        self.view, self.words, self.bytes = _NOTHING, _NOTHING, _NO_BYTES
        self._contexts = self._offsets = _NO_WORDS


class _Lease:
    """The base of an array: it keeps a piece of the segment while the array is on it."""

    __slots__ = ("__array_interface__", "_at", "_hub", "_memory")

    def __init__(self, hub: Hub, at: int, nbytes: int) -> None:
        self._hub = hub
        self._at = at
        hub.leases += 1
        self._memory = hub.view[at : at + nbytes]  # the segment stays mapped as long as this exists
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (hub.address + at, False),
        }

    def __del__(self) -> None:
        self._memory.release()
        self._hub.leases -= 1
        self._hub.free(self._at)
