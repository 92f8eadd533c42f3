"""Who is killed when, at random. Pure: a seed gives one plan."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST = (
    0.004  # seconds from a step's beginning to a death: it strikes anywhere in a step, or in an exchange
)


@dataclass(frozen=True)
class Deaths:
    """Deaths of one or two ranks at about the same time.

    Args:
        step: at which they come.
        ahead: steps that the others may go on before a killed one has to be back.
        kills: slot, and seconds from the beginning of the step or from the death before.
    """

    step: int
    ahead: int
    kills: tuple[tuple[int, float], ...]


def plan(seed: int, steps: int, slots: int, kills: int) -> list[Deaths]:
    """Draw deaths.

    Args:
        seed: of the plan.
        steps: of the training. Deaths come in the first 85 % of them.
        slots: of ranks.
        kills: how many at least; one more where the last are two at once.

    Returns:
        deaths in the order of steps.
    """
    chance = random.Random(f"deaths {seed}")
    groups = list(_groups(chance, slots, kills))
    room = steps * 85 // 100 // len(groups)
    return [
        Deaths(
            number * room + chance.randrange(room // 2, room),
            chance.randrange(min(room // 2, steps // 20)),
            tuple((slot, chance.uniform(0, LONGEST)) for slot in group),
        )
        for number, group in enumerate(groups)
    ]


def _groups(chance: random.Random, slots: int, kills: int) -> Iterator[list[int]]:
    """Slots that die together. All die about equally often: the launcher lets one that fails often wait."""
    deck: list[int] = []
    while kills > 0:
        if len(deck) < 2:
            fresh = chance.sample(range(slots), slots)
            if deck == fresh[-1:]:  # nobody dies twice at once
                fresh.reverse()
            deck = fresh + deck
        group = [deck.pop() for _ in range(2 if chance.random() < 0.25 else 1)]
        kills -= len(group)
        yield group
