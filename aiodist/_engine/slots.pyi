"""A group's slots: its region in the segment of each member, all on one host.

Numbers are those of the group's operations; members are group ranks. Nothing here waits, and nothing is
locked: a process that dies at any instruction leaves no lock behind. All calls are for the loop's thread, but
where it says otherwise.
"""

from collections.abc import Iterable
from typing import Any, Self, final

from aiodist._engine.exchange import Exchange

FINGERPRINT: str
"""Stands for the sources of which the extension was made."""

LAYOUT: tuple[int, ...]
"""The numbers that `backends/host/local/board.py` has, too, for a test that compares them."""

def fence() -> None:
    """Have all that was written before be seen before anything is read that comes after. From any thread."""

@final
class Memory:
    """A segment, mapped here: this process's own, or a peer's, which is only read.

    Args:
        view: its bytes, from a multiple of 8 on. Kept mapped until `release`.
        bell: a peer's eventfd, which never blocks; its owner keeps it open until `release`.
        ring_bulk: what the bell is rung with for the peer's thread; with 1 it is rung for its loop.
        writable: it is this process's own.

    Raises:
        ValueError: it is too small for a segment, or not aligned.
    """

    def __new__(cls, view: Any, bell: int = -1, ring_bulk: int = 0, *, writable: bool = False) -> Self: ...
    def release(self) -> None:
        """Let go of the memory and the bell: nothing touches them any more. May be called twice."""

    def wake_loop(self) -> None:
        """Ring the peer's loop, if that sleeps and was not rung for that sleep. Without a fence."""

    def wake_bulk(self) -> None:
        """Ring the peer's thread for bulk work, likewise. From any thread."""

@final
class EndOfTurn:
    """The end of the loop's present turn, as all groups of a process see it, and what polls until then.

    Args:
        turn: of the loop.
        poll: seconds of polling in a turn, all together.
        looks: how often a poller looks before it offers the core to others; 0: nothing polls.

    Attributes:
        poll, looks: as given.
        due: it comes with a look around (`Hub`).
        polled: something has polled in this turn.
    """

    due: bool
    polled: bool
    @property
    def poll(self) -> float: ...
    @property
    def looks(self) -> int: ...
    def __new__(cls, turn: Any, poll: float, looks: int) -> Self: ...

@final
class Slots:
    """The slots of one group.

    Args:
        memories: the members' segments, in group order.
        rank: this process's group rank.
        low: mask of the bits of the word that publishes an operation which are of its number.
        end_of_turn: of the process.

    Attributes:
        end_of_turn: as given.
        count: operations that the loop carries out now.
        closed: its regions are not touched any more.
        watched: the loop looks around for the group at the end of its turn.
    """

    end_of_turn: EndOfTurn
    count: int
    closed: bool
    watched: bool
    def __new__(cls, memories: list[Memory], rank: int, low: int, end_of_turn: EndOfTurn) -> Self: ...
    def place(self, index: int, at: int) -> None:
        """Note where a member's region begins, in bytes of its segment; this process's own is cleared.

        Raises:
            ValueError: it lies beyond the segment, or not on a word; or there is no such member.
        """

    @property
    def complete(self) -> bool:
        """Whether all members' regions are known."""

    def has_made(self, index: int) -> bool:
        """Whether a member's region is known."""

    def word(self, index: int, seq: int, word: int) -> int:
        """A word of an operation's slot in a member's region. For tests and reports."""

    def signature(self, index: int, seq: int) -> bytes:
        """The signature in a member's slot, with the number that it was written for first."""

    def free(self, seq: int) -> bool:
        """Whether an operation's slot may be written."""

    def all_finished(self, seq: int) -> bool:
        """Whether no member, this one included, touches anything of an operation any more."""

    def finished(self, seq: int) -> None:
        """Note that this rank reads nothing of an operation any more."""

    def pass_over(self, seq: int) -> bool:
        """Pass over a number without an operation, if its slot is free and was the same with all members:
        nothing in it may look like one → whether that was done."""

    def withdraw(self, numbers: Iterable[int]) -> None:
        """Withdraw operations that are published and not finished here: they end without a result.

        When this returns, every peer that looks at CODE finds 0, and only afterwards can it find in memory
        what is written there later.
        """

    def ring(self) -> None:
        """Wake the members' loops and threads that may wait for a word that was written."""

    def begun(self, seq: int) -> set[int]:
        """Other members that have begun an operation: it stands in their slot, or is finished there."""

    @property
    def unseen(self) -> list[int]:
        """Numbers that have ended here without a look at what all members published: who only gives, or takes
        from one, need not wait for the others. They are compared later (law 4)."""

    def look_back(self, numbers: Iterable[int]) -> tuple[int, int] | None:
        """Look at what members have published under numbers that are `unseen` → a number and a member that
        published something else under it. What all have published alike is seen now."""

    def forget_unseen(self, seq: int) -> None:
        """Note that a number's slot is written again: it was looked back at."""

    def exchanges(self) -> list[Exchange]:
        """What the loop carries out now, in the order of the numbers."""

    def add(self, exchange: Exchange) -> None:
        """Note that the loop carries an operation out from now on."""

    def discard(self, exchange: Exchange) -> None:
        """Note that it does no more."""

    def clear(self) -> None:
        """Let go of all that the loop carries out, and of what is kept for the next use."""

    def close(self) -> None:
        """Touch no region any more: the memory may be another group's. What is still held goes no further."""
