"""The bounds of what clients can make a store keep: bytes, and calls that wait."""

from __future__ import annotations

from aiodist.rendezvous.rules import RefusedError

DEFAULT_LIMIT = 1 << 30  # bytes that a store keeps
MAX_WAITING = 1 << 18  # calls that wait, and watches, of all clients
KEY_COST = 70  # bytes that a key takes in the list of a call that waits
WANTED_COST = 300  # bytes that it takes beside, where it is not there yet
ENTRY_COST = 200  # bytes that a key takes beside its name and value
CALL_COST = 800  # bytes that a call that waits takes beside its arguments
LEASE_COST = 400  # bytes that a lease takes beside its keys
ANSWER_COST = 200  # bytes that an answer takes that its client has not confirmed; not more than a key
SESSION_COST = 700  # bytes that a client takes


class Budget:
    """The bytes that a store keeps, about, and the calls that wait in it.

    Args:
        limit: bytes; what would grow the store beyond is refused.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self.waiting = 0

    def make_room(self, growth: int, answer: int = 0) -> None:
        """Take `growth` bytes, or refuse where they are too many.

        An answer of `answer` bytes must fit too; `Sessions.done` takes these. What makes the store smaller
        in all is never refused.
        """
        needed = growth + answer + ANSWER_COST
        if needed > 0 and self.size + needed > self.limit:
            raise RefusedError(
                f"the store is full: this takes {needed} bytes more, it keeps {self.size} of {self.limit}",
                "Delete keys that no process needs, or serve it with a larger --limit",
                "full",
            )
        self.size += growth

    def begin_wait(self, cost: int) -> None:
        """Take `cost` bytes for one more call that waits, or refuse it."""
        if self.waiting >= MAX_WAITING:
            raise RefusedError(
                f"{MAX_WAITING} calls wait in the store already",
                "See which client asks without waiting for its answers",
                "full",
            )
        self.make_room(cost)
        self.waiting += 1

    def end_wait(self, cost: int) -> None:
        """Give back what `begin_wait` took."""
        self.size -= cost
        self.waiting -= 1


def weight(text: str) -> int:
    """Return the bytes that text takes, at most. One character of four bytes makes all of them as wide."""
    return len(text) if text.isascii() else 4 * len(text)
