"""Row 11: newcomers that come in the middle of an operation, and newcomers that die on their way in."""

from __future__ import annotations

import random
import time

from benchmarks.deaths.figures import Figures
from benchmarks.deaths.lives import live
from benchmarks.deaths.regroups import epochs_of
from benchmarks.deaths.scale import Scale
from tests.support.faults import Victims

SIZE = 3
LOOK = 5  # steps between two looks at who waits


async def run(scale: Scale) -> list[Figures]:
    """Let newcomers come, and die on their way in, while members step on."""
    comes = Figures(11, "comes in the middle of an operation", f"{SIZE}+1")
    dies = Figures(11, "dies on its way in", f"{SIZE}+1")
    chance = random.Random(scale.seed)
    async with Victims() as victims:
        for _ in scale.times(comes, scale.pick(1, 5, 100)):
            await _come(victims, comes)
        for _ in scale.times(dies, scale.pick(2, 10, 200)):
            await _die(victims, chance.randrange(1, 3500), dies)
    return [comes, dies]


async def _come(victims: Victims, figures: Figures) -> None:
    async with victims.round(live, SIZE, look=LOOK, nbytes=1 << 20) as round:
        await round.all_say("running")
        came = time.monotonic_ns()
        newcomer = round.add(newcomer=True, look=LOOK, nbytes=1 << 20)
        await round.all_say("running", [newcomer])
        round.tell("stop")
        seen = figures.take(await round.outcomes(within=90), round)
        for rank, value in seen.items():
            if value["ended"] or value["members"] != [*range(SIZE), newcomer]:
                figures.problem(f"rank {rank}: {value}")
        if faults := round.heard("breaks"):
            figures.problem(f"operations failed: {faults}")
        figures.samples.append((epochs_of(round, newcomer)[0].at - came) / 1e6)


async def _die(victims: Victims, step: int, figures: Figures) -> None:
    async with victims.round(live, SIZE, look=LOOK) as round:
        await round.all_say("running")
        newcomer = round.add(newcomer=True, look=LOOK, crash_at=step)
        await round.until(lambda: newcomer not in round.alive or epochs_of(round, newcomer), within=90)
        if newcomer in round.alive and not epochs_of(round, newcomer):
            figures.hangs += 1
            figures.problem(f"newcomer that should die at call {step}: {round.report()}")
        done = len(round.said)
        await round.until(lambda: len(round.said) > done, within=0.2)  # let what follows from it begin
        round.tell("stop")
        seen = figures.take(await round.outcomes(range(SIZE), within=90), round)
        members = {tuple(value["members"]) for value in seen.values()}
        if len(members) > 1 or any(value["ended"] for value in seen.values()):
            figures.problem(f"newcomer that died at call {step}: {seen}")
