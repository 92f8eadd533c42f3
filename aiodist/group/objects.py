"""Python objects between the ranks of a group: encoded once, sent as bytes.

A collective of objects is two collectives of arrays: first all ranks' numbers of bytes, then the bytes. Both
numbers are taken in the call (law 1), so that what is issued meanwhile keeps its place; the second is
submitted when the first has ended.

Objects travel as msgpack: None, bool, numbers, str, bytes, list, tuple, set, dict, dates, NumPy scalars and
arrays, torch CPU tensors. With `allow_pickle=True` anything else travels as pickle, and only ranks that pass
it, too, unpickle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import numpy as np

from aiodist.backends.base import Array, Decoding
from aiodist.backends.work import Work
from aiodist.base.errors import GroupBroken, UsageError
from aiodist.base.operations import OBJECT_TAGS, ROLES, Parts
from aiodist.base.timeouts import Timeout
from aiodist.base.types import AS, NO_ROOT, Kind
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
        self._check_pickle(allow_pickle)
        return self._gathered(Kind.all_gather, obj, NO_ROOT, allow_pickle, timeout, async_op)

    def gather(self, obj: Any, dst: int, allow_pickle: bool, timeout: Timeout, async_op: bool) -> Work[Any]:
        """Gather an object of each rank on one rank; see `ProcessGroup.gather_object`."""
        self._check_pickle(allow_pickle)
        root = check.group_rank(dst, self._size, "dst")
        return self._gathered(Kind.gather, obj, root, allow_pickle, timeout, async_op)

    def _gathered(
        self, kind: Kind, obj: Any, root: int, allow_pickle: bool, timeout: Timeout, async_op: bool
    ) -> Work[Any]:
        """Give every rank's object to the root, or to all."""
        data = _encoded(obj, allow_pickle)
        mine, table = np.array([data.size], np.int64), np.empty((self._size, 1), np.int64)

        async def second_step(sizes: Work[Array], number: int, limit: float) -> list[Any] | None:
            counts = (await sizes._as_step())[:, 0].tolist()
            into = self._room(counts) if ROLES[kind].gets(self._rank, root) else None
            await self._bytes(kind, number, limit, data, into, root=root, sizes=counts)
            return None if into is None else await _decoded(into, counts, allow_pickle)

        all_sizes = internal(Kind.all_gather, mine, table, detail=_named(kind, root))
        return self._two_steps(all_sizes, second_step, timeout, async_op)

    def broadcast(
        self, obj: Any, src: int, allow_pickle: bool, timeout: Timeout, async_op: bool
    ) -> Work[Any]:
        """Give all ranks the object of one; see `ProcessGroup.broadcast_object`."""
        self._check_pickle(allow_pickle)
        root = check.group_rank(src, self._size, "src")
        data = _encoded(obj, allow_pickle) if root == self._rank else np.empty(0, np.uint8)

        async def second_step(shared: Work[Array], number: int, limit: float) -> Any:
            count = int((await shared._as_step())[0])
            into = data if root == self._rank else self._room([count])
            await self._bytes(Kind.broadcast, number, limit, into, into, root=root)
            return obj if root == self._rank else await _read(into.data, allow_pickle)

        size = np.array([data.size], np.int64)
        return self._two_steps(_share_sizes(Kind.broadcast, root, size), second_step, timeout, async_op)

    def scatter(
        self, objs: Sequence[Any] | None, src: int, allow_pickle: bool, timeout: Timeout, async_op: bool
    ) -> Work[Any]:
        """Give each rank its object of one rank's list; see `ProcessGroup.scatter_object`."""
        self._check_pickle(allow_pickle)
        root = check.group_rank(src, self._size, "src")
        sizes = np.zeros(self._size, np.int64)
        joined: Array | None = None
        if root == self._rank:
            if not isinstance(objs, list | tuple) or len(objs) != self._size:
                raise UsageError(f"objs must be a list of {self._size} objects, one for each rank")
            parts = [_encoded(obj, allow_pickle) for obj in objs]
            sizes[:] = [part.size for part in parts]
            joined = np.concatenate(parts)

        async def second_step(shared: Work[Array], number: int, limit: float) -> Any:
            counts = (await shared._as_step()).tolist()
            into = self._room([counts[self._rank]])
            await self._bytes(Kind.scatter, number, limit, joined, into, root=root, sizes=counts)
            return await _read(into.data, allow_pickle)

        return self._two_steps(_share_sizes(Kind.scatter, root, sizes), second_step, timeout, async_op)

    def send(
        self, obj: Any, dst: int, tag: int, allow_pickle: bool, timeout: Timeout, async_op: bool
    ) -> Work[None]:
        """Send an object to one rank; see `ProcessGroup.send_object`."""
        self._check_pickle(allow_pickle)
        peer = check.group_rank(dst, self._size, "dst")
        number = check.message_tag(tag) + OBJECT_TAGS
        encoded = encode(obj, allow_pickle=allow_pickle)
        fast = self._core.fast_sends(timeout)
        sent = None if fast is None else fast.send_bytes(encoded, peer, number, async_op)
        if sent is not None:
            return sent
        data = np.frombuffer(encoded, np.uint8)
        named = f"{AS}send_object(dst={peer})"
        asked = Request(Kind.send, (_BYTES, data.shape), data, peer=peer, tag=number, detail=named, own=True)
        return self._core.issue(asked, timeout, async_op)

    def recv(
        self, src: int | None, tag: int, allow_pickle: bool, timeout: Timeout, async_op: bool
    ) -> Work[Any]:
        """Receive an object from one rank, or any; see `ProcessGroup.recv_object`."""
        return self.receive(src, tag, allow_pickle, timeout, async_op, lambda _, obj: obj)

    def receive(
        self,
        src: int | None,
        tag: int,
        allow_pickle: bool,
        timeout: Timeout,
        async_op: bool,
        result: Callable[[int, Any], Any],
    ) -> Work[Any]:
        """Receive an object → what `result` makes of the sender's group rank and the object."""
        self._check_pickle(allow_pickle)
        peer = source_rank(src, self._size)
        number = check.message_tag(tag) + OBJECT_TAGS

        decoded = _Received(allow_pickle, result)
        fast = self._core.fast_receives(timeout)
        posted = None if fast is None else fast.recv_bytes(peer, number, async_op, decoded)
        if posted is not None:
            return posted
        named = f"{AS}recv_object({f'src={peer}' if peer >= 0 else ''})"
        asked = Request(Kind.recv, (_BYTES, (0,)), peer=peer, tag=number, detail=named, convert=decoded)
        return self._core.issue(asked, timeout, async_op)

    def _check_pickle(self, allowed: bool) -> None:
        if allowed and self._core.control.exposed:
            raise UsageError(
                "allow_pickle=True is refused in a job without a secret that other hosts can reach: "
                "those hosts could run code here",
                hint="Set AIODIST_SECRET to the same on every host, or use TLS",
            )

    # ── the two steps ────────────────────────────────────────────────────────────────────────────────

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

    def _two_steps(
        self,
        first: Request,
        second_step: Callable[[Work[Array], int, float], Coroutine[Any, Any, Any]],
        timeout: Timeout,
        async_op: bool,
    ) -> Work[Any]:
        limit = self._core.limit(timeout)
        self._core.check_here()
        sizes = self._core.issue(first, timeout, True)
        return self._core.compose(
            sizes, partial(second_step, sizes, self._core.reserve(part=True), limit), async_op
        )

    async def _bytes(
        self,
        kind: Kind,
        number: int,
        timeout: float,
        source: Array | None,
        target: Array | None,
        *,
        root: int = NO_ROOT,
        sizes: Sequence[int] | None = None,
    ) -> None:
        """The second step, under the number that was reserved for it.

        Args:
            sizes: bytes of each rank's part; None: all have as many.
        """
        part = source if target is None else target
        assert part is not None
        shape = (part.size if sizes is None else sum(sizes),)
        asked = Request(
            *(kind, (_BYTES, shape), source, target, target), root=root, detail=_named(kind, root), own=True
        )
        if ROLES[kind].source is Parts.EACH:
            asked.source_sizes = sizes
        else:
            asked.target_sizes = sizes
        work = self._core.issue(asked, timeout, True, reserved=number)
        await work._as_step()


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
        return decode(memoryview(data), allow_pickle=self._allow_pickle)

    def result(self, sender: int, obj: Any) -> Any:
        """The receive's result, of the object that was decoded; see `Decoding`."""
        return self._result(sender, obj)


def _named(kind: Kind, root: int) -> str:
    """The detail of both steps: the user's call, so that ranks that disagree find it in the first one."""
    roles = ROLES[kind]
    return f"{AS}{kind.name}_object({f'{roles.root_name}={root}' if roles.rooted else ''})"


def _share_sizes(kind: Kind, root: int, sizes: Array) -> Request:
    """The first step where one rank has objects: all get their sizes, int64."""
    return internal(Kind.broadcast, sizes, root=root, detail=_named(kind, root))


def _encoded(obj: Any, allow_pickle: bool) -> Array:
    return np.frombuffer(encode(obj, allow_pickle=allow_pickle), np.uint8)


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
