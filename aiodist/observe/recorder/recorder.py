"""Writing down what a rank does, at a cost that nobody notices.

An operation costs 0.25 µs: a tuple in a deque; one for which the loop sleeps 0.6 µs more. What is always the
same (op, dtype, shape, the line of the program) is written as text once, and has a number from then on. All
that gets into memory that others can read when a thread says so (`flush`), ten times a second: so what is
read of a process that has died, or is stuck in a call that holds its interpreter, is 0.1 s old at most. That
thread describes sorts of operations, too: so the first of a sort costs hardly more than the next.
"""

from __future__ import annotations

import json
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import takewhile
from operator import itemgetter
from time import sleep
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from aiodist.observe.recorder.layout import (
    CLOCK,
    CLOCK_PLACES,
    CLOCKS_AT,
    ENDED,
    HEADER,
    ISSUED,
    LEFT_AT,
    LINK,
    LINK_PLACES,
    LINKS_AT,
    MAGIC,
    NUMBER,
    PENDING_AT,
    PENDING_PLACES,
    PLACE,
    RANK_AT,
    RING_AT,
    RING_PLACES,
    SORT,
    SUM,
    SUM_PLACES,
    SUMS_AT,
    TEXT_BYTES,
    TEXT_BYTES_AT,
    TURN_AT,
    VITALS,
    VITALS_AT,
    text_at,
)
from aiodist.observe.recorder.lines import Lines

if TYPE_CHECKING:
    from aiodist.base.types import Call
    from aiodist.net.traffic import Traffic

MOST_SORTS = 500  # of one group that are told apart
OTHERS = 1  # the number of the group by which operations are counted that have no sum of their own
MOST_OTHERS = 16  # their sorts, one for each kind
MOST_AT_ONCE = 256  # operations that `flush` writes: it holds the interpreter meanwhile
DESCRIBED_AT_ONCE = 16  # sorts that it describes, likewise
MOST_EVENTS = 200  # that are kept, the first ones; and as many troubles
WASTE = TEXT_BYTES // 4  # bytes of closed groups for which the text is written anew
MOST_UNWRITTEN = 1000  # lines that wait for that
MOST_PAST = 60  # sorts by which closed groups are counted
RESERVED = 16 * 1024  # bytes of text that groups, sorts and lines leave to what goes wrong
MOST_LOST = 64  # ranks that are told to be gone
LONGEST = 500  # characters of an event
LATELY = 10.0  # seconds for which the longest delay of the loop is told

_put_place = struct.Struct("<QQQ").pack_into
_put_count = struct.Struct("<Q").pack_into
_get_count = struct.Struct("<Q").unpack_from
_put_time = struct.Struct("<d").pack_into

Entry = tuple["CallSite", int, int, float]
"""An operation: its sort, its number, the number of its line, when it was issued."""

Pending = list[Any]
"""One for which the loop has slept: the same, and the other times that `layout.PLACE` has."""


def _no_parts(_number: int) -> int:
    return 0


def _called(call: Call) -> str:
    return call.name if call.detail else ""


def _key(call: Call, tag: int) -> Any:
    return (call.kind, _called(call), call.dtype.num, call.shape, call.reduce, call.root, tag)


class CallSite:
    """Operations of a group that are alike but for their number.

    Attributes:
        mark: its number.
        nbytes: of the tensor that ranks agree on.
        description: what is written of it.
        parts: says how many numbers up to one are further steps of the user's calls.
        track, call, tag: whose it is, and of one of its operations, until it is described and has its number.
        code, at, line: where one was issued last, as `Lines.known`, and the number of that line.
        others: the sort by which it is counted; None: it has a sum of its own.
        uses, slept, failed, waited, moved, total: as in `layout.SUM`, as far as `flush` has seen them.
    """

    __slots__ = (
        *(
            "at",
            "call",
            "code",
            "failed",
            "line",
            "mark",
            "moved",
            "nbytes",
            "others",
            "parts",
            "slept",
            "description",
        ),
        *("tag", "total", "track", "uses", "waited"),
    )

    def __init__(
        self,
        mark: int,
        nbytes: int,
        description: Sequence[Any] = (),
        parts: Callable[[int], int] = _no_parts,
        track: Track | None = None,
        call: Call | None = None,
        tag: int = 0,
    ) -> None:
        self.mark = mark
        self.parts = parts
        self.code: CodeType | None = None
        self.at = self.line = 0
        self.nbytes = nbytes
        self.description = description
        self.track, self.call, self.tag = track, call, tag
        self.others: CallSite | None = None
        self.uses = self.slept = self.failed = self.total = 0
        self.waited = self.moved = 0.0

    def end(self, record: Pending) -> None:
        """Add an operation that has ended."""
        *_, issued, _pending, arrived, _first, ended = record
        self.slept += 1
        self.failed += ended < 0
        begun = arrived or issued
        self.waited += begun - issued
        self.moved += max(0.0, abs(ended) - begun)

    def add(self, other: CallSite) -> None:
        """Count the other's operations, too."""
        self.uses += other.uses
        self.slept += other.slept
        self.failed += other.failed
        self.waited += other.waited
        self.moved += other.moved
        self.total += other.total

    @property
    def counted(self) -> CallSite:
        """The sort by which it is counted."""
        return self.others or self

    @property
    def has_sum(self) -> bool:
        """Whether there is a place for its sum."""
        return 0 < self.mark < SUM_PLACES

    def sum(self) -> bytes:
        """The sum over the operations of this sort, as `layout.SUM` has it."""
        return SUM.pack(self.uses, self.slept, self.failed, self.waited, self.moved, self.total)


_NO_CLOCK = (0, 0.0, 0.0, 0.0, 0.0)
_NONE: Pending = [CallSite(0, 0), 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0]


class Recorder:
    """The record of one rank.

    Args:
        memory: `layout.SIZE` bytes, all zero.
        pid: of the process.
        clock: seconds of the monotonic clock.
        wall: the time of day that belongs to its present time, in seconds since 1970.

    Attributes:
        lines: of the program.
        sorts: how many sorts of operations there were at once, of all groups.
        kept: the last operations.
        pending: those that the loop sleeps for, by their ids.
        troubled: a group has broken.
    """

    def __init__(self, memory: Any, pid: int, clock: Callable[[], float], wall: float) -> None:
        self.clock = clock
        self.lines = Lines(lambda *line: self._write("line", *line))
        self.sorts = MOST_OTHERS  # the first numbers are kept for these
        self._others: dict[str, CallSite] = {}
        self.kept: deque[Entry] = deque(maxlen=RING_PLACES)
        self.pending: dict[int, Pending] = {}
        self._over: deque[Pending] = deque(maxlen=RING_PLACES)
        self.troubled = False
        self._lost_in = -1
        self._memory = memoryview(memory)
        self._gate = threading.Lock()
        self._unwritten: deque[tuple[Track | None, bytes]] = deque()
        self._texts: list[tuple[Track | None, bytes]] = []  # as written, with whose they are
        self._about: dict[str, Any] = {}
        self._turn = 0
        self.waste = 0  # bytes of text that need not stay
        self._free: list[int] = []  # numbers of sorts that are gone, as a heap: the low ones have sums
        self._past: dict[str, CallSite] = {}  # of groups that are gone
        self._next = 0
        self._flushed = self._flushed_end = 0.0
        self._shown = self._linked = 0
        self._groups = OTHERS
        self._text = 0
        self._issued = self._failed = 0
        self._events = [0, 0]
        self._turns, self._turned = 0, 0.0
        self._late: deque[tuple[float, float]] = deque()
        now = clock()
        HEADER.pack_into(self._memory, 0, MAGIC, pid, 0, 0, 0, wall - now, 0, now, 0.0)

    def take_part(self, rank: int, size: int, epoch: int) -> None:
        """Note the process's place in an epoch of its job."""
        _put_place(self._memory, RANK_AT, rank, size, epoch)

    def track(self, name: str, epoch: int, ranks: Sequence[int], twin: int = 0) -> Track:
        """The part of a group.

        Args:
            name, epoch: of it.
            ranks: the global ranks of its members.
            twin: what tells it from others of that name, epoch and ranks: the same number at all members.
        """
        self._groups += 1
        track = Track(self, self._groups, epoch)
        span = isinstance(ranks, range) or list(ranks) == list(range(ranks[0], ranks[0] + len(ranks)))
        members = [ranks[0], len(ranks)] if span else list(ranks)
        how = "span" if span else "list"
        self._write("group", self._groups, name, epoch, how, members, twin, owner=track)
        return track

    def tell(self, **about: Any) -> None:
        """Write what is told of the process and its job: plain values by name."""
        self._about.update(about)
        self._write("about", about, reserved=0)

    def event(self, text: str, trouble: bool = False) -> None:
        """Note something that has happened, such as an error that nobody waits for. From any thread.

        Args:
            trouble: it ends a group, or the process: there is room for it also where much has happened.
        """
        if self._events[trouble] < MOST_EVENTS:
            self._events[trouble] += 1
            self._write("event", self.clock(), text[:LONGEST], reserved=0 if trouble else RESERVED)

    def clocks(self, seen: Sequence[tuple[int, float, float, float, float]]) -> None:
        """Write what is known of neighbours' clocks: as `layout.CLOCK`, one for each. What was there goes."""
        places = [*seen[:CLOCK_PLACES], *[_NO_CLOCK] * (CLOCK_PLACES - len(seen))]
        for number, place in enumerate(places):
            CLOCK.pack_into(self._memory, CLOCKS_AT + number * CLOCK.size, *place)

    def links(self, seen: Sequence[tuple[int, Traffic]]) -> None:
        """Write how the connections go: the rank at the other end of each, and what has gone there."""
        for number, (rank, traffic) in enumerate(seen[:LINK_PLACES]):
            LINK.pack_into(self._memory, LINKS_AT + number * LINK.size, rank, *traffic)
        for number in range(len(seen), self._linked):
            LINK.pack_into(self._memory, LINKS_AT + number * LINK.size, 0, 0, 0.0, 0.0, 0, 0.0)
        self._linked = min(len(seen), LINK_PLACES)

    def beat(self, turns: int, every: float) -> None:
        """Note how often the loop has beaten. Called often.

        Args:
            turns: the number of its beats.
            every: seconds from beat to beat where nothing delays them.
        """
        now = self.clock()
        if turns != self._turns or not self._turned:
            if self._turned:
                late = (now - self._turned) / (turns - self._turns) - every
                self._late.append((now, max(0.0, late)))
            self._turns, self._turned = turns, now
        while self._late and self._late[0][0] < now - LATELY:
            self._late.popleft()

    def flush(self, most: int = MOST_AT_ONCE) -> None:
        """Write what is new where others can read it: the last `most`. From one thread at a time."""
        self._write_text()
        kept, over = list(self.kept), list(self._over)  # whole: nothing else runs meanwhile
        waiting = list(self.pending.values())
        fresh = list(takewhile(lambda entry: entry[3] > self._flushed, reversed(kept)))[::-1]
        ended = list(takewhile(lambda one: abs(one[ENDED]) > self._flushed_end, reversed(over)))[::-1]
        self._describe(dict.fromkeys(one[SORT] for one in (*fresh, *ended, *waiting)))
        self._count(fresh)
        for record in ended:
            record[SORT].counted.end(record)
            self._failed += record[ENDED] < 0
        known = {(record[ISSUED], record[NUMBER]) for record in ended}
        others = [
            [*entry, 0.0, 0.0, 0.0, 0.0] for entry in fresh[-most:] if (entry[3], entry[1]) not in known
        ]
        for record in (*ended[-most:], *others):
            self._put(RING_AT + self._next * PLACE.size, record)
            self._next = (self._next + 1) % RING_PLACES
        waiting.sort(key=itemgetter(ISSUED))
        shown = waiting[:PENDING_PLACES]
        for place, record in enumerate([*shown, *[_NONE] * (self._shown - len(shown))]):
            self._put(PENDING_AT + place * PLACE.size, record)
        self._shown = len(shown)
        if fresh:
            self._flushed = fresh[-1][3]
        if ended:
            self._flushed_end = abs(ended[-1][ENDED])
        for sort in {entry[0].counted for entry in fresh} | {record[SORT].counted for record in ended}:
            self._put_sum(sort)
        late = max((late for _, late in self._late), default=0.0)
        vitals = (self.clock(), self._turns, self._turned, late, self._issued, self._failed)
        VITALS.pack_into(self._memory, VITALS_AT, *vitals)
        if self.waste >= WASTE and self._text > TEXT_BYTES - WASTE:
            self._write_anew()

    def _describe(self, seen: Iterable[CallSite]) -> None:
        """Write the sorts that have no number yet; other threads may run in between."""
        for count, sort in enumerate([sort for sort in seen if sort.track is not None], 1):
            if sort.track is not None:  # not described with another one
                sort.track.describe(sort)
            if not count % DESCRIBED_AT_ONCE:
                sleep(0)

    def _count(self, fresh: list[Entry]) -> None:
        """Add what was issued since the last time."""
        more = 1.0  # times as many as are seen: others were pushed out before
        if len(fresh) == RING_PLACES and self._flushed:
            first, last = fresh[0][3], fresh[-1][3]  # when issued: as many in a second before as since
            more += (first - self._flushed) / max(last - first, 1e-6)
        for sort, seen in Counter(entry[0] for entry in fresh).items():
            uses = round(seen * more)
            sort.counted.uses += uses
            sort.counted.total += uses * sort.nbytes
        self._issued += round(len(fresh) * more)

    def _put(self, at: int, record: Pending) -> None:
        sort, *rest = record  # packed apart: so it changes at once, or nearly so
        self._memory[at : at + PLACE.size] = PLACE.pack(sort.mark, *rest, sort.parts(record[NUMBER]))

    def _put_sum(self, sort: CallSite) -> None:
        if sort.has_sum:
            at = SUMS_AT + sort.mark * SUM.size
            self._memory[at : at + SUM.size] = sort.sum()

    def leave(self) -> None:
        """Note that the process has left its job in good order."""
        _put_time(self._memory, LEFT_AT, self.clock())

    def describe(self, sort: CallSite, track: Track, group: int, description: Sequence[Any]) -> None:
        """Give a sort of operations its number, and write what it is. For `flush` alone."""
        if self._free:
            mark = heappop(self._free)
        else:
            mark = self.sorts = self.sorts + 1
        sort.description = description
        if self._write("sort", mark, group, *description, owner=track):
            sort.mark = mark
        else:
            heappush(self._free, mark)
        if not sort.has_sum:
            sort.others = self._of_others(description[0])

    def _of_others(self, op: str) -> CallSite:
        """The sort by which operations are counted that have no sum of their own, whatever their group."""
        sort = self._others.get(op)
        if sort is None:
            if not self._others:
                (rank,) = _get_count(self._memory, RANK_AT)
                self._write("group", OTHERS, "others", 0, "span", [rank, 1], 0, reserved=0)
            mark = 1 + len(self._others)
            sort = self._others[op] = CallSite(mark if mark <= MOST_OTHERS else 0, 0)
            description = [op, "", "", [], "", -1, 0, 0]
            self._write("sort", sort.mark, OTHERS, *description, reserved=0)
        return sort

    def _write(self, *entry: Any, reserved: int = RESERVED, owner: Track | None = None) -> bool:
        """Add a line of text → whether there was room. From any thread, also inside itself: what collects
        garbage may run anywhere, and tell of an error that nobody waits for.

        Args:
            reserved: bytes that it leaves free.
            owner: the group that it is of: it goes some time after that is closed.
        """
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        if self._text + len(line) > TEXT_BYTES - reserved and not self._gives_room():
            return False
        if owner is not None:
            owner.nbytes += len(line)
            self.waste += len(line) * owner.closed
        elif entry[0] == "about":
            self.waste += len(line)
        self._unwritten.append((owner, line))
        self._write_text()
        return True

    def _gives_room(self) -> bool:
        """Whether the next flush makes room."""
        return self.waste >= WASTE and len(self._unwritten) < MOST_UNWRITTEN

    def _write_text(self) -> None:
        """Write what is left to be written, unless somebody is at it: that one goes on, or the next flush."""
        if self._gate.acquire(blocking=False):
            try:
                while self._unwritten:
                    owner, line = self._unwritten[0]
                    if self._text + len(line) <= TEXT_BYTES:
                        start = text_at(self._turn) + self._text
                        self._memory[start : start + len(line)] = line
                        self._text += len(line)
                        _put_count(self._memory, TEXT_BYTES_AT, self._text)
                        self._texts.append((owner, line))
                    elif self._gives_room():
                        return
                    self._unwritten.popleft()
            finally:
                self._gate.release()

    def _write_anew(self) -> None:
        """Write the text into its other place, without the groups closed first. For `flush` alone."""
        if not self._gate.acquire(blocking=False):
            return  # the next time
        try:
            gone = self._outdated()
            about = json.dumps(("about", self._about), separators=(",", ":")).encode() + b"\n"
            self._texts = [
                (owner, line)
                for owner, line in self._texts
                if owner not in gone and not line.startswith(b'["about",')
            ]
            self._texts.insert(0, (None, about))
            _put_count(self._memory, TURN_AT, self._turn + 1)
            self._forget_sorts(gone)
            text = b"".join(line for _, line in self._texts)
            self._turn += 2
            start = text_at(self._turn)
            self._memory[start : start + TEXT_BYTES] = text.ljust(TEXT_BYTES, b"\0")
            self._text = len(text)
            _put_count(self._memory, TEXT_BYTES_AT, self._text)
            _put_count(self._memory, TURN_AT, self._turn)
            left = {owner for owner, _ in self._texts if owner is not None and owner.closed}
            self.waste = sum(owner.nbytes for owner in left)
        finally:
            self._gate.release()
        self._write_text()

    def _outdated(self) -> set[Track | None]:
        """The closed groups that have no place in the half of the text, the oldest ones."""
        tracks = dict.fromkeys(owner for owner, _ in self._texts if owner is not None)
        closed = [track for track in tracks if track.closed]
        room = TEXT_BYTES // 2 - (self._text - sum(track.nbytes for track in closed))
        gone: set[Track | None] = set()
        for track in reversed(closed):
            room -= track.nbytes
            if room < 0:
                gone.add(track)
        return gone

    def _forget_sorts(self, gone: set[Track | None]) -> None:
        """Count what closed groups have done without them, and let others have the numbers of their sorts."""
        sorts = [sort for track in gone if track is not None for sort in track.sorts if sort.mark]
        marks = {sort.mark for sort in sorts}
        for start, places in ((RING_AT, RING_PLACES), (PENDING_AT, PENDING_PLACES)):
            for at in range(start, start + places * PLACE.size, PLACE.size):
                if _get_count(self._memory, at)[0] in marks:
                    self._memory[at : at + PLACE.size] = bytes(PLACE.size)
        for sort in sorts:
            mark, sort.mark = sort.mark, 0
            if mark < SUM_PLACES:
                at = SUMS_AT + mark * SUM.size
                self._memory[at : at + SUM.size] = bytes(SUM.size)
            heappush(self._free, mark)
        for sort in sorts:
            self._of_the_past(sort).add(sort)
        for past in self._past.values():
            self._put_sum(past)

    def _of_the_past(self, sort: CallSite) -> CallSite:
        """The sort of no group by which one of a closed group is counted."""
        op = sort.description[0]
        description = [*sort.description] if len(self._past) < MOST_PAST else [op, "", "", [], "", -1, 0, 0]
        description[-3:] = [-1, 0, description[-1]]  # of any root and tag
        key = json.dumps(description)
        past = self._past.get(key)
        if past is None:
            mark = heappop(self._free)
            past = self._past[key] = CallSite(mark, description[-1], description)
            line = json.dumps(("sort", mark, 0, *description), separators=(",", ":")).encode() + b"\n"
            self._texts.append((None, line))
        return past


class Track:
    """The record of one group's operations.

    Args:
        recorder: the rank's.
        group: its number there.
        epoch: its.

    Attributes:
        closed: no operation of it will be issued any more.
        nbytes: of what is written of it.
        parts: how many numbers of its collectives up to one are further steps of the user's calls.
        lines, known: of the recorder (`Lines`); keep: takes an entry. For who writes `note` out.
    """

    __slots__ = (
        "_clock",
        "_end",
        "_epoch",
        "_group",
        "_others",
        "_pending",
        "_recorder",
        "_sorts",
        "closed",
        "keep",
        "known",
        "lines",
        "nbytes",
        "parts",
    )

    def __init__(self, recorder: Recorder, group: int, epoch: int) -> None:
        self._recorder = recorder
        self._epoch = epoch
        self._group = group
        self._sorts: dict[Any, CallSite] = {}
        self._others: dict[int, CallSite] = {}  # by kind, of those that are not told apart
        self.closed = False
        self.nbytes = 0
        self.parts: Callable[[int], int] = _no_parts
        self._clock, self._pending, self._end = recorder.clock, recorder.pending, recorder._over.append
        self.lines, self.known, self.keep = recorder.lines, recorder.lines.known, recorder.kept.append

    @property
    def sorts(self) -> list[CallSite]:
        """The track's sorts of operations."""
        return [*self._sorts.values(), *self._others.values()]

    def close(self) -> None:
        """Note that the group has ended: what it did stays while there is room. May be called twice."""
        if not self.closed:
            self.closed = True
            self._recorder.waste += self.nbytes

    def trouble(self, text: str, lost: Sequence[int] = ()) -> None:
        """Note that the group has broken, and why.

        Args:
            lost: global ranks that are gone, or that have aborted it.
        """
        recorder = self._recorder
        recorder.troubled = True
        if recorder._lost_in != self._epoch:  # the first one of each epoch: the ranks are others then
            recorder._lost_in = self._epoch
            recorder.tell(lost=list(lost)[:MOST_LOST])
        recorder.event(text, trouble=True)

    def sort_of(self, call: Call, tag: int = 0) -> CallSite:
        """The sort of operations like this one.

        Args:
            tag: of a message.
        """
        key = _key(call, tag)
        sort = self._sorts.get(key)
        if sort is None:
            sort = self.new_sort(call, tag)
            if len(self._sorts) < MOST_SORTS:
                sort = self._sorts.setdefault(key, sort)
        return sort

    def new_sort(self, call: Call, tag: int = 0) -> CallSite:
        """The same, for who remembers it: whether there is one already, the next flush finds out."""
        return CallSite(0, 0, (), _no_parts, self, call, tag)

    def describe(self, sort: CallSite) -> None:
        """Write a sort of the group's; where there are too many, it is described by its kind. For `flush`."""
        call, tag, sort.track, sort.call = sort.call, sort.tag, None, None
        assert call is not None
        sort.nbytes = call.nbytes
        if not call.message:  # whose numbers are apart
            sort.parts = self.parts
        key, op = _key(call, tag), call.kind.name
        known = self._sorts.get(key)
        if known is None and len(self._sorts) < MOST_SORTS:
            known = self._sorts.setdefault(key, sort)
        if known is sort:
            reduce = "" if call.reduce is None else call.reduce.name
            more = [_called(call), call.dtype.name, list(call.shape), reduce, call.root, tag, call.nbytes]
            self._recorder.describe(sort, self, self._group, [op, *more])
            return
        if known is None:
            known = self._others.get(call.kind)
        elif known.track is not None:
            self.describe(known)
        if known is None:
            known = self._others[call.kind] = CallSite(0, 0, (), sort.parts)
            self._recorder.describe(known, self, self._group, [op, "", "", [], "", -1, 0, 0])
        sort.mark, sort.description, sort.others = known.mark, known.description, known.counted

    def note(self, sort: CallSite, number: int, frame: FrameType, at: float = 0.0) -> Entry:
        """Write down an operation that is being issued.

        Args:
            sort: of this group's.
            number: the operation's.
            frame: one that the program's line has called, or its own.
            at: the time; 0.0: now. No operation was noted since.
        """
        if frame.f_code is sort.code and frame.f_lasti == sort.at:  # as most often
            line = sort.line
        else:
            line = self.line_of(sort, frame)
        entry = (sort, number, line, at or self._clock())  # as `note_line`, written out
        self.keep(entry)
        return entry

    def line_of(self, sort: CallSite, frame: FrameType) -> int:
        """The number of the program's line that has called a frame, or is its own; remembered where it is."""
        code, lasti = frame.f_code, frame.f_lasti
        try:
            line = self.known[id(code)][lasti]
        except KeyError:
            return self.lines.find(frame)
        sort.code, sort.at, sort.line = code, lasti, line
        return line

    def note_line(self, sort: CallSite, number: int, line: int) -> Entry:
        """Note an operation whose line in the program has a number already."""
        entry = (sort, number, line, self._clock())
        self.keep(entry)
        return entry

    def enter(self, entry: Entry) -> Pending:
        """Note that the loop is about to sleep while an operation is pending → its record from now on."""
        pending = [*entry, self._clock(), 0.0, 0.0, 0.0]
        self._pending[id(pending)] = pending
        return pending

    def stamp(self, pending: Pending, what: int) -> None:
        """Note the time of something that has happened to it; the first time counts. From any thread.

        Args:
            what: `layout.ARRIVED` or FIRST.
        """
        if not pending[what]:
            pending[what] = self._clock()

    def now(self) -> float:
        """Seconds of the clock by which operations are noted."""
        return self._clock()

    def end(self, pending: Pending, failed: bool = False) -> None:
        """Note its end."""
        now = self._clock()
        pending[ENDED] = -now if failed else now
        del self._pending[id(pending)]
        self._end(pending)
