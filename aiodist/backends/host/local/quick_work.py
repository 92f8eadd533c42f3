"""The handle of a quick all_reduce, and what is worked out once for all that are alike."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from aiodist.backends.base import Array, Operation
from aiodist.backends.host.local.board import PAYLOAD, SLOTS, Peer, theirs, view
from aiodist.backends.host.local.plan import digest_of, part_bounds
from aiodist.backends.host.local.share import aligned
from aiodist.kernels import UFUNCS
from aiodist.types import Call, ReduceOp
from aiodist.work import POLL_TURNS, Work

if TYPE_CHECKING:
    from aiodist.backends.host.local.quick import Quick

PENDING, DONE = 0, 1


class QuickPlan:
    """What is worked out once for a dtype, shape and op.

    Attributes:
        digest: of what all ranks agree on, shifted to its place in the word that publishes.
        places: for each slot, the arrays on it: where this rank's payload goes, and all ranks' in order;
            for payloads that fit a slot.
        split: each rank reduces its part; else every rank reduces everything.
        bounds: of the parts, in elements.
        lane: bytes from one part to the next in staging.
        out: where the result is put together, at an address that is aligned alike on all ranks; not if split.
        views: arrays on peers' homes, by member and offset.
    """

    __slots__ = (
        "bounds",
        "call",
        "count",
        "digest",
        "divisor",
        "dtype",
        "itemsize",
        "lane",
        "nbytes",
        "out",
        "places",
        "signature",
        "spans",
        "split",
        "ufunc",
        "views",
    )

    def __init__(self, call: Call, size: int, split: bool) -> None:
        assert call.reduce is not None
        self.call = call
        self.signature = call.signature
        self.digest = digest_of(call) << 16
        self.ufunc = UFUNCS[call.reduce]
        self.divisor = size if call.reduce is ReduceOp.AVG else 0
        self.dtype, self.itemsize = call.dtype, call.dtype.itemsize
        self.count, self.nbytes = call.count, call.nbytes
        self.places: list[tuple[Array, tuple[Array, ...]] | None] = [None] * SLOTS
        self.split = split
        self.spans = split or call.nbytes > PAYLOAD
        self.bounds = part_bounds(call.count, size, self.itemsize)
        self.lane = -(-self.bounds[1] * self.itemsize // 64) * 64
        self.out = aligned(0 if split else call.count, call.dtype)
        if not split:
            self.out = self.out.reshape(call.shape)
        self.views: dict[tuple[int, int, int], Array] = {}

    def close(self) -> None:
        """Let go of the memory."""
        self.places = []
        self.views.clear()

    def view(self, own: Array, at: int, count: int) -> Array:
        """Some elements on this process's home."""
        found = self.views.get((-1, at, count))
        if found is None:
            found = self._keep(-1, at, view(own, at, count, self.dtype))
        return found

    def theirs(self, peer: Peer, at: int, count: int) -> Array:
        """Some elements on a peer's home."""
        found = self.views.get((peer.member, at, count))
        if found is None:
            found = self._keep(peer.member, at, theirs(peer.near, at, count, self.dtype))
        return found

    def _keep(self, member: int, at: int, made: Array) -> Array:
        if len(self.views) > 4 * SLOTS:
            self.views.clear()
        self.views[member, at, made.size] = made
        return made


class QuickWork(Work[Any]):
    """The handle of a quick all_reduce: a Work that makes what it needs of itself only when asked."""

    __slots__ = (
        "_at",
        "_head",
        "_operation",
        "_phase",
        "_plan",
        "_quick",
        "_result_at",
        "_seq",
        "_shown",
        "_word",
    )

    def __init__(
        self, quick: Quick, plan: QuickPlan, seq: int, head: int, word: int, tensor: Array, held: bool
    ) -> None:
        # Not Work's: this is where the time goes, and all else can be found by way of the group.
        self.group = quick.issuer
        self._state = PENDING
        self._result = tensor
        self._error = None
        self._waiters = None
        self._callbacks = None
        self._awaited = held
        self._quick = quick
        self._plan = plan
        self._seq = seq
        self._head = head
        self._word = word
        self._operation: Operation | None = None
        self._phase = 0  # of a split one, see `Quick._reduce_part`
        self._shown = False  # peers read the user's array

    _at: int  # where the source lies, and the result, of what does not fit a slot
    _result_at: int
    _loop = property(lambda self: self.group._loop)
    _pulse = property(lambda self: self.group._pulse)
    _failures = property(lambda self: self.group._failures)
    _driver = None
    _completion = None
    _held_back = False

    @property
    def call(self) -> Call:  # type: ignore[override]
        """What the ranks agree on."""
        call = self._plan.call
        return Call(call.kind, self._seq, call.dtype, call.shape, call.reduce)

    @property
    def seq(self) -> int:
        """The operation's number."""
        return self._seq

    def __await__(self) -> Generator[Any, None, Any]:
        self._awaited = True
        quick = self._quick
        if self._state == PENDING and quick.here() and not quick.poll(self):
            for _ in range(POLL_TURNS):
                yield
                if self._state != PENDING or quick.poll(self):
                    break
        if self._state == PENDING:
            yield from self._suspend()
        elif quick.pulse.overdue():
            yield
        return self._result if self._state == DONE else self.result()
