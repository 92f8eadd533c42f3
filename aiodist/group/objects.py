"""Python objects between the ranks of a group: encoded once, sent as bytes.

A collective of objects is two collectives of arrays: first everybody's number of bytes, then the bytes. Both
numbers are taken in the call (law 1), so that what is issued meanwhile keeps its place; the second is
submitted when the first has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.errors import GroupBroken, UsageError
from aiodist.group import arguments as check
from aiodist.group.composed import Composed
from aiodist.group.requests import Request, internal
from aiodist.roles import ROLES, Parts
from aiodist.timeouts import Timeout, seconds
from aiodist.types import NO_ROOT, OBJECT_TAGS, OF_OBJECTS, Kind
from aiodist.wire.objects import decode, encode
from aiodist.work import Work

_BYTES = np.dtype(np.uint8)


class Objects(Composed):
    """See `ProcessGroup` for what all calls have in common.

    Objects travel as msgpack: None, bool, numbers, str, bytes, list, tuple, set, dict, dates, NumPy scalars
    and arrays, torch CPU tensors. With `allow_pickle=True` anything else travels as pickle, and only ranks
    that pass it, too, unpickle: do so where you trust every rank.
    """

    def all_gather_object(
        self, obj: Any, *, allow_pickle: bool = False, timeout: Timeout = None, async_op: bool = False
    ) -> Work[list[Any]]:
        """Every rank gets every rank's object.

        Args:
            obj: this rank's; encoded in the call, so it may be changed at once. Of any size.
            allow_pickle: what msgpack cannot carry travels as pickle; the receiving ranks must allow it, too.

        Raises:
            UsageError: at the call: it cannot be carried; from the Work: a pickle, not allowed here.

        Returns:
            → list of `size` objects, in rank order.
        """
        self._check_pickle(allow_pickle)
        data = _encoded(obj, allow_pickle)

        async def rest(sizes: Work[Array], number: int, limit: float) -> list[Any]:
            counts = [int(count) for count in (await sizes._as_step())[:, 0]]
            into = self._room(counts)
            await self._bytes(Kind.all_gather, number, limit, data, into, into, sizes=counts)
            return _decoded(into, counts, allow_pickle)

        return self._two_steps(self._sizes(data, timeout), rest, async_op, timeout)

    def gather_object(
        self,
        obj: Any,
        dst: int = 0,
        *,
        allow_pickle: bool = False,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[list[Any] | None]:
        """One rank gets every rank's object. Arguments and errors as in `all_gather_object`.

        Returns:
            → on `dst`, list of `size` objects, in rank order; None elsewhere.
        """
        self._check_pickle(allow_pickle)
        root = check.group_rank(dst, self.size, "dst")
        data = _encoded(obj, allow_pickle)

        async def rest(sizes: Work[Array], number: int, limit: float) -> list[Any] | None:
            counts = [int(count) for count in (await sizes._as_step())[:, 0]]
            into = self._room(counts) if root == self.rank else None
            await self._bytes(Kind.gather, number, limit, data, into, into, root=root, sizes=counts)
            return None if into is None else _decoded(into, counts, allow_pickle)

        return self._two_steps(self._sizes(data, timeout), rest, async_op, timeout)

    def broadcast_object(
        self,
        obj: Any = None,
        src: int = 0,
        *,
        allow_pickle: bool = False,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Every rank gets `src`'s object. Elsewhere `obj` is not looked at.

        Returns:
            → the object; on `src`, `obj` itself.
        """
        self._check_pickle(allow_pickle)
        root = check.group_rank(src, self.size, "src")
        data = _encoded(obj, allow_pickle) if root == self.rank else np.empty(0, np.uint8)
        size = np.array([data.size], np.int64)

        def first() -> Work[Array]:
            return self._issue(internal(Kind.broadcast, size, root=root, detail=OF_OBJECTS), timeout, True)

        async def rest(sizes: Work[Array], number: int, limit: float) -> Any:
            count = int((await sizes._as_step())[0])
            into = data if root == self.rank else self._room([count])
            await self._bytes(Kind.broadcast, number, limit, into, into, into, root=root)
            return obj if root == self.rank else decode(into.data, allow_pickle=allow_pickle)

        return self._two_steps(first, rest, async_op, timeout)

    def scatter_object(
        self,
        objs: Sequence[Any] | None = None,
        src: int = 0,
        *,
        allow_pickle: bool = False,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Deal one rank's list of objects out. Elsewhere `objs` is not looked at.

        Args:
            objs: on `src`, `size` objects; the r-th goes to rank r.

        Returns:
            → this rank's object.
        """
        self._check_pickle(allow_pickle)
        root = check.group_rank(src, self.size, "src")
        sizes = np.zeros(self.size, np.int64)
        joined: Array | None = None
        if root == self.rank:
            if not isinstance(objs, list | tuple) or len(objs) != self.size:
                raise UsageError(f"objs must be a list of {self.size} objects, one for each rank")
            parts = [_encoded(obj, allow_pickle) for obj in objs]
            sizes[:] = [part.size for part in parts]
            joined = np.concatenate(parts)

        def first() -> Work[Array]:
            return self._issue(internal(Kind.broadcast, sizes, root=root, detail=OF_OBJECTS), timeout, True)

        async def rest(told: Work[Array], number: int, limit: float) -> Any:
            counts = [int(count) for count in await told._as_step()]
            into = self._room([counts[self.rank]])
            await self._bytes(Kind.scatter, number, limit, joined, into, into, root=root, sizes=counts)
            return decode(into.data, allow_pickle=allow_pickle)

        return self._two_steps(first, rest, async_op, timeout)

    def send_object(
        self,
        obj: Any,
        dst: int,
        tag: int = 0,
        *,
        allow_pickle: bool = False,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[None]:
        """Send an object to one rank. Tags of objects and of tensors are apart.

        Returns:
            → None.
        """
        self._check_pickle(allow_pickle)
        peer = check.peer_rank(dst, self.rank, self.size, "dst")
        number = check.message_tag(tag)
        data = _encoded(obj, allow_pickle)
        asked = Request(Kind.send, (_BYTES, data.shape), data, peer=peer, tag=number + OBJECT_TAGS, own=True)
        return self._issue(asked, timeout, async_op)

    def recv_object(
        self,
        src: int | None = None,
        tag: int = 0,
        *,
        allow_pickle: bool = False,
        timeout: Timeout = None,
        async_op: bool = False,
    ) -> Work[Any]:
        """Receive an object from one rank, or from anybody where `src` is None.

        Returns:
            → the object.
        """
        self._check_pickle(allow_pickle)
        peer = -1 if src is None else check.peer_rank(src, self.rank, self.size, "src")
        work = self._recv_bytes(peer, tag, timeout)

        async def rest() -> Any:
            _, data = await work._as_step()
            return decode(data.data, allow_pickle=allow_pickle)

        return self._composed(work, rest, async_op)

    def _recv_bytes(self, peer: int, tag: int, timeout: Timeout) -> Work[tuple[int, Array]]:
        """Receive a message of any size. → the sender's group rank, and the bytes."""
        number = check.message_tag(tag) + OBJECT_TAGS
        if self.size == 1:
            raise UsageError("a group of one has nobody to receive from")
        return self._issue(Request(Kind.recv, (_BYTES, (0,)), peer=peer, tag=number), timeout, True)

    def _check_pickle(self, allowed: bool) -> None:
        if allowed and self._control.exposed:
            raise UsageError(
                "allow_pickle=True is refused in a job without a secret that other hosts can reach: whoever "
                "does could run code here",
                hint="Set AIODIST_SECRET to the same on every host, or use TLS",
            )

    # ── the two steps ────────────────────────────────────────────────────────────────────────────────

    def _sizes(self, data: Array, timeout: Timeout) -> Callable[[], Work[Array]]:
        """The first step where everybody has something: all get all sizes, `(size, 1)` int64."""
        mine, table = np.array([data.size], np.int64), np.empty((self.size, 1), np.int64)

        def first() -> Work[Array]:
            return self._issue(internal(Kind.all_gather, mine, table, detail=OF_OBJECTS), timeout, True)

        return first

    def _room(self, counts: Sequence[int]) -> Array:
        """Memory for so many bytes. With none the group is broken: the next step has its number already."""
        total = sum(counts)
        try:
            if min(counts) < 0:
                raise ValueError("a negative size")
            return np.empty(total, np.uint8)
        except (ValueError, MemoryError) as error:
            broken = GroupBroken(
                f"rank {self.ranks[self.rank]} has no memory for objects of {total} bytes",
                hint="Send less at a time, or arrays, which need no second copy",
            )
            self._break(broken)
            raise broken from error

    def _two_steps(
        self,
        first: Callable[[], Work[Array]],
        rest: Callable[[Work[Array], int, float], Coroutine[Any, Any, Any]],
        async_op: bool,
        timeout: Timeout,
    ) -> Work[Any]:
        limit = self.timeout if timeout is None else seconds(timeout)
        self._check_here()
        sizes = first()
        return self._composed(sizes, partial(rest, sizes, self._reserve(), limit), async_op)

    async def _bytes(
        self,
        kind: Kind,
        number: int,
        timeout: float,
        source: Array | None,
        target: Array | None,
        result: Any,
        *,
        root: int = NO_ROOT,
        sizes: Sequence[int] | None = None,
    ) -> None:
        """The second step, under the number that was reserved for it."""
        part = source if target is None else target
        assert part is not None
        asked = Request(
            *(kind, (_BYTES, (part.size if sizes is None else sum(sizes),)), source, target, result),
            root=root,
            detail=OF_OBJECTS,
            own=True,
        )
        if ROLES[kind].source is Parts.EACH:
            asked.source_sizes = sizes
        else:
            asked.target_sizes = sizes
        work = self._issue(asked, timeout, True, reserved=number)
        await work._as_step()


def _encoded(obj: Any, allow_pickle: bool) -> Array:
    return np.frombuffer(encode(obj, allow_pickle=allow_pickle), np.uint8)


def _decoded(data: Array, counts: Sequence[int], allow_pickle: bool) -> list[Any]:
    objects = []
    start = 0
    for count in counts:
        objects.append(decode(data[start : start + count].data, allow_pickle=allow_pickle))
        start += count
    return objects
