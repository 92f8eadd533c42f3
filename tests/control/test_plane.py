"""The shell of the control plane: links, listeners, and what comes too early or is nonsense."""

from __future__ import annotations

import msgpack
import pytest

from aiodist.control.messages import EVERYBODY, Message, Say, decode
from aiodist.control.plane import ControlPlane


class FakeLink:
    """Records what a neighbour would get."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.ending = ""

    def send(self, message: bytes) -> None:
        self.sent.append(decode(message))

    def close(self) -> None:
        self.ending = "goodbye"

    def kill(self) -> None:
        self.ending = "killed"


class Ear:
    """A listening group."""

    def __init__(self) -> None:
        self.lost: list[tuple[int, str]] = []
        self.heard: list[Message] = []

    def rank_lost(self, rank: int, cause: str) -> None:
        self.lost.append((rank, cause))

    def said(self, message: Message) -> None:
        self.heard.append(message)


def make(size: int = 4, rank: int = 0) -> tuple[ControlPlane, dict[int, FakeLink]]:
    """A plane with all its links."""
    plane = ControlPlane(rank, size)
    links = {neighbour: FakeLink() for neighbour in plane.core.neighbours}
    assert plane.awaited() == set(links)
    for neighbour, link in links.items():
        plane.attach(neighbour, link)
    assert plane.awaited() == set()
    return plane, links


def broken(context: int, number: int = 1, origin: int = 2) -> bytes:
    return Message(Say.broken, origin, number, EVERYBODY, 64, (context, "aborted", origin, "why")).encode()


def test_message_goes_to_the_group_that_it_names_and_on_to_the_others() -> None:
    plane, links = make()
    one, two = Ear(), Ear()
    plane.subscribe(11, one)
    plane.subscribe(22, two)
    plane.received(2, broken(22))
    assert not one.heard
    assert [message.body[0] for message in two.heard] == [22]
    assert [len(links[n].sent) for n in (1, 2, 3)] == [1, 0, 1]
    plane.received(3, broken(22))  # the same one, another way
    assert len(two.heard) == 1


def test_loss_is_told_to_all_groups_and_to_later_ones() -> None:
    plane, links = make()
    one = Ear()
    plane.subscribe(11, one)
    plane.ended(2, False, "reset by peer")
    two = Ear()
    plane.subscribe(22, two)
    assert one.lost == two.lost == [(2, "reset by peer")]
    assert [len(links[n].sent) for n in (1, 2, 3)] == [1, 0, 1]
    plane.lose(2, "process 5 ended")
    assert len(one.lost) == 1


def test_goodbye_is_told_to_nobody() -> None:
    plane, links = make()
    ear = Ear()
    plane.subscribe(11, ear)
    plane.ended(2, True, "")
    plane.lose(2, "process 5 ended")
    assert not ear.lost
    assert not any(link.sent for link in links.values())


def test_news_of_a_group_to_come_are_kept_and_of_a_past_one_dropped() -> None:
    plane, _ = make()
    plane.received(2, broken(33))
    plane.received(2, Message(Say.left, 2, 2, EVERYBODY, 64, (33, 2, 0)).encode())
    ear = Ear()
    plane.subscribe(33, ear)
    assert [message.say for message in ear.heard] == [Say.broken, Say.left]
    plane.unsubscribe(33)
    plane.received(2, broken(33, number=3))
    later = Ear()
    plane.subscribe(33, later)
    assert not later.heard


def test_groups_of_others_leave_nothing_behind() -> None:
    plane, _ = make()
    for context in range(100, 200):
        plane.received(2, Message(Say.left, 2, context, EVERYBODY, 64, (context, 2, 0)).encode())
        plane.unsubscribe(context)  # what a rank does that is no member
    assert not plane._early


def test_question_about_an_unknown_group_is_answered() -> None:
    plane, links = make()
    plane.received(2, Message(Say.where, 2, 1, 0, 64, (44, 7)).encode())
    [answer] = links[2].sent
    assert (answer.say, answer.target, answer.body) == (Say.here, 2, (44, 7, False, b"", ""))


def test_tell_oneself() -> None:
    plane, links = make()
    ear = Ear()
    plane.subscribe(11, ear)
    plane.tell([0, 1], Say.stalled, 11, 3)
    assert [message.body for message in ear.heard] == [(11, 3)]
    assert [len(links[n].sent) for n in (1, 2, 3)] == [1, 0, 0]


NONSENSE = [
    b"",
    b"\xc1",
    msgpack.packb([1, 2]),
    msgpack.packb([99, 2, 1, -1, 64, [1]]),
    msgpack.packb(["x" * 60_000, 2, 1, -1, 64, [1]]),
    msgpack.packb([int(Say.lost), 2, 1, -1, 64, [{}, "why"]]),
    msgpack.packb([int(Say.lost), 2, 1, -1, 64, ["two", "why"]]),
    msgpack.packb([int(Say.broken), 2, 1, -1, 64, [{}, "lost"]]),
    msgpack.packb([int(Say.here), 2, 1, 0, 64, [1, 2, 3, 4, 5]]),
    msgpack.packb([int(Say.left), 2, 1, -1, 64, [[], 2, 0]]),
]


@pytest.mark.parametrize("data", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_costs_the_neighbour_its_membership(data: bytes) -> None:
    plane, links = make()
    ear = Ear()
    plane.subscribe(1, ear)
    plane.received(2, data)
    [(rank, cause)] = ear.lost
    assert rank == 2
    assert "nonsense" in cause
    assert [message.say for message in links[1].sent] == [Say.lost]


def test_closed_plane_is_deaf_and_dumb() -> None:
    for ending in ("goodbye", "killed"):
        plane, links = make()
        ear = Ear()
        plane.subscribe(1, ear)
        if ending == "goodbye":
            plane.close()
        else:
            plane.kill()
        assert {link.ending for link in links.values()} == {ending}
        plane.received(2, broken(1))
        plane.ended(2, False, "reset")
        plane.lose(3, "gone")
        plane.flood(Say.left, 1, 0, 0)
        plane.tell([1], Say.stalled, 1, 0)
        plane.close()
        plane.kill()
        assert not ear.lost and not ear.heard
        assert not any(link.sent for link in links.values())


def test_lost_neighbours_are_not_awaited() -> None:
    plane = ControlPlane(0, 3)
    assert plane.awaited() == {1, 2}
    plane.lose(2, "process 3 ended")
    assert plane.awaited() == {1}
