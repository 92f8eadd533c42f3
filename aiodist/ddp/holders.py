"""Whose values the members of an epoch get: those of a member that has had them with others, if any has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiodist.base.errors import QuorumLost
from aiodist.group import ProcessGroup
from aiodist.group.family import Progress


def is_newcomer(pg: ProcessGroup) -> bool:
    """Whether this process came into a running job, and has never had the common values: the members may have
    them already."""
    lineage = pg._core.lineage
    return lineage.newcomer and lineage.progress is not Progress.OWN


def is_orphan(pg: ProcessGroup) -> bool:
    """Whether members had the common values when this process came, and it has never had them; so it does not
    begin anew without them. See `first_holder`."""
    return pg._core.lineage.progress is Progress.OTHERS


def note_values(pg: ProcessGroup) -> None:
    """Note that this process has the common values: newcomers are told."""
    pg._core.lineage.progress = Progress.OWN


def first_holder(holds: Sequence[bool], orphans: Sequence[bool]) -> int:
    """The first member that has the common values; 0 at the very beginning, when no member has.

    Args:
        holds: by member: it has the common values.
        orphans: by member: `is_orphan`.

    Raises:
        QuorumLost: only such newcomers are left. They must not begin anew as if nothing had been there.
    """
    if not any(holds) and all(orphans):
        raise QuorumLost(
            "all members that had the values died before a newcomer had them",
            hint="Start again from a checkpoint",
        )
    return list(holds).index(True) if any(holds) else 0


def misfit(plans: Sequence[Any], holds: Sequence[bool], me: int) -> int | None:
    """The member whose plan this one must have, and has not; None: this one can take part.

    The plans of members that have the common values count; at the very beginning all count. So a newcomer
    with another plan is alone in having to leave: no other member, newcomer or not, has its plan against it.

    Args:
        plans: by member.
        holds: by member: it has the common values.
        me: this member.
    """
    counted = [member for member in range(len(plans)) if holds[member] or not any(holds)]
    return next((member for member in counted if plans[member] != plans[me]), None)
