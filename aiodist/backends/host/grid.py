"""A group that spans hosts as a table: a row for each host, a column for each place on it.

A row is this rank's *inner* group, a column its *outer* one; each is a host backend of its own, with its own
context and numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.backends.host.channels import Channels
from aiodist.backends.host.level import Groups, InternalGroup, context_within
from aiodist.base.errors import UsageError


class Grid:
    """One rank's view of the table.

    Args:
        channels: of the user's group.
        groups: makes the backends of the internal ones.
        hosts: the group's members, host by host, as many on each.
        disagreed: as of `InternalGroup`.

    Attributes:
        place: (row, column) of each member.
        row, column: of this rank.
        inner: the members of this host.
        outer: those in this rank's place on every host.
    """

    def __init__(
        self,
        channels: Channels,
        groups: Groups,
        hosts: Sequence[Sequence[int]],
        disagreed: Callable[[int, int, bytes], None],
    ) -> None:
        self.channels = channels
        self.hosts = hosts
        self.place = {
            member: (row, column) for row, host in enumerate(hosts) for column, member in enumerate(host)
        }
        self.row, self.column = self.place[channels.rank]
        self.inner = InternalGroup(channels, groups, "inner", hosts[self.row], disagreed)
        self.inner.prepare()
        self.outer = InternalGroup(
            channels, groups, "outer", [host[self.column] for host in hosts], disagreed
        )

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory that this host's ranks read where it lies, if there is room."""
        try:
            return self.channels.resources.empty(shape, dtype)
        except UsageError:
            return np.empty(shape, dtype)


def table_of(hosts: list[list[int]]) -> list[list[int]]:
    """Group ranks, host by host, where each of several hosts has as many, two at least; else []."""
    width = len(hosts[0]) if hosts else 0
    if len(hosts) < 2 or width < 2 or any(len(host) != width for host in hosts):
        return []
    return hosts


def contexts_of(hosts: list[list[int]], me: int, context: int, ranks: Sequence[int]) -> list[int]:
    """Contexts of the internal groups that a process would have in a group's table; [] without one.

    Args:
        hosts: the group's members, host by host.
        me: the process's global rank.
        context: of the group.
        ranks: global ranks of its members.
    """
    table = table_of(hosts)
    for host in table:
        inner = [ranks[member] for member in host]
        if me in inner:
            column = inner.index(me)
            outer = [ranks[row[column]] for row in table]
            return [context_within(context, "inner", inner), context_within(context, "outer", outer)]
    return []
