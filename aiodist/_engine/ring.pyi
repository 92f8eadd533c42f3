"""Rings of records between two processes: one appends, one other takes, in order.

Each has an area in its own memory, which the other only reads; `ring.h` has its layout, and the orders of
loads and stores. `transport/rings.py` sends a link's frames so.
"""

from typing import Any, Self, final

from typing_extensions import disjoint_base

FINGERPRINT: str
"""Stands for the sources of which the extension was made."""

RING_LAYOUT: tuple[int, ...]
"""Where an area has: whether its producer waits, its address, the count of what was taken, the words of its
user, the records."""

@disjoint_base
class Held:
    """The base of both ends: their memory stays mapped until they let go of it."""

@final
class Producer(Held):
    """The end of a ring that appends.

    Args:
        view, at: this process's memory, and its area there, at a multiple of 8.
        size: bytes of records, a multiple of 8.
        theirs, theirs_at: the consumer's memory and its area.

    Attributes:
        clear: records may be appended to it directly: nothing that came before waits for room. Its owner says
            so.
    """

    clear: bool
    def __new__(cls, view: Any, at: int, size: int, theirs: Any, theirs_at: int) -> Self: ...
    def append(self, header: bytes, payload: Any) -> bool:
        """Append a record → False where there is no room for it now.

        Args:
            header: its first byte is not 0, and its length a multiple of 8.
            payload: the rest of the record; copied. In all it is at most half of the ring: an empty one has
                room for that, wherever it stands.

        Raises:
            RingError: the consumer says that it has taken what is not there.
            ValueError: the record is too large.
        """

    def wait(self, waits: bool) -> None:
        """Say whether this end waits for room. Who says so looks again afterwards."""

    def release(self) -> None:
        """Let go of the memory; nothing is appended any more."""

@final
class Consumer(Held):
    """The end of a ring that takes.

    Args:
        view, at: the producer's memory, and its area there.
        size: bytes of records.
        mine, mine_at: this process's memory and its area.

    Attributes:
        busy: a record of it is being acted on, further up the stack. Its owner says so.
        taken: bytes taken since the beginning.
    """

    busy: bool
    def __new__(cls, view: Any, at: int, size: int, mine: Any, mine_at: int) -> Self: ...
    @property
    def taken(self) -> int: ...
    def waiting(self) -> bool:
        """Whether there is something to take."""

    def head(self) -> int:
        """How far the ring is filled, in bytes since the beginning."""

    def first(self) -> memoryview:
        """The memory from the first record on that was not taken, to its end at least; only while `waiting`.

        Valid until `took`. The other process could change it meanwhile, by mistake.

        Raises:
            RingError: no ring can look like this.
        """

    def took(self, nbytes: int) -> None:
        """Take a record of so many bytes, at most as many as `first` gave: its memory is the producer's."""

    def awaited(self) -> bool:
        """Whether the producer waits for the room that was made by now: it says so, and looks then."""

    def release(self) -> None:
        """Let go of the memory; nothing is taken any more."""
