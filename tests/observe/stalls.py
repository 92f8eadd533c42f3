"""Small random jobs that stand still, and the rank that is the cause of it, known since we made it so."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from aiodist.observe import JobView, RankView
from aiodist.observe.recorder import Record
from aiodist.observe.recorder.layout import PENDING_PLACES, RING_PLACES
from aiodist.observe.recorder.reading import Group, Sum, Vitals
from tests.observe.made import a_job, a_rank, a_record

NOW, STALLED, AFTER = 1000.0, 900.0, 30.0
EPOCH = 3

ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
FROM_ROOT, TO_ROOT = ("broadcast", "scatter"), ("reduce", "gather")

KEPT = ("blocked", "held", "stopped", "dead", "left")
"""What keeps a rank from going on, besides its program."""


@dataclass
class Job:
    """A job while it is made: what each rank has issued, and how it is.

    Args:
        random: what is left open follows from it.
        size: the number of ranks.
    """

    random: Random
    size: int
    clock: float = 100.0
    last: dict[int, list[Record]] = field(default_factory=lambda: defaultdict(list))
    pending: dict[int, list[Record]] = field(default_factory=lambda: defaultdict(list))
    groups: list[Group] = field(default_factory=list)
    numbers: Counter[Group] = field(default_factory=Counter)
    streams: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    how: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = self.group(range(self.size), "world")
        for _ in range(self.random.randrange(3)):
            some = sorted(self.random.sample(range(self.size), self.random.randint(2, self.size)))
            self.group(some, self.random.choice(["part", "other"]))  # two may have one name

    def group(self, ranks: Sequence[int], name: str) -> Group:
        span = list(ranks) == list(range(ranks[0], ranks[0] + len(ranks)))
        made = Group(name, EPOCH, range(ranks[0], ranks[0] + len(ranks)) if span else tuple(ranks))
        made = replace(made, twin=sum(replace(one, twin=0) == made for one in self.groups))
        self.groups.append(made)
        return made

    def issue(self, rank: int, record: Record) -> None:
        """The rank issues it; it pends unless it has ended."""
        self.last[rank].append(record)
        if not record.ended:
            self.pending[rank].append(record)

    def collective(
        self,
        group: Group,
        *,
        absent: Sequence[int] = (),
        ends: Sequence[int] | None = None,
        op: str = "",
        root: int = 0,
    ) -> None:
        """One collective: all members but the absent ones issue it; it ends for `ends`, else for all."""
        self.clock += 0.5
        rooted = op in FROM_ROOT + TO_ROOT
        done = group.ranks if ends is None else ends
        for rank in group.ranks:
            if rank not in absent:
                ended = self.clock + 0.1 if rank in done else 0.0
                made = a_record(op or "all_reduce", self.numbers[group], self.clock, group=group, ended=ended)
                self.issue(rank, replace(made, root=root if rooted else -1, pending=self.clock + 0.01))
        self.numbers[group] += 1

    def message(
        self,
        group: Group,
        op: str,
        rank: int,
        peer: int,
        *,
        tag: int = 0,
        ended: bool = False,
        failed: bool = False,
    ) -> None:
        """One side of a message."""
        self.clock += 0.5
        there = list(group.ranks).index(peer)
        stream = (group, op, rank, there, tag)
        made = a_record(op, self.streams[stream], self.clock, group=group, root=there, tag=tag, failed=failed)
        self.issue(rank, replace(made, ended=self.clock + 0.1 if ended or failed else 0.0))
        self.streams[stream] += 1

    def history(self, steps: int) -> None:
        """What went well before: collectives, and messages of which some receives were taken back."""
        for _ in range(steps):
            group = self.random.choice(self.groups)
            op = self.random.choice(ALL + FROM_ROOT + TO_ROOT)
            if self.random.random() < 0.7:
                self.collective(group, op=op, root=self.random.randrange(len(group.ranks)))
            else:
                one, other = self.random.choices(list(group.ranks), k=2)  # also to itself
                tag = self.random.randrange(2)
                if self.random.random() < 0.2:
                    self.message(group, "recv", other, one, tag=tag, failed=True)
                self.message(group, "send", one, other, tag=tag, ended=True)
                self.message(group, "recv", other, one, tag=tag, ended=True)

    def noise(self, among: Sequence[int]) -> None:
        """What pends and is nobody's fault: receives from anybody, and operations to which all have come."""
        for rank in among:
            if self.random.random() < 0.3:
                server = a_record("recv", 0, self.clock, group=self.world, root=-1, tag=99)
                self.issue(rank, server)
        if len(among) > 1 and self.random.random() < 0.3:
            self.collective(self.group(sorted(among), "side"), ends=())

    def wrap(self) -> None:
        """Let ranks go on in groups of their own, until their rings have forgotten the rest."""
        for rank in range(self.size):
            if self.random.random() < 0.5:
                own = Group(f"own {rank}", EPOCH, (rank,))
                self.last[rank] += [
                    a_record(
                        number=number, issued=self.clock + 1e-3 * number, group=own, ended=self.clock + 1.0
                    )
                    for number in range(RING_PLACES)
                ]
        self.clock += 3.0

    def seen(self) -> JobView:
        """The job, as it is seen at `NOW`."""
        return a_job(*(self._view(rank) for rank in range(self.size) if self.how.get(rank) != "unseen"))

    def _view(self, rank: int) -> RankView:
        how = self.how.get(rank, "")
        earlier = a_record(number=50, issued=50.0, group=Group("world", EPOCH - 1, range(self.size + 1)))
        last = [earlier, *self.last[rank]]
        wrote = NOW - 60.0 if how in ("held", "dead") else NOW - 0.05
        turned = NOW - 60.0 if how in ("blocked", "stopped") else wrote
        return a_rank(
            rank,
            sorted(last, key=lambda record: record.issued)[-RING_PLACES:],
            pending=sorted(self.pending[rank], key=lambda record: record.issued)[:PENDING_PLACES],
            now=NOW,
            vitals=Vitals(wrote, 7, turned, 0.0, len(last), 0),
            left=NOW - 50.0 if how == "left" else 0.0,
            sums=list(map(self._sum, *zip(*self._sorts(last).items(), strict=True))),
            groups=[group for group in self.groups if rank in group.ranks],
            epoch=EPOCH,
            size=self.size,
            alive=how != "dead",
            stopped=how == "stopped",
        )

    def _sorts(self, last: Sequence[Record]) -> dict[tuple[Any, ...], list[Record]]:
        found = defaultdict(list)
        for one in last:
            found[one.group, one.op, one.root, one.tag].append(one)
        return found

    def _sum(self, key: tuple[Any, ...], those: Sequence[Record]) -> Sum:
        group, op, root, tag = key
        failed = sum(one.failed for one in those)
        return Sum(group, op, "float32", (3,), "", root, tag, 12, len(those), len(those), failed, 0.0, 0.0)


@dataclass(frozen=True)
class Stall:
    """A job that stands still, and what is to be said of it.

    Args:
        job: as it is seen.
        kind, ranks: of the verdict.
    """

    job: JobView
    kind: str
    ranks: tuple[int, ...]


def one_is_missing(job: Job, how: str) -> tuple[int, ...]:
    """A rank does not come to a collective: it is late, or something keeps it; others wait for those."""
    random = job.random
    group = random.choice(job.groups)
    culprit = random.choice(list(group.ranks))
    root = list(group.ranks).index(culprit)
    op = random.choice(ALL + FROM_ROOT)
    late = [culprit]
    if op in FROM_ROOT and len(group.ranks) > 2:  # others may come later, too: the root is what is waited for
        late += random.sample([one for one in group.ranks if one != culprit], 1)
    job.collective(group, absent=late, ends=(), op=op, root=root)
    waiting = set(group.ranks) - set(late)
    if how not in ("late", "unseen") and random.random() < 0.5 and len(job.groups) > 1:
        own = job.group([culprit, next(one for one in group.ranks if one != culprit)], "own")
        job.collective(own, absent=[one for one in own.ranks if one != culprit], ends=())  # it waits, too
    _others_wait(job, waiting, culprit)
    if how != "late":
        job.how[culprit] = how
    return (culprit,)


def _others_wait(job: Job, waiting: set[int], culprit: int) -> None:
    """Who waits for nobody yet waits for one that does, by a collective or a message."""
    rest = [rank for rank in range(job.size) if rank not in waiting and rank != culprit]
    job.random.shuffle(rest)
    for rank in rest:
        if job.random.random() < 0.5:
            other = job.random.choice(sorted(waiting))
            if job.random.random() < 0.5:
                pair = job.group(sorted([rank, other]), "pair")
                job.collective(pair, absent=[other], ends=())
            else:
                job.message(job.world, "recv", rank, other, tag=5)
            waiting.add(rank)


def one_goes_another_way(job: Job) -> tuple[int, ...]:
    culprit = job.random.randrange(job.size)
    others = [rank for rank in range(job.size) if rank != culprit]
    half = job.group(
        sorted([culprit, *job.random.sample(others, job.random.randint(1, len(others) - 1))]), "half"
    )
    job.collective(job.world, absent=[culprit], ends=())
    job.collective(half, absent=[rank for rank in half.ranks if rank != culprit], ends=())
    return (culprit,)


def a_circle(job: Job) -> tuple[int, ...]:
    """Some ranks use groups of two in an order in which each waits for the next; the others wait for them."""
    ranks = job.random.sample(range(job.size), job.random.randint(2, min(3, job.size)))
    pairs = list(zip(ranks, [*ranks[1:], ranks[0]], strict=True))
    for one, other in pairs:
        job.collective(job.group(sorted([one, other]), "pair"), absent=[other], ends=())
    if len(ranks) < job.size:
        job.collective(job.world, absent=ranks, ends=())
    return tuple(sorted(ranks))


def a_message_without(job: Job, op: str) -> tuple[int, ...]:
    """One side of a message is never issued: by a rank that does nothing, or waits in a collective."""
    rank, peer = job.random.sample(range(job.size), 2)
    job.message(job.world, op, rank, peer, tag=job.random.choice([0, 7]))
    if job.random.random() < 0.5:  # its other side has another tag
        job.message(job.world, {"send": "recv", "recv": "send"}[op], peer, rank, tag=3, ended=True)
    if job.random.random() < 0.5:
        job.collective(job.world, absent=[rank], ends=())
    return (peer,)


CASES: dict[str, Callable[[Job], tuple[int, ...]]] = {
    **{how: (lambda job, how=how: one_is_missing(job, how)) for how in (*KEPT, "late", "unseen")},  # type: ignore[misc]
    "branched": one_goes_another_way,
    "deadlock": a_circle,
    "unreceived": lambda job: a_message_without(job, "send"),
    "unsent": lambda job: a_message_without(job, "recv"),
}


def a_stall(random: Random, kind: str) -> Stall:
    """A random job that stands still for this reason."""
    job = Job(random, random.randint(4 if kind == "branched" else 2, 9))
    job.history(random.randrange(30))
    if random.random() < 0.15:
        job.wrap()
    job.clock = STALLED
    ranks = CASES[kind](job)
    if kind not in ("branched", "deadlock"):  # there the majority counts, and where each is
        job.noise([rank for rank in range(job.size) if rank not in ranks])
    return Stall(job.seen(), kind, ranks)
