"""Control messages of a member that name ranks and groups that there are not: little is kept of them."""

from __future__ import annotations

import pytest

from aiodist.group.control.early import LIMIT
from aiodist.group.control.messages import EVERYBODY, Message, Say
from aiodist.group.control.plane import ControlPlane
from aiodist.group.watch import ASKED
from tests.fuzz.hand_loop import HandLoop
from tests.fuzz.targets_control import CONTEXT, process
from tests.levels import COSTLY


class Dumb:
    """A link that nobody reads."""

    far = True

    def __init__(self) -> None:
        self.killed = False

    def send(self, message: bytes) -> None:
        pass

    def post(self, message: bytes) -> None:
        pass

    def drain(self) -> None:
        pass

    def close(self) -> None:
        self.killed = True

    def kill(self) -> None:
        self.killed = True


def made() -> tuple[ControlPlane, dict[int, Dumb], list[int]]:
    """A plane of rank 0 of 4, its links, and whom it has given up."""
    plane = ControlPlane(0, 4)
    dropped: list[int] = []
    plane.on_lost = dropped.append
    links = {neighbour: Dumb() for neighbour in plane.core.neighbours}
    for neighbour, link in links.items():
        plane.attach(neighbour, link)
    return plane, links, dropped


@pytest.mark.parametrize("rank", [4, -1, 1 << 40])
@pytest.mark.parametrize(
    ("say", "body"),
    [
        (Say.lost, ("rank", "it is gone", -1)),
        (Say.blocked, ("rank", 1, 5000, "somewhere")),
        (Say.left, (7, "rank", 3, ())),
        (Say.broken, (7, "aborted", "origin", "why")),
        (Say.stalled, (7, 1)),
    ],
)
def test_ranks_that_there_are_not(say: Say, body: tuple[object, ...], rank: int) -> None:
    """Who names one is given up: any other that it came from would have seen that."""
    plane, links, dropped = made()
    if "rank" in body:
        message = Message(say, 1, 1, EVERYBODY, 64, tuple(rank if one == "rank" else one for one in body))
    else:
        message = Message(say, rank, 1, EVERYBODY, 64, body)
    plane.received(1, message.encode())
    assert dropped == [1] and links[1].killed
    assert list(plane.core.lost) == [1]
    assert rank not in plane.core._seen and not plane._early


@pytest.mark.parametrize("target", [4, 1 << 40, -2])
def test_targets_that_there_are_not(target: int) -> None:
    plane, _links, dropped = made()
    plane.received(2, Message(Say.stalled, 2, 1, target, 64, (7, 1)).encode())
    assert dropped == [2]


@pytest.mark.slow(COSTLY)
def test_news_of_groups_that_there_are_not() -> None:
    plane, _links, dropped = made()
    for number in range(20_000):
        plane.received(1, Message(Say.left, 1, number, EVERYBODY, 64, (1 << 40 | number, 1, 0, ())).encode())
        plane.received(1, Message(Say.broken, 2, number, EVERYBODY, 64, (number, "x", "y" * 100)).encode())
    assert plane._early._nbytes <= LIMIT
    assert not dropped


def test_questions_about_operations_that_there_are_not() -> None:
    """A leader goes on asking for a moment; one member's inventions take no room from another's questions."""
    loop = HandLoop()
    plane, group = process(loop)
    watch = group.watch

    def stalled(origin: int, number: int) -> None:
        plane.received(
            origin, Message(Say.stalled, origin, number, plane.rank, 64, (CONTEXT, number)).encode()
        )

    for number in range(10, 10 + 10 * ASKED):
        stalled(1, number)
    assert len(watch._inquiries) == len(watch._timers) == ASKED
    stalled(2, 5)
    assert set(watch._inquiries[5].askers) == {2}
    loop.advance(5.0)
    assert not watch._inquiries and not any(watch._asks.values())
    stalled(1, 9)
    assert 9 in watch._inquiries, "it is heard again"
    loop.advance(5.0)
    watch.close()
