"""The verdict on a job: one from all nodes' reports, the same on every node. Pure.

The rank that failed first decides the exit code, as a shell would give it (128 + signal). Two things
blur who was first, and both are dealt with: workers that *we* stopped are no failures, and workers
that died of another's death (`symptom`) give way to the one they died of, whatever the order.

What was mended does not count: a worker that was started again, and, under --on-failure continue, one
that the job went on without. Unless nobody is left who did better.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from aiodist.net.wire.typed import JsonMessage

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGQUIT)
_LATE = re.compile(r"[:;] (ranks? [\d, and]+) (?:had not arrived|did not answer)")
_GONE = re.compile(r"(?:PeerLost: lost (ranks? [\d, and]+):|GroupAborted: (rank \d+) aborted the group)")
_WAITED_ITSELF = ", this process; rank"  # others waited for it, and for those that it waited for
NEVER = 1 << 62  # the turn of a node where nothing went wrong


@dataclass(frozen=True)
class Ending:
    """The end of one worker.

    Args:
        rank: global rank.
        local_rank: its number on its node.
        node_rank: its node.
        host: its node's name.
        pid: its process.
        code: exit code; negative: the signal that killed it.
        at_ns: monotonic ns since its node's workers began.
        asked: the last signal that we had sent it before; 0: it ended of itself.
        symptom: its traceback only reports another rank's trouble.
        error: the line that ends its traceback, '': there is none.
        words: the end of its stderr.
        restarted: it failed, and was started again into the running group.
        forgiven: it failed, and the job went on without it.
        doing: what it did while others waited for it, as lines; () where it was not asked.
        wall: when it ended, in seconds since 1970; 0.0: not known.
        lingered: it had failed by an error of its own, as others say, and did not end until we stopped it.
    """

    rank: int
    local_rank: int
    node_rank: int
    host: str
    pid: int
    code: int
    at_ns: int
    asked: int = 0
    symptom: bool = False
    error: str = ""
    words: tuple[str, ...] = ()
    restarted: bool = False
    forgiven: bool = False
    doing: tuple[str, ...] = ()
    wall: float = 0.0
    lingered: bool = False

    @property
    def gone(self) -> frozenset[int]:
        """The ranks that ended, or aborted, what this one waited for, as far as its error says."""
        named = _GONE.match(self.error) if self.symptom else None
        return frozenset(map(int, re.findall(r"\d+", named[1] or named[2]))) if named else frozenset()

    @property
    def late(self) -> frozenset[int]:
        """The ranks that had not arrived at what this one waited for, as far as its error says."""
        waited = self.symptom or _WAITED_ITSELF in self.error
        named = _LATE.findall(self.error) if waited else []
        return frozenset(int(rank) for ranks in named for rank in re.findall(r"\d+", ranks))

    @property
    def stopped(self) -> bool:
        """Whether it ended because we asked it to."""
        if self.lingered:
            return False
        killed_by = -self.code if self.code < 0 else self.code - 128
        return bool(self.asked) and (self.code == 0 or killed_by in _STOPPING)

    @property
    def failed(self) -> bool:
        """Whether it ended badly, and not because we asked it to."""
        return self.code != 0 and not self.stopped

    @property
    def left(self) -> bool:
        """Whether it ended well, of itself."""
        return self.code == 0 and not self.asked

    @property
    def exit_code(self) -> int:
        """The code that a shell would report: 128 + signal for a killed process."""
        if self.lingered:
            return 1  # as it would have been
        return self.code if self.code >= 0 else 128 - self.code


@dataclass(frozen=True)
class NodeReport(JsonMessage):
    """One agent's report at the end.

    Args:
        node_rank: the node.
        host: its name.
        endings: its workers'; only those that failed need `words`.
        turn: when its first trouble came, counted over all nodes (`NEVER`: none).
        signum: the operator's signal that stopped it, 0: none.
        lost: nodes that stopped answering.
        error: why it could not start its workers, '': it could.
        spared: of the lost nodes, those that the job went on without.
    """

    WHAT = "a node's report"

    node_rank: int
    host: str
    endings: tuple[Ending, ...] = ()
    turn: int = NEVER
    signum: int = 0
    lost: tuple[int, ...] = ()
    error: str = ""
    spared: tuple[int, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The end of the job.

    Args:
        code: what every agent exits with.
        culprit: the worker that failed first, if one did and it decided; or the one for which those that
            failed had waited, and which was stopped; or the one that had ended well while they needed it.
        signum: the operator's signal, if that decided.
        lost: nodes that stopped answering or sent no report.
        spared: of these, the ones that the job went on without.
        endings: all workers', by rank; of one that was started again there are several.
        failures: the failed ones, first first.
        error: why a node could not start its workers, or why there is no other attempt, if that decided.
        restarts: how many were used, in all attempts.
        limit: how many were allowed.
    """

    code: int
    culprit: Ending | None = None
    signum: int = 0
    lost: tuple[int, ...] = ()
    endings: tuple[Ending, ...] = ()
    failures: tuple[Ending, ...] = ()
    error: str = ""
    spared: tuple[int, ...] = ()
    restarts: int = 0
    limit: int = 0


def judge(reports: Sequence[NodeReport], nnodes: int = 1) -> Verdict:
    """The verdict on an attempt from its nodes' reports; nodes without a report are lost.

    Node 0 hosts the job. Who has lost it knows nothing of the other nodes; and where node 0 itself has
    reported, it is the others' verdict that such a node is the one that is lost.
    """
    turns = {report.node_rank: report.turn for report in reports}
    lost = {
        report.node_rank if node == 0 and 0 in turns else node for report in reports for node in report.lost
    }
    if 0 not in lost:
        lost |= set(range(nnodes)) - turns.keys()
    spared = lost & {node for report in reports for node in report.spared}
    endings = _with_lingering(sorted((e for report in reports for e in report.endings), key=lambda e: e.rank))
    if all(ending.failed for ending in endings):  # nobody for whom the job went on has done better
        spared = set()
        failed = [e for e in endings if not e.restarted]
    else:
        failed = [e for e in endings if e.failed and not e.restarted and not e.forgiven]
    failures = tuple(
        sorted(failed, key=lambda e: (e.symptom, turns.get(e.node_rank, NEVER), e.at_ns, e.rank))
    )
    job = Verdict(0, None, 0, tuple(sorted(lost)), endings, failures, spared=tuple(sorted(spared)))
    first = min(reports, key=lambda r: (r.turn, r.node_rank), default=None)
    if first is not None and first.turn != NEVER:
        if first.error:
            return replace(job, code=2, error=f"node {first.node_rank} ({first.host}): {first.error}")
        if first.signum:
            return replace(job, code=128 + first.signum, signum=first.signum)
    missed = lost - spared
    if failures and not (missed and failures[0].symptom):  # else the culprit was on a lost node
        late = [e for e in endings if e.rank in failures[0].late and e.stopped]
        gone = [e for e in endings if e.rank in failures[0].gone and e.left]
        culprit = max(late, key=lambda e: (bool(e.doing), -e.rank), default=failures[0])
        culprit = min(gone, key=lambda e: (e.at_ns, e.rank), default=culprit)
        return replace(job, code=failures[0].exit_code, culprit=culprit)
    return replace(job, code=1) if missed else job


def _with_lingering(endings: Sequence[Ending]) -> tuple[Ending, ...]:
    """The same endings. One that we stopped had failed before, where another says that it has aborted the
    group by the error that it has written: a thread, or an exit handler, kept its process."""

    told = {e.error for e in endings if e.failed and " aborted the group: " in e.error}

    def has_failed(one: Ending) -> bool:
        its = f"rank {one.rank} aborted the group: {one.error[:40]}"
        return one.stopped and bool(one.error) and any(its in words for words in told)

    return tuple(replace(one, lingered=True) if has_failed(one) else one for one in endings)


def by_its_words(code: int, asked: int) -> bool:
    """Whether what a worker wrote last can be the reason of its end.

    Not where a signal has killed it that we had not sent: there it may have written that, and gone on, long
    before. Native code that gives up by SIGABRT does say why.

    Args:
        code: its exit code; negative: the signal.
        asked: the last signal that we had sent it; 0: none.
    """
    return code > 0 or (code < 0 and (bool(asked) or code == -signal.SIGABRT))


def lost_nodes(nodes: Collection[int], be: str = "is") -> str:
    """'node 1 is lost', 'nodes 1, 2 are lost', 'node 0, which hosts the job, is lost'.

    Args:
        nodes: at least one.
        be: 'is' or 'was'.
    """
    if 0 in nodes:  # that alone is the matter
        return f"node 0, which hosts the job, {be} lost"
    if len(nodes) == 1:
        return f"node {next(iter(nodes))} {be} lost"
    return f"nodes {', '.join(map(str, sorted(nodes)))} {'are' if be == 'is' else 'were'} lost"
