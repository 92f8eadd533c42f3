"""When a rank has heard of all whom it ever hears of: all have come, and only data is waited for. Pure.

A message tells that its sender has entered its round, and so that all have come of whom the sender had heard
in the rounds before.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.backends.schedules.steps import Schedule, Send


def heard_in(schedules: Sequence[Schedule], rank: int) -> int:
    """The round in which a rank hears of somebody for the last time of whom it has not heard before.

    Args:
        schedules: of all ranks, by rank.

    Returns:
        The round's number; -1: it hears of nobody.
    """
    heard = [1 << one for one in range(len(schedules))]
    last = -1
    for number in range(max(len(one.rounds) for one in schedules)):
        before = list(heard)
        for one, schedule in enumerate(schedules):
            for step in schedule.rounds[number] if number < len(schedule.rounds) else ():
                if not isinstance(step, Send):
                    heard[one] |= before[step.peer]
        if heard[rank] != before[rank]:
            last = number
    return last


def last_received(schedule: Schedule) -> int:
    """The last round in which a rank receives anything; -1: there is none."""
    receiving = [
        number
        for number, steps in enumerate(schedule.rounds)
        if any(not isinstance(step, Send) for step in steps)
    ]
    return receiving[-1] if receiving else -1
