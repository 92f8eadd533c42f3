"""A peer that writes nonsense into its own segment can make a rank fail its group, and nothing else."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from aiodist.backends.host.local.board import CODE, FILL, OUT, RESULT, SLOTS, SOURCE, TOOK, TOOK_OUT
from aiodist.backends.host.local.plan import Path
from aiodist.base.errors import GroupBroken
from aiodist.base.operations import ROLES, Parts
from aiodist.base.types import NO_ROOT, Kind, ReduceOp
from tests.backends.host.local.members import Member, call_of

KINDS = [kind for kind, roles in ROLES.items() if roles.source is not Parts.NONE and not roles.message]
COUNTS = (FILL, TOOK, OUT, TOOK_OUT)
WORDS = (CODE, FILL, TOOK, OUT, TOOK_OUT, SOURCE, RESULT)
COUNT, SLOT_COUNT = 3 * 700, 3 * 340  # elements; of an operation in the slots
EDGE = 1 << 63

PROGRAMS = 60


def begin(member: Member, kind: Kind, path: Path, place: str) -> Any:
    """An operation of three members; the one that writes nonsense is the root of what has one."""
    roles, rank = ROLES[kind], member.rank
    root = 1 if roles.rooted else NO_ROOT
    count = SLOT_COUNT if path is Path.slot else COUNT
    part = count // 3
    shape = part if roles.agrees_on_part else count
    source = np.arange(count if roles.source is Parts.EACH else shape) + 1000 * rank
    target = np.full(3 * shape if roles.target is Parts.EACH and roles.agrees_on_part else count, -1)
    if roles.cut and roles.target is Parts.ONE:
        target = np.full(part, -1)
    given = member.put(source, place) if roles.gives(rank, root) else None
    got = member.put(target, place) if roles.gets(rank, root) else None
    if roles.one_tensor:
        given, got = (given, None) if given is not None else (got, got)
    if kind in (Kind.all_reduce, Kind.reduce) and got is not None:
        got = given
    reduce = ReduceOp.SUM if roles.reduces else None
    return member.begin(call_of(kind, np.zeros(shape, np.int64), 0, reduce, root), given, got, path)


def nonsense(rng: random.Random, exchange: Any, honest: list[int]) -> int:
    """A word that may come close to what is right."""
    near = rng.choice([0, 1, 2, 3, 64, exchange.code, EDGE, 2 * EDGE - 1, *honest])
    return (
        (near + rng.choice([0, 0, 1, -1, 1 << 40])) % (2 * EDGE)
        if rng.random() < 0.8
        else rng.getrandbits(64)
    )


@pytest.mark.parametrize("path", [Path.slot, Path.direct, Path.inline, Path.bulk], ids=lambda path: path.name)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
async def test_each_word_at_random_at_every_moment(hubs: Any, join: Any, kind: Kind, path: Path) -> None:
    if (path is Path.direct) != (kind is Kind.all_reduce) and path in (Path.direct, Path.slot):
        pytest.skip("no such path")
    local = hubs(3)
    rng, said = random.Random(f"{kind} {path}"), set[str]()
    for _ in range(PROGRAMS):
        group = join(local)
        begun = [begin(member, kind, path, rng.choice(["own", "segment", "odd"])) for member in group]
        liar = group[1]
        honest = [liar.word(0, word) for word in WORDS]
        for _ in range(40):
            if rng.random() < 0.5:  # what is right but for a word, so that the others come further
                for word, value in zip(WORDS, honest, strict=True):
                    liar.write(0, word, rng.choice([0, 1, 2, 3]) if word in COUNTS else value)
            liar.write(0, rng.choice(WORDS), nonsense(rng, begun[1], honest))
            if rng.random() < 0.1:
                liar.hub.words[liar.board.at // 8 + rng.randrange(SLOTS)] = rng.getrandbits(64)
            for member, exchange in zip((group[0], group[2]), (begun[0], begun[2]), strict=True):
                try:
                    member.step(exchange)
                except GroupBroken as error:
                    said.add(str(error))
                    exchange.end()
        for member in group:
            member.leave()
            member.close()
    assert all(text.startswith("rank 1 says that its data lies where it has no memory") for text in said)
    read = path is not Path.slot and kind is not Kind.gather  # no place of the one that lies is read there
    assert bool(said) == read, "what a peer says of places was not tried"
