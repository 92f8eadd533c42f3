"""Python objects between the ranks of a group: encoded once, sent as bytes.

A collective of objects is two collectives of arrays at most: first frames, which have the numbers of bytes,
and the bytes too if they are few; else the bytes follow. Both numbers are taken in the call (law 1), so that
what is issued meanwhile keeps its place. When the first step has ended, the second is submitted, or its
number is passed over, on all ranks alike.

Objects travel as msgpack: None, bool, numbers, str, bytes, list, tuple, set, dict, dates, NumPy scalars and
arrays, torch CPU tensors. With `allow_pickle=True` anything else travels as pickle, and only ranks that pass
it, too, unpickle.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct, pack, unpack_from
from typing import Any
from weakref import ref

import numpy as np

from aiodist.backends.base import Array, Decoding
from aiodist.backends.work import Work
from aiodist.base.errors import GroupBroken, UsageError
from aiodist.base.operations import OBJECT_KINDS, OBJECT_TAGS, ROLES, Parts
from aiodist.base.timeouts import Timeout
from aiodist.base.types import AS, NO_ROOT, Kind, frames_of
from aiodist.group import arguments as check
from aiodist.group.core import GroupCore
from aiodist.group.requests import Request, internal, source_rank
from aiodist.net.wire.objects import decode, encode, is_slow

_BYTES = np.dtype(np.uint8)


class Objects:
    """The part of a group with the calls on objects: checks them, and issues their steps.

    Args:
        core: of the group.
    """

    def __init__(self, core: GroupCore) -> None:
        self._core = core
        self._rank, self._size = core.roster.rank, core.roster.size

    def all_gather(self, obj: Any, allow_pickle: bool, timeout: Timeout, async_op: bool) -> Work[Any]:
        """Gather an object of each rank on all ranks; see `ProcessGroup.all_gather_object`."""
        if allow_pickle:
            self._check_exposed()
        data = encode(obj, allow_pickle=allow_pickle)
        asked = _Gathered(self._core, Kind.all_gather, NO_ROOT, allow_pickle, timeout, data)
        return self._begin(asked, async_op)

    def gather(self, obj: Any, dst: int, allow_pickle: bool, timeout: Timeout, async_op: bool) -> Work[Any]:
        """Gather an object of each rank on one rank; see `ProcessGroup.gather_object`."""
        if allow_pickle:
            self._check_exposed()
        root = check.group_rank(dst, self._size, "dst")
        data = encode(obj, allow_pickle=allow_pickle)
        return self._begin(_Gathered(self._core, Kind.gather, root, allow_pickle, timeout, data), async_op)

    def broadcast(
        self, obj: Any, src: int, allow_pickle: bool, timeout: Timeout, async_op: bool
    ) -> Work[Any]:
        """Give all ranks the object of one; see `ProcessGroup.broadcast_object`."""
        if allow_pickle:
            self._check_exposed()
        root = check.group_rank(src, self._size, "src")
        data = encode(obj, allow_pickle=allow_pickle) if root == self._rank else None
        return self._begin(_Broadcast(self._core, root, allow_pickle, timeout, data, obj), async_op)

    def scatter(
        self, objs: Sequence[Any] | None, src: int, allow_pickle: bool, timeout: Timeout, async_op: bool
    ) -> Work[Any]:
        """Give each rank its object of one rank's list; see `ProcessGroup.scatter_object`."""
        if allow_pickle:
            self._check_exposed()
        root = check.group_rank(src, self._size, "src")
        parts: list[bytes] | None = None
        if root == self._rank:
            if not isinstance(objs, list | tuple) or len(objs) != self._size:
                raise UsageError(f"objs must be a list of {self._size} objects, one for each rank")
            parts = [encode(obj, allow_pickle=allow_pickle) for obj in objs]
        return self._begin(_Scattered(self._core, root, allow_pickle, timeout, parts), async_op)

    def _begin(self, asked: _Asked, async_op: bool) -> Work[Any]:
        """Begin the first step of a collective, and take the number of the second."""
        core, frame = self._core, asked.frame
        if self._size > 1:
            kind = OBJECT_KINDS + asked.kind
            work = core.start_prepared(
                kind, frame, None, async_op, 0, asked.root, asked.limit, 3, asked.take_frames
            )
            if work is not None:
                asked.work, asked.number = ref(work), core.reserve(part=True)
                return work
        core.check_here()
        first, root, detail = frames_of(asked.kind, asked.root)
        table = None if ROLES[first].root_gives else np.empty((self._size, frame.size), np.uint8)
        request = internal(first, frame, table, root=root, detail=detail)
        frames = core.issue(request, asked.limit, True)
        asked.number = core.reserve(part=True)
        return core.compose(frames, partial(asked.steps, frames), async_op)

    def send(
        self, obj: Any, dst: int, tag: int, allow_pickle: bool, timeout: Timeout, async_op: bool
    ) -> Work[None]:
        """Send an object to one rank; see `ProcessGroup.send_object`."""
        if allow_pickle:
            self._check_exposed()
        peer = check.group_rank(dst, self._size, "dst")
        number = check.message_tag(tag) + OBJECT_TAGS
        encoded = encode(obj, allow_pickle=allow_pickle)
        messenger = self._core.messenger_for_send(timeout)
        sent = None if messenger is None else messenger.send_bytes(encoded, peer, number, async_op, 2)
        if sent is not None:
            return sent
        data = np.frombuffer(encoded, np.uint8)
        named = f"{AS}send_object(dst={peer})"
        asked = Request(Kind.send, (_BYTES, data.shape), data, peer=peer, tag=number, detail=named, own=True)
        return self._core.issue(asked, timeout, async_op)

    def receive(
        self,
        src: int | None,
        tag: int,
        allow_pickle: bool,
        timeout: Timeout,
        async_op: bool,
        result: Callable[[int, Any], Any],
    ) -> Work[Any]:
        """Receive an object from one rank, or any → what `result` makes of the sender's group rank and the
        object; see `ProcessGroup.recv_object`."""
        if allow_pickle:
            self._check_exposed()
        peer = source_rank(src, self._size)
        number = check.message_tag(tag) + OBJECT_TAGS

        decoded = _Received(allow_pickle, result)
        messenger = self._core.messenger_for_receive(timeout)
        posted = None if messenger is None else messenger.recv_bytes(peer, number, async_op, decoded, 2)
        if posted is not None:
            return posted
        named = f"{AS}recv_object({f'src={peer}' if peer >= 0 else ''})"
        asked = Request(Kind.recv, (_BYTES, (0,)), peer=peer, tag=number, detail=named, convert=decoded)
        return self._core.issue(asked, timeout, async_op)

    def _check_exposed(self) -> None:
        """Refuse to pickle where strangers could send."""
        if self._core.control.exposed:
            raise UsageError(
                "allow_pickle=True is refused in a job without a secret that other hosts can reach: "
                "those hosts could run code here",
                hint="Set AIODIST_SECRET to the same on every host, or use TLS",
            )


# ── the steps of one collective ──────────────────────────────────────────────────────────────────────

_FRAME = 1024
"""Bytes of a frame, and of those of a scatter without the numbers."""

_FRAMES = 16 << 10
"""Bytes of all frames that are gathered, at most, unless each is as small as `_LEAST`."""

_LEAST = 128

_one = Struct("<q")
_COUNT = _one.size  # bytes of a number

_MORE = object()
"""What the frames give that do not hold all: the second step follows."""


class _Asked(ABC):
    """One collective of objects, in up to two steps.

    The first gives frames to all ranks: numbers of bytes, and behind them the bytes, if there is room for all
    that the numbers say. All ranks see the same numbers. So they agree whether there is a second step, which
    gives the bytes where the frames did not. Its number is taken in the call, and passed over if it is not
    needed.

    Args:
        core: of the group.
        kind, root: what becomes of the objects.
        allow_pickle, timeout: as the caller says.
        frame: what the first step takes: the frame that this rank gives, or where one comes.

    Attributes:
        kind, root, frame: as given.
        limit: seconds of each step.
        number: of the second step.
        work: the Work, where the frames are a prepared call; what carries that out holds it.
    """

    __slots__ = ("_allow_pickle", "_core", "frame", "kind", "limit", "number", "root", "work")

    number: int
    work: ref[Work[Any]]

    def __init__(
        self, core: GroupCore, kind: Kind, root: int, allow_pickle: bool, timeout: Timeout, frame: Array
    ) -> None:
        self._core, self.kind, self.root, self._allow_pickle = core, kind, root, allow_pickle
        self.limit, self.frame = core.limit(timeout), frame

    def take_frames(self, frames: Array) -> Any:
        """End the Work by its frames, or go on by a second step: see `Starter.start`. Raises nothing."""
        work = self.work()
        assert work is not None
        try:
            found = self._found(frames.tobytes())
        except BaseException as error:
            work._fail(error)
            return None
        if found is _MORE:
            self._core.carry_out(work, partial(self.steps, work._goes_on(frames)))
            return frames
        return found

    async def steps(self, first: Work[Array]) -> Any:
        """Wait for the first step, carry out the second if there is one, and give the result."""
        frames = (await first._as_step()).tobytes()
        found = self._found(frames)
        return await self._rest(self._counts(frames)) if found is _MORE else found

    @abstractmethod
    def _found(self, frames: bytes) -> Any:
        """The result, where the frames hold all: then the second step is passed over; else `_MORE`."""

    @abstractmethod
    def _counts(self, frames: bytes) -> Sequence[int]:
        """The numbers of bytes in the frames."""

    @abstractmethod
    async def _rest(self, counts: Sequence[int]) -> Any:
        """Carry out the second step, and give the result."""

    def _room(self, counts: Sequence[int]) -> Array:
        """Memory for so many bytes. With none the group is broken: the next step has its number already."""
        total = sum(counts)
        try:
            if min(counts) < 0:
                raise ValueError("a negative size")
            return np.empty(total, np.uint8)
        except (ValueError, MemoryError) as error:
            broken = GroupBroken(
                f"rank {self._core.roster.me} has no memory for objects of {total} bytes",
                hint="Send less at a time, or arrays, which need no second copy",
            )
            self._core.break_group(broken)
            raise broken from error

    async def _bytes(self, source: Array | None, target: Array | None, sizes: Sequence[int] | None) -> None:
        """Carry out the collective on bytes, under the number that was reserved for it.

        Args:
            sizes: bytes of each rank's part; None: all have as many.
        """
        part = source if target is None else target
        assert part is not None
        shape = (part.size if sizes is None else sum(sizes),)
        _, _, detail = frames_of(self.kind, self.root)
        asked = Request(
            *(self.kind, (_BYTES, shape), source, target, target), root=self.root, detail=detail, own=True
        )
        if ROLES[self.kind].source is Parts.EACH:
            asked.source_sizes = sizes
        else:
            asked.target_sizes = sizes
        work = self._core.issue(asked, self.limit, True, reserved=self.number)
        await work._as_step()


class _Gathered(_Asked):
    """An object of each rank on all ranks, or on the root. Each rank gives a frame.

    Args:
        data: this rank's object.
    """

    __slots__ = ("_data",)

    def __init__(
        self, core: GroupCore, kind: Kind, root: int, allow_pickle: bool, timeout: Timeout, data: bytes
    ) -> None:
        size = max(_LEAST, min(_FRAME, _FRAMES // core.roster.size))
        super().__init__(core, kind, root, allow_pickle, timeout, _frame(_one.pack(len(data)), data, size))
        self._data = data

    def _found(self, frames: bytes) -> Any:
        counts, size = self._counts(frames), self.frame.size
        if min(counts) < 0 or max(counts) > size - _COUNT:
            return _MORE
        self._core.pass_over(self.number)
        if not self._gets():
            return None
        allow, ends = self._allow_pickle, zip(range(_COUNT, len(frames), size), counts, strict=True)
        return [decode(frames[at : at + count], allow_pickle=allow) for at, count in ends]

    def _counts(self, frames: bytes) -> Sequence[int]:
        return [_one.unpack_from(frames, at)[0] for at in range(0, len(frames), self.frame.size)]

    async def _rest(self, counts: Sequence[int]) -> Any:
        into = self._room(counts) if self._gets() else None
        await self._bytes(np.frombuffer(self._data, np.uint8), into, counts)
        return None if into is None else await _decoded(into, counts, self._allow_pickle)

    def _gets(self) -> bool:
        return ROLES[self.kind].gets(self._core.roster.rank, self.root)


class _Broadcast(_Asked):
    """An object of the root on all ranks. The root gives a frame.

    Args:
        data: the object; None on other ranks.
        obj: likewise, as the root has it.
    """

    __slots__ = ("_data", "_obj")

    def __init__(
        self, core: GroupCore, root: int, allow_pickle: bool, timeout: Timeout, data: bytes | None, obj: Any
    ) -> None:
        frame = np.empty(_FRAME, np.uint8) if data is None else _frame(_one.pack(len(data)), data, _FRAME)
        super().__init__(core, Kind.broadcast, root, allow_pickle, timeout, frame)
        self._data, self._obj = data, obj

    def _found(self, frames: bytes) -> Any:
        (count,) = self._counts(frames)
        if not 0 <= count <= _FRAME - _COUNT:
            return _MORE
        self._core.pass_over(self.number)
        if self._data is not None:
            return self._obj
        return decode(frames[_COUNT : _COUNT + count], allow_pickle=self._allow_pickle)

    def _counts(self, frames: bytes) -> Sequence[int]:
        return _one.unpack_from(frames)

    async def _rest(self, counts: Sequence[int]) -> Any:
        into = self._room(counts) if self._data is None else np.frombuffer(self._data, np.uint8)
        await self._bytes(into, into, None)
        return await _read(into.data, self._allow_pickle) if self._data is None else self._obj


class _Scattered(_Asked):
    """An object of the root's on each rank. The root gives a frame that has the objects of all.

    Args:
        parts: the objects; None on other ranks.
    """

    __slots__ = ("_joined",)

    def __init__(
        self, core: GroupCore, root: int, allow_pickle: bool, timeout: Timeout, parts: list[bytes] | None
    ) -> None:
        size = _COUNT * core.roster.size + _FRAME
        if parts is None:
            self._joined, frame = None, np.empty(size, np.uint8)
        else:
            self._joined = joined = b"".join(parts)
            frame = _frame(pack(f"<{len(parts)}q", *map(len, parts)), joined, size)
        super().__init__(core, Kind.scatter, root, allow_pickle, timeout, frame)

    def _found(self, frames: bytes) -> Any:
        counts, rank = self._counts(frames), self._core.roster.rank
        if min(counts) < 0 or sum(counts) > _FRAME:
            return _MORE
        self._core.pass_over(self.number)
        at = _COUNT * len(counts) + sum(counts[:rank])
        return decode(frames[at : at + counts[rank]], allow_pickle=self._allow_pickle)

    def _counts(self, frames: bytes) -> Sequence[int]:
        return unpack_from(f"<{self._core.roster.size}q", frames)

    async def _rest(self, counts: Sequence[int]) -> Any:
        into = self._room([counts[self._core.roster.rank]])
        joined = None if self._joined is None else np.frombuffer(self._joined, np.uint8)
        await self._bytes(joined, into, counts)
        return await _read(into.data, self._allow_pickle)


def _frame(head: bytes, data: bytes, size: int) -> Array:
    """A frame of so many bytes: the numbers, and the data if there is room."""
    if len(head) + len(data) <= size:
        head += data
    return np.frombuffer(head.ljust(size, b"\0"), np.uint8)


# ── one object ───────────────────────────────────────────────────────────────────────────────────────


class _Received(Decoding):
    """The decoding of the message of one `receive`.

    Args:
        allow_pickle: as the receive says.
        result: makes what the Work gives of the sender's group rank and the object.
    """

    __slots__ = ("_allow_pickle", "_result")

    def __init__(self, allow_pickle: bool, result: Callable[[int, Any], Any]) -> None:
        self._allow_pickle = allow_pickle
        self._result = result

    @property
    def how(self) -> object:
        """Whether it unpickles."""
        return self._allow_pickle

    def is_slow(self, data: Array) -> bool:
        """Whether decoding takes long enough for a thread (see `Decoding`). What may run the program's code
        is decoded on the loop."""
        return not self._allow_pickle and is_slow(data.data)

    def decode(self, data: Any) -> Any:
        """Decode the bytes of a message; see `Decoding`."""
        return decode(data if type(data) is bytes else memoryview(data), allow_pickle=self._allow_pickle)

    def result(self, sender: int, obj: Any) -> Any:
        """The receive's result, of the object that was decoded; see `Decoding`."""
        return self._result(sender, obj)


async def _read(data: memoryview, allow_pickle: bool) -> Any:
    """An object of bytes; in a thread where that is slow, unless it may run the program's code."""
    if not allow_pickle and is_slow(data):
        return await asyncio.to_thread(decode, data)
    return decode(data, allow_pickle=allow_pickle)


async def _decoded(data: Array, counts: Sequence[int], allow_pickle: bool) -> list[Any]:
    objects = []
    start = 0
    for count in counts:
        objects.append(await _read(data[start : start + count].data, allow_pickle))
        start += count
    return objects
