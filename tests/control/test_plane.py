"""The shell of the control plane: links, listeners, and what comes too early or is nonsense."""

from __future__ import annotations

import msgpack
import pytest

from aiodist.control.liveness import PATIENCE
from aiodist.control.messages import EVERYBODY, PING, Message, Say, decode
from aiodist.control.plane import ControlPlane
from aiodist.group import ProcessGroup
from aiodist.testing import VirtualLoop, run_cluster, run_virtual


class FakeLink:
    """Records what a neighbour would get; `waiting` is what it wrote and nobody has read, None its end."""

    def __init__(self, plane: ControlPlane, rank: int, far: bool = True) -> None:
        self.sent: list[Message] = []
        self.pings = 0
        self.ending = ""
        self.far = far
        self.waiting: list[bytes | None] = []
        self.plane = plane
        self.rank = rank

    def send(self, message: bytes) -> None:
        assert not self.ending
        if message == PING:
            self.pings += 1
        else:
            self.sent.append(decode(message))

    def drain(self) -> None:
        while self.waiting and not self.ending:
            message = self.waiting.pop(0)
            if message is None:
                self.plane.ended(self.rank, False, "connection ended without goodbye")
            elif message:
                self.plane.received(self.rank, message)
            else:
                self.plane.ended(self.rank, True, "")

    def close(self) -> None:
        self.ending = "goodbye"

    def kill(self) -> None:
        self.ending = "killed"


class Ear:
    """A listening group."""

    def __init__(self) -> None:
        self.lost: list[tuple[int, str]] = []
        self.silence: list[float | None] = []
        self.heard: list[Message] = []

    def rank_left(self, rank: int) -> None:
        raise AssertionError(rank)

    def rank_lost(self, rank: int, cause: str, silence: float | None) -> None:
        self.lost.append((rank, cause))
        self.silence.append(silence)

    def said(self, message: Message) -> None:
        self.heard.append(message)


def make(size: int = 4, rank: int = 0) -> tuple[ControlPlane, dict[int, FakeLink]]:
    """A plane with all its links."""
    plane = ControlPlane(rank, size)
    links = {neighbour: FakeLink(plane, neighbour) for neighbour in plane.core.neighbours}
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
    assert one.silence == two.silence == [None]
    assert [len(links[n].sent) for n in (1, 2, 3)] == [1, 0, 1]
    assert plane.core.proven == set()
    plane.lose(2, "process 5 ended", proven=True)
    assert len(one.lost) == 1
    assert plane.core.proven == {2}


def lost(rank: int, cause: str = "stopped", origin: int = 3, silence: int = -1) -> bytes:
    return Message(Say.lost, origin, 77, EVERYBODY, 64, (rank, cause, silence)).encode()


def test_what_was_given_up_is_told_so_and_then_everything_ends() -> None:
    for hearsay in (False, True):
        plane, links = make()
        ear, ended = Ear(), list[tuple[int, list[tuple[int, str]]]]()
        plane.subscribe(11, ear)
        plane.on_lost = lambda rank: ended.append((rank, list(ear.lost)))  # noqa: B023
        if hearsay:
            plane.received(3, lost(2, silence=1500))
            assert ear.silence == [1.5]
        else:
            plane.lose(2, "stopped")
        assert ear.lost == [(2, "stopped")]
        assert ended == [(2, [])]  # first the connections, then the groups
        assert [message.body[:2] for message in links[2].sent] == [(2, "stopped")]
        assert links[2].ending == "killed"
        assert [links[n].ending for n in (1, 3)] == ["", ""]
        plane.received(2, broken(11))  # nothing that it says is heard any more
        again = FakeLink(plane, 2)
        plane.attach(2, again)
        assert again.ending == "killed"
        assert not ear.heard
        plane.flood(Say.left, 1, 0, 0)
        assert len(links[2].sent) == 1


@pytest.mark.parametrize("by", ["process", "hearsay", "connection"])
def test_last_words_are_heard_before_the_loss(by: str) -> None:
    plane, links = make()
    ear = Ear()
    plane.subscribe(11, ear)
    links[2].waiting = [broken(11), lost(1, origin=2), None]
    if by == "process":
        plane.lose(2, "process 5 ended", proven=True)
    elif by == "hearsay":
        plane.received(3, lost(2, "process 5 ended"))
    else:
        links[2].drain()
    assert [message.body[1] for message in ear.heard] == ["aborted"]
    cause = "connection ended without goodbye" if by == "connection" else "process 5 ended"
    assert ear.lost == [(1, "stopped"), (2, cause)]


def test_a_goodbye_that_nobody_has_read_yet_is_no_loss() -> None:
    plane, links = make()
    ear = Ear()
    plane.subscribe(11, ear)
    links[2].waiting = [b""]
    links[1].waiting = [None]
    plane.lose(2, "process 5 ended", proven=True)
    assert ear.lost == [(1, "connection ended without goodbye")]
    assert plane.core.departed == {2}


@pytest.mark.parametrize("by", ["its channels", "a process", "a control link"])
def test_who_was_given_up_hears_that_before_it_accuses(by: str) -> None:
    """The others went on, and ended, while this process was stopped; now it sees all of that at once."""
    plane, links = make()
    ear = Ear()
    plane.subscribe(11, ear)
    for link in links.values():
        link.waiting = [lost(0), None]
    if by == "a control link":
        plane.ended(1, False, "reset by peer")
    else:
        plane.lose(1, "connection ended without goodbye", proven=by == "a process")
    assert ear.lost == [(0, "stopped")]
    assert plane.core.lost.keys() == {0}
    plane.lose(3, "connection ended without goodbye")
    assert ear.lost == [(0, "stopped")]


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
    msgpack.packb([int(Say.lost), 2, 1, -1, 64, [{}, "why", -1]]),
    msgpack.packb([int(Say.lost), 2, 1, -1, 64, ["two", "why", -1]]),
    msgpack.packb([int(Say.lost), 2, 1, -1, 64, [3, "why"]]),
    msgpack.packb([int(Say.lost), 2, 1, -1, 64, [3, "why", 0.5]]),
    PING + PING,
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


class Clocked:
    """A plane that watches its neighbours, in virtual time."""

    def __init__(self, near: tuple[int, ...] = ()) -> None:
        self.loop = VirtualLoop()
        self.plane = ControlPlane(0, 4)
        self.links = {rank: FakeLink(self.plane, rank, rank not in near) for rank in (1, 2, 3)}
        self.plane.attach(1, self.links[1])
        self.plane.watch(self.loop, 0.25, 30.0)
        self.plane.attach(2, self.links[2])
        self.plane.attach(3, self.links[3])
        self.ear = Ear()
        self.plane.subscribe(11, self.ear)

    def run(self, seconds: float, alive: tuple[int, ...] = ()) -> None:
        """Let time pass; the living ping."""
        end = self.loop.time() + seconds
        while self.loop.time() < end:
            for rank in alive:
                self.plane.received(rank, PING)
            self.loop.call_later(0.25, self.loop.stop)
            self.loop.run_forever()

    def block(self, seconds: float) -> None:
        """The loop does not turn for so long."""
        self.loop._clock.now += seconds

    def close(self) -> None:
        self.plane.close()
        self.loop.close()


def test_who_pings_lives_and_who_does_not_is_lost() -> None:
    all_of_it = Clocked()
    all_of_it.run(100, alive=(1, 2, 3))
    assert all(395 <= link.pings <= 405 for link in all_of_it.links.values())
    assert not all_of_it.ear.lost
    all_of_it.run(29, alive=(1, 3))
    assert not all_of_it.ear.lost
    all_of_it.run(2, alive=(1, 3))
    [(rank, cause)] = all_of_it.ear.lost
    assert rank == 2
    assert cause.startswith("its event loop has not turned for 30 s (stopped, or")
    [silence] = all_of_it.ear.silence
    assert silence is not None
    assert 30 <= silence <= 31
    assert all_of_it.links[2].ending == "killed"
    all_of_it.run(100, alive=(1, 3))
    assert len(all_of_it.ear.lost) == 1
    all_of_it.close()


def test_whoever_was_stopped_reads_first_and_accuses_nobody() -> None:
    woken = Clocked()
    woken.run(10, alive=(1, 2, 3))
    woken.block(3600)
    for link in woken.links.values():
        link.waiting = [PING] * 10
    woken.run(29.5)  # nobody says anything: but the hour does not count
    assert not woken.ear.lost
    for link in woken.links.values():
        link.waiting = [PING]
    woken.run(29.5)
    assert not woken.ear.lost
    for link in woken.links.values():
        link.waiting = [lost(0), None]
    woken.run(5)
    assert woken.ear.lost == [(0, "stopped")]
    pings = [link.pings for link in woken.links.values()]
    woken.run(5)
    assert [link.pings for link in woken.links.values()] == pings
    woken.close()


def test_silent_neighbours_of_this_host_are_not_pinged_for_long() -> None:
    near = Clocked(near=(1, 2))
    near.run(20, alive=(2, 3))
    assert [link.pings > PATIENCE + 1 for link in near.links.values()] == [False, True, True]
    near.close()


def test_nothing_is_due_after_the_end() -> None:
    for ending in ("close", "kill"):
        over = Clocked()
        over.run(1)
        getattr(over.plane, ending)()
        assert over.plane._timer is None
        over.loop.run_until_complete(_nothing())
        over.loop.close()


async def _nothing() -> None:
    pass


def test_simulations_have_no_heartbeat() -> None:
    async def main(pg: ProcessGroup) -> bool:
        return pg._control._liveness is None and pg._control._timer is None

    assert all(run_virtual(run_cluster(3, main)))


def test_a_neighbour_that_left_is_not_watched() -> None:
    left = Clocked()
    left.plane.ended(1, True, "")
    left.run(40, alive=(2, 3))
    assert not left.ear.lost
    assert left.links[1].pings == 0
    left.close()
