"""Reports of a backend to its group: a small window, so that it is not part of what users see."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiodist.errors import CollectiveMismatch, GroupBroken


class GroupReports:
    """`backends.base.Reports` for one group. Ranks are group ranks.

    Args:
        ranks: the members' global ranks.
        suspect: told of a mismatch: the number, the member's global rank, and its signature.
        breaks: told why the group is broken.
    """

    __slots__ = ("_breaks", "_ranks", "_suspect")

    def __init__(
        self,
        ranks: Sequence[int],
        suspect: Callable[[int, int, bytes], None],
        breaks: Callable[[GroupBroken], None],
    ) -> None:
        self._ranks = ranks
        self._suspect = suspect
        self._breaks = breaks

    def mismatch(self, seq: int, peer: int, theirs: bytes) -> None:
        """A member's signature of a collective differs."""
        self._suspect(seq, self._ranks[peer], theirs)

    def peer_mismatch(self, said: dict[int, str]) -> None:
        """Both sides of a message disagree."""
        self._breaks(CollectiveMismatch({self._ranks[rank]: words for rank, words in said.items()}))

    def broken(self, error: GroupBroken) -> None:
        """The backend can do no more work."""
        self._breaks(error)
