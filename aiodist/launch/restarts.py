"""Whether a failure is mended, and how: pure decisions.

What one failed worker brings about, while its attempt runs (`mend`):

    the script is elastic, a member lives         that worker is started again, into the running group
    the members have finished the job without it  nothing: the work is done
    otherwise                                     its attempt ends, on all nodes

A worker that was started again, or late, is no member before the group has admitted it: it cannot take in
another one, and the group's work is not its own. So where the last member fails, all begin again. Where the
last one has left in order, those that wait for admission are not needed any more.

and what follows an attempt that has ended (`after`): another with all workers, or the end of the job.
Both ways of starting again take from one number, --max-restarts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from aiodist.base.backoff import pause_after
from aiodist.launch.verdict import Verdict

QUICK = 10.0  # seconds; one that fails sooner than that after a restart is in a crash loop
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0


class Mend(Enum):
    """The ways to deal with a failed worker."""

    RESTART = "it is started again"
    FORGIVE = "the job goes on without it"
    END = "the attempt ends"


@dataclass(frozen=True)
class Scene:
    """The facts that are known when a worker has failed.

    Args:
        elastic: the script can take in a worker while it runs.
        over: its group has ended, and well.
        others_live: another worker runs, and is a member of the group.
        others_well: another worker has ended with code 0, or has left the group and runs.
        outside: it is no member: it has failed while another member lived, and was not admitted since.
        may_restart: --max-restarts is not used up (or does not count this time).
        go_on: --on-failure continue.
    """

    elastic: bool
    over: bool
    others_live: bool
    others_well: bool
    outside: bool
    may_restart: bool
    go_on: bool

    @classmethod
    def of(
        cls,
        rank: int,
        *,
        elastic: bool,
        over: bool,
        members: Collection[int],
        left: Collection[int],
        live: Collection[int],
        well: bool,
        go_on: bool,
    ) -> Scene:
        """The scene of a failure; whether it may be started again is not known yet.

        Args:
            rank: of the worker that failed.
            elastic, over, go_on: as above.
            members: ranks whose process was admitted to the group, and has not left it. It may have ended.
            left: ranks whose process was admitted, and has left the group.
            live: ranks whose process runs.
            well: a worker has ended with code 0.
        """
        others = set(live) - {rank}
        return cls(
            elastic=elastic,
            over=over,
            others_live=not others.isdisjoint(members),
            others_well=well or not others.isdisjoint(left),
            outside=rank not in members and rank not in left,
            may_restart=False,
            go_on=go_on,
        )


def mend(scene: Scene) -> Mend:
    """Choose what to do about a worker that failed."""
    done = scene.over or (scene.others_well and not scene.others_live)
    if scene.elastic and scene.outside and done:
        return Mend.FORGIVE
    if scene.elastic and not scene.over and scene.others_live and scene.may_restart:
        return Mend.RESTART
    # Where all fail, there was nobody to go on for: that is for the verdict to see.
    return Mend.FORGIVE if scene.go_on else Mend.END


@dataclass(frozen=True)
class After:
    """The sequel of an attempt. `costs`: the next one counts as a restart."""

    again: bool
    costs: bool = False


def after(verdict: Verdict, *, began: int, used: int, limit: int, regroup: bool) -> After:
    """Decide what follows an attempt that has ended everywhere.

    Args:
        verdict: on it.
        began: restarts before it.
        used: restarts so far.
        limit: --max-restarts.
        regroup: it was stopped so that more nodes can take part.
    """
    if verdict.signum or verdict.error:
        return After(False)
    if verdict.code:
        # Those who died of a death for which a worker was started again begin again on that restart.
        covered = used > began and verdict.culprit is not None and all(e.symptom for e in verdict.failures)
        return After(covered or used < limit, costs=not covered)
    # A job that ended well before the news of another node came is over. A worker that was asked to end has
    # perhaps saved its state and ended with 0, in the middle of its work.
    return After(regroup and any(ending.stopped for ending in verdict.endings))


@dataclass
class RestartDelay:
    """Delays between restarts of something that keeps failing at once: 0, then 0.5 s, 1 s… 30 s."""

    _quick: int = 0

    def delay(self, lived: float) -> float:
        """Seconds to wait before it is started again.

        Args:
            lived: seconds from its last start to its end.
        """
        self._quick = self._quick + 1 if lived < QUICK else 0
        if self._quick < 2:
            return 0.0
        return pause_after(self._quick - 1, _FIRST_DELAY, _LONGEST_DELAY)


@dataclass
class Cover:
    """Cover by another's restart: a worker that dies of another's death comes back on that, once for each.

    Keeps, for the workers of one node, the number of restarts at which each came back for nothing.
    """

    _covered: dict[int, int] = field(default_factory=dict)

    def covers(self, local_rank: int, *, symptom: bool, used: int) -> bool:
        """Whether this worker may be started again without taking a restart; if so, it is noted."""
        if not symptom or used <= self._covered.get(local_rank, 0):
            return False
        self._covered[local_rank] = used
        return True


def ready(count: int, now: float, *, least: int, most: int, enough_since: float | None, call: float) -> bool:
    """Whether to start with the nodes that are here.

    Args:
        count: of nodes.
        now: seconds.
        least: --nnodes' MIN; nothing starts with fewer.
        most: its MAX; nothing waits for more.
        enough_since: when there were enough for the first time, None: never yet.
        call: seconds to wait for more than MIN.
    """
    if count < least:
        return False
    return count >= most or (enough_since is not None and now >= enough_since + call)


def stays(lost: Collection[int], nnodes: int, least: int, *, elastic: bool, go_on: bool) -> bool:
    """Whether an attempt goes on after the loss of nodes.

    Args:
        lost: node ranks.
        nnodes: of the attempt.
        least: MIN.
        elastic: whether the script can do with fewer.
        go_on: --on-failure continue.
    """
    left = nnodes - len(lost)
    return left > 0 and (go_on or (elastic and left >= least))
