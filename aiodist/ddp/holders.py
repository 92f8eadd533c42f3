"""Whose values the members of an epoch get: those of a member that has had them with others, if any has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiodist.base.errors import QuorumLost
from aiodist.group import ProcessGroup


def is_newcomer(pg: ProcessGroup) -> bool:
    """Whether this process came into a running job, in this epoch: the members may have values already."""
    return 0 < pg.epoch == pg._core.lineage.began


def is_orphan(pg: ProcessGroup) -> bool:
    """Whether this process is a newcomer, and members were lost while it came: see `first_holder`."""
    return is_newcomer(pg) and pg._core.lineage.bereft


def first_holder(holds: Sequence[bool], orphans: Sequence[bool]) -> int:
    """The first member that has the common values; 0 at the very beginning, when no member has.

    Args:
        holds: by member: it has the common values.
        orphans: by member: it came as a newcomer, and those whom it met first were lost before it had
            their values.

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
