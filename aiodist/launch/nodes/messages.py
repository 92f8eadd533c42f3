"""The messages of the agents to each other in their store while the job runs. Pure.

Of its keys (the workers have another store), <n> is the attempt and <id> a node by arrival:

agents/alive/<id>        a lease that the node renews; gone without a report: the node is lost
agents/restarts          restarts that were taken, in all attempts
agents/stop              the operator's signal that ends the job
agents/<n>/roster        who takes part; grows when a node joins the running group
agents/<n>/turn          counts troubles over all nodes: who was first
agents/<n>/alarm         exists once the attempt is to end: 'failure', or 'late 3 7' where others had waited
                         for these ranks; or at once: 'stop', 'regroup'
agents/<n>/workers/<id>  the node's `Workers`, once one of them has ended; before that, all of them live
agents/<n>/report/<id>   the node's NodeReport, once all its workers have ended
agents/<n>/next          what the head decided to follow: `Next`
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from aiodist.launch.nodes.roster import Roster
from aiodist.net.wire.typed import JsonMessage

FAILURE = "failure"
_LATE = "late"
_MOST_LATE = 64  # ranks that an alarm names
_DIGITS = 18  # of a number of a node or rank, at most


@dataclass(frozen=True)
class Workers(JsonMessage):
    """The workers of a node, or of several: the ranks that live; whether one has ended with code 0."""

    WHAT = "a node's workers"

    live: tuple[int, ...]
    well: bool


class Elastic(NamedTuple):
    """The facts that an elastic script reports.

    Args:
        takes_in: it can take in a worker now.
        over: its group has ended, and well.
        members: ranks whose process is a member of the group; or was, where it has ended since.
        left: ranks whose process has left the group.
    """

    takes_in: bool
    over: bool
    members: frozenset[int] = frozenset()
    left: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Next(JsonMessage):
    """The decision on what follows an attempt.

    Args:
        roster: of the next one; None: the job ends.
        signum: the operator's signal that ends it, after its workers had ended.
        error: why there is no other attempt, though there should be one.
        used: restarts so far.
    """

    WHAT = "the head's decision"

    roster: Roster | None = None
    signum: int = 0
    error: str = ""
    used: int = 0


def failure(late: Collection[int]) -> str:
    """The alarm of a failure.

    Args:
        late: the ranks that others had waited for.
    """
    return " ".join([_LATE, *map(str, sorted(late)[:_MOST_LATE])]) if late else FAILURE


def late_in(why: str) -> tuple[int, ...]:
    """The ranks that an alarm names; () of another one, whoever has left it."""
    kind, *ranks = why.split(" ")[: _MOST_LATE + 1]
    if kind != _LATE or not all(one.isascii() and one.isdecimal() and len(one) <= _DIGITS for one in ranks):
        return ()
    return tuple(map(int, ranks))


def number_in(key: str, prefix: str) -> int | None:
    """The node or rank that a key under a prefix is of; None for another key, whoever has left it."""
    name = key.removeprefix(prefix)
    if name == key or not (name.isascii() and name.isdecimal()) or len(name) > _DIGITS:
        return None
    return int(name)
