"""Groups that belong together: those of one process in one epoch, and the worlds of successive epochs."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Iterator, Sequence
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeVar

from aiodist.backends.forgotten import Forgotten, never_closed
from aiodist.backends.work import Failures
from aiodist.group.membership.messages import Ready
from aiodist.group.services.switchboard import Switchboard

G = TypeVar("G")


class Regrouping(Protocol):
    """The way from one epoch to the next, as far as calls of users go there."""

    @property
    def uids(self) -> Sequence[bytes]:
        """The members' uids, by rank."""

    @property
    def services(self) -> Switchboard | None:
        """The services of this process, which outlive epochs; None where it has none."""

    def call(self, ready: Ready, timeout: float) -> Awaitable[Any]:
        """Begin a call for the next epoch, or take up the one that is under way → its group.

        Args:
            ready: what is called for; the call's number is taken here.
            timeout: seconds.
        """

    async def agree(self, group: Any, flag: bool, timeout: float) -> bool:
        """Whether all members of a group say yes: the same answer on all survivors."""

    async def count_newcomers(self) -> int:
        """The number of processes that wait to be admitted, as far as is known here."""


class DroppedFamily:
    """The record of the groups that a program has dropped, and that the loop has closed. The world's end
    tells it.

    Attributes:
        closes: the forgotten closes, by the lines that made the groups.
        awaits: the forgotten awaits of the groups' operations.
        failures: of the groups' operations, that nobody was told.
    """

    def __init__(self) -> None:
        self.closes = Forgotten(text=never_closed)
        self.awaits = Forgotten()
        self.failures = Failures()


class Family(Generic[G]):
    """The groups of one process in one epoch, which end together: the world's, and those made of it.

    Attributes:
        regroup: takes the members to the next epoch; None where they never change.
        dropped: what is left of those that the program has dropped; the next epoch's family takes it over.
    """

    def __init__(self) -> None:
        self.regroup: Regrouping | None = None
        self.dropped = DroppedFamily()
        self._groups: weakref.WeakSet[G] = weakref.WeakSet()

    def add(self, group: G) -> None:
        """Enter a group: from here on others abort and close it, too."""
        self._groups.add(group)

    def __iter__(self) -> Iterator[G]:
        return iter(list(self._groups))


class Progress(IntEnum):
    """The knowledge that a process has of the common values that the job's training has made. The greater
    one counts where members tell each other theirs."""

    UNTOLD = 0
    """The process came as a newcomer, and no member has said anything yet."""
    NONE = 1
    """No values were there when the process came. Nobody can get further without it since."""
    OTHERS = 2
    """Members had values when the process came, which has not got them yet."""
    OWN = 3
    """The process has had the values."""


class Lineage(Generic[G]):
    """The groups that took each other's places, epoch after epoch: all of them share this.

    Attributes:
        latest: the newest; closing an earlier one closes it. None between is kept.
        newcomer: this process came into a running job.
        progress: what it knows of the job's training.
    """

    def __init__(self, first: G, epoch: int) -> None:
        self.latest = first
        self.newcomer = epoch > 0
        self.progress = Progress.UNTOLD if self.newcomer else Progress.NONE

    def told(self, most: int) -> None:
        """Learn from the greatest `progress` of the members of an epoch, which all tell in entering it. Where
        nobody knows, since all that were there before have died, there may have been values."""
        if self.progress is Progress.UNTOLD:
            self.progress = Progress.NONE if most == Progress.NONE else Progress.OTHERS
