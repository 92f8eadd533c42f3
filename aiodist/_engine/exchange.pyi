"""Operations between ranks of one host, carried from one wait for a peer to the next. See `exchange.h`."""

from collections.abc import Callable, Sequence
from typing import Any, Self, final

import numpy.typing as npt

from aiodist._engine.handle import Driver
from aiodist._engine.slots import Slots

FINGERPRINT: str
"""Stands for the sources of which the extension was made."""

KINDS: dict[str, int]
"""'meet', 'each', 'share', 'reduce': the numbers of the kinds."""

@final
class Plan:
    """What all operations of a group share that are alike.

    Args:
        slots: the group's.
        owner: the group: `hub`, `board`; `disagrees`, `reuse`, `look_back`, `disagreed_before`, `arrived`,
            `over`, `failed`.
        call: one of the calls; its number does not matter.
        path: how it runs, for people.
        signature: of the call, 32 bytes.
        kind: of `KINDS`.
        gives, gets: by member: it gives this rank something; it gets something of this rank.
        count: elements that ranks agree on.
        sizes: elements of the part of, or for, each member, where these differ.
        in_thread: the thread carries it out; else the loop.
        in_slot: all that a rank gives lies in its slot. Of EACH that is a matter of its size.
        cut: `count` is of the parts of all members; else of one.
        alike: all that take from a rank take the same; else there is a part for each.
        sorts: what comes has a place for each member.
        collects: this rank gets the result of a reduction in two phases.
        dtype: the number of the dtype (`DTYPE_CODES`); op: of the `ReduceOp`, 0: none.
        block, larger: elements of a block at most; the same where nothing is staged. 0: parts go whole.
        depth: blocks that lie in staging at a time; 0: all.
        lanes: parts of a block in staging.

    Raises:
        ValueError: these do not fit the group, or the operation has no meaning for the dtype.
        OverflowError: no machine has so many elements.

    Attributes:
        call, path, owner, signature, in_thread: as given.
        digest: 48 bits that stand for all that ranks agree on but the number.
        layout: the parts and blocks, by name as in `plan.h`: for tests.
        sees_all: an operation ends only when it has seen what all peers published (`Slots.unseen`).
    """

    call: Any
    path: Any
    owner: Any
    in_thread: bool
    sees_all: bool
    digest: int
    signature: bytes
    @property
    def layout(self) -> dict[str, Any]: ...
    def __init__(
        self,
        slots: Slots,
        owner: Any,
        call: Any,
        path: Any,
        signature: bytes,
        kind: int,
        gives: Sequence[bool],
        gets: Sequence[bool],
        count: int,
        sizes: Sequence[int] | None = None,
        *,
        in_thread: bool = False,
        in_slot: bool = False,
        cut: bool = False,
        alike: bool = True,
        sorts: bool = False,
        collects: bool = True,
        dtype: int = 1,
        op: int = 0,
        block: int = 0,
        larger: int = 0,
        depth: int = 0,
        lanes: int = 1,
    ) -> None: ...
    def begin(
        self,
        seq: int,
        send: list[npt.NDArray[Any]],
        recv: list[npt.NDArray[Any]],
        made: Any = None,
        signature: bytes | None = None,
    ) -> Exchange:
        """An operation of this plan, not published yet.

        Args:
            seq: its number.
            send: the parts that this rank gives: one, one for each member, or one array in which those of all
                members lie side by side. Contiguous. Kept until `drop`; the caller writes to none of them.
            recv: the parts that it is given, likewise; nobody else touches them.
            made: copies before and after (`Buffers`), or None.
            signature: of a call that says more than the plan's.

        Raises:
            ValueError: an array does not fit.
        """

@final
class Exchange(Driver):
    """One operation. `Plan.begin` makes it; after `drop` another operation may have it.

    Attributes:
        plan: its plan.
        seq: its number.
        code: the word that publishes it.
        moves: counts the words that were written: the driver sees whether something happened.
        needs: bytes of staging; 0: none.
        exposed: peers read the source where it lies in the segment.
        has_arrived: what it waited for first is there.
        ended: it goes no further: it is over, or its group is broken.
        send, recv, made: as given.
        operation: the group's; None while it is not in flight.
        work: the user's handle.
        start: called when all ranks have published the same, where messages carry it.
        seen: the loop came round while it was pending; of one in the thread: its arrival is written down.
    """

    plan: Plan
    send: list[npt.NDArray[Any]]
    recv: list[npt.NDArray[Any]]
    made: Any
    operation: Any
    work: Any
    start: Callable[[], object] | None
    seen: bool
    needs: int
    @property
    def seq(self) -> int: ...
    @property
    def code(self) -> int: ...
    @property
    def moves(self) -> int: ...
    @property
    def exposed(self) -> bool: ...
    @property
    def has_arrived(self) -> bool: ...
    @property
    def ended(self) -> bool: ...
    def end(self) -> None:
        """Have it go no further. The thread that carries it out lets go of it soon."""

    def publish(self, staging: int = 0) -> None:
        """Fill what can be filled at once, and publish. Peers go on from here.

        Args:
            staging: where `needs` bytes lie in this process's segment.
        """

    def advance(self) -> bool:
        """Go on as far as peers let it → whether the operation is over. In the thread that carries it out;
        the interpreter is released while the thread works.

        Raises:
            GroupBroken: a peer says that its data lies where it has no memory.
        """

    def settle(self, outcome: int) -> bool:
        """Do what an outcome of `drive` asks for → whether the operation is over; raises as `advance`."""

    def step(self) -> bool:
        """Go on, and end the operation if it is over → whether it is, or can never be. On the loop."""

    def compare(self) -> None:
        """Report once a peer that has published something else under this number; then go no further."""

    def poll(self) -> None:
        """Bring it on while it is awaited (`work.Driver`), for as long as this turn of the loop may."""

    def note_over(self) -> None:
        """Note that this rank reads nothing of it any more."""

    def drop(self) -> None:
        """Let go of the operation, and of all that is the user's. Another operation may have it then."""

@final
class Signal:
    """A flag that ends `drive` from another thread."""

    def __new__(cls) -> Self: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...

def drive(active: list[Exchange], seconds: float, stop: Signal) -> list[int]:
    """Advance operations in turn, without the interpreter, until one of them stops, or all that it waits for
    first have come, nothing has moved for so many seconds, or `stop` is set. In the thread for bulk work.

    Args:
        active: of any groups.

    Returns:
        for each of them its outcome, 0 where it waits: `settle` it.
    """

def before_reads(hook: Callable[[], object] | None) -> None:
    """Have a function called before peers' memory is read, or none: tests stop a reader there."""
