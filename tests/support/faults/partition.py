"""Networks that lose what they carry: black holes between `Hosts`, one way or both, and back again.

A host is given a wrong hardware address for another, so that what it sends there reaches the switch and
nobody takes it. To its kernel that is a network which swallows packets: no reset, no message, no
acknowledgement. Needs nothing of the kernel but namespaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from aiodist.testing.hosts import Hosts

_NOBODY = "02:00:00:00:00:00"


class Partition:
    """A partition between hosts. All is healed when the hosts are taken away.

    Args:
        hosts: entered.
    """

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._cut: set[tuple[int, int]] = set()

    def swallow(self, source: int, target: int) -> None:
        """Drop what `source` sends to `target`; the other way is as it was."""
        self._hosts.set_link_address(source, target, _NOBODY)
        self._cut.add((source, target))

    def separate(self, some: Iterable[int], others: Iterable[int]) -> None:
        """Cut two sets of hosts off from each other, both ways."""
        for a, b in product(list(some), list(others)):
            self.swallow(a, b)
            self.swallow(b, a)

    def isolate(self, host: int) -> None:
        """Cut one host off from all others."""
        self.separate([host], (other for other in range(self._hosts.count) if other != host))

    def heal(self) -> None:
        """Let everything pass again."""
        while self._cut:
            self._hosts.set_link_address(*self._cut.pop(), None)
