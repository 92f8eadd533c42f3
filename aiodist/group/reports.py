"""What a backend tells its group: a small window, so that it is not part of what users see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodist.errors import CollectiveMismatch, GroupBroken

if TYPE_CHECKING:
    from aiodist.group.core import GroupCore


class GroupReports:
    """`backends.base.Reports` for one group. Ranks are group ranks."""

    __slots__ = ("_group",)

    def __init__(self, group: GroupCore) -> None:
        self._group = group

    def mismatch(self, seq: int, peer: int, theirs: bytes) -> None:
        """A member's signature of a collective differs."""
        self._group._watch.suspect(seq, self._group.ranks[peer], theirs)

    def peer_mismatch(self, said: dict[int, str]) -> None:
        """Both sides of a message disagree."""
        ranks = self._group.ranks
        self._group._break(CollectiveMismatch({ranks[rank]: words for rank, words in said.items()}))

    def broken(self, error: GroupBroken) -> None:
        """The backend can do no more work."""
        self._group._break(error)
