"""The shell of the control plane: links, listeners, and what comes too early or is nonsense."""

from __future__ import annotations

from collections.abc import Mapping

import msgpack
import pytest

from aiodist.base.errors import Tampered
from aiodist.group import ProcessGroup
from aiodist.group.control.clocks import Stamp, stamp_of
from aiodist.group.control.liveness import PATIENCE, Blocked, LoopState, Patience
from aiodist.group.control.messages import EVERYBODY, PING, Message, Say, decode
from aiodist.group.control.plane import ControlPlane
from aiodist.observe.recorder import Recorder, read
from aiodist.observe.recorder.layout import SIZE
from aiodist.testing import VirtualLoop, run_cluster, run_virtual
from tests.helpers import core_of


class FakeLink:
    """Records what a neighbour would get; `waiting` is what it wrote and nobody has read, None its end."""

    def __init__(self, plane: ControlPlane, rank: int) -> None:
        self.sent: list[Message] = []
        self.posted: list[Message] = []
        self.pings = 0
        self.ending = ""
        self.waiting: list[bytes | None] = []
        self.plane = plane
        self.rank = rank

    def send(self, message: bytes) -> None:
        assert not self.ending
        if message == PING:
            self.pings += 1
        else:
            self.sent.append(decode(message))

    def post(self, message: bytes) -> None:
        self.posted.append(decode(message))

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
        self.blocked: list[dict[int, str]] = []
        self.altered: list[tuple[int, str]] = []

    def ranks_blocked(self, blocked: Mapping[int, Blocked], now: float) -> None:
        self.blocked.append({rank: one.describe(now) for rank, one in blocked.items()})

    def tampered(self, rank: int, error: Tampered) -> None:
        self.altered.append((rank, str(error)))

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
        plane.flood(Say.left, 1, 0, 0, ())
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


def test_of_two_who_accuse_each_other_the_first_is_believed() -> None:
    """Rank 1 broke the protocol of rank 2, which told everybody and hung up; rank 1 saw only the end."""
    plane, links = make()
    ear = Ear()
    plane.subscribe(11, ear)
    of_2 = Message(Say.lost, 2, 1, EVERYBODY, 64, (1, "protocol error: nonsense", -1))
    of_1 = Message(Say.lost, 1, 1, EVERYBODY, 64, (2, "connection ended without goodbye", -1))
    links[2].waiting = [of_2.encode()]
    plane.received(1, of_1.encode())
    assert ear.lost == [(1, "protocol error: nonsense")]
    assert not links[2].ending
    plane.received(3, Message(Say.lost, 3, 1, EVERYBODY, 64, (2, "process 4711 ended", -1)).encode())
    assert [rank for rank, _ in ear.lost] == [1, 2]  # by others it can be lost all the same


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
    plane.received(2, Message(Say.left, 2, 2, EVERYBODY, 64, (33, 2, 0, ())).encode())
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
        plane.received(2, Message(Say.left, 2, context, EVERYBODY, 64, (context, 2, 0, ())).encode())
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
    Stamp(float("nan"), 0.0, 0.0).ping(),
    Stamp(1.0, -1.0, 0.0).ping(),
    msgpack.packb([int(Say.broken), 2, 1, -1, 64, [{}, "lost"]]),
    msgpack.packb([int(Say.here), 2, 1, 0, 64, [1, 2, 3, 4, 5]]),
    msgpack.packb([int(Say.left), 2, 1, -1, 64, [[], 2, 0, []]]),
    msgpack.packb([int(Say.blocked), 2, 1, -1, 64, [3, 99, 8000, "train.py:41"]]),
    msgpack.packb([int(Say.blocked), 2, 1, -1, 64, [3, 1, 8.0, "train.py:41"]]),
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
        plane.flood(Say.left, 1, 0, 0, ())
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
    """A plane that watches its neighbours, in virtual time.

    Args:
        stopped: what a look at each rank's process says; the others cannot be looked at.
    """

    def __init__(self, stopped: dict[int, bool | None] | None = None) -> None:
        self.loop = VirtualLoop()
        self.plane = ControlPlane(0, 4)
        self.links = {rank: FakeLink(self.plane, rank) for rank in (1, 2, 3)}
        self.plane.attach(1, self.links[1])
        self.plane.watch(self.loop, Patience())
        for rank in stopped or {}:
            self.plane.see(rank, lambda rank=rank: (stopped or {})[rank])  # type: ignore[misc]
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

    def told(self, to: int) -> list[tuple[int, LoopState, float]]:
        """The news for a neighbour of loops that do not turn."""
        return [
            (message.body[0], LoopState(message.body[1]), message.body[2] / 1000)
            for message in self.links[to].sent
            if message.say is Say.blocked
        ]

    def close(self) -> None:
        self.plane.close()
        self.loop.close()


def test_who_pings_lives_and_who_is_stopped_is_lost() -> None:
    all_of_it = Clocked({2: True})
    all_of_it.run(100, alive=(1, 2, 3))
    assert all(395 <= link.pings <= 405 for link in all_of_it.links.values())
    assert not all_of_it.ear.lost
    all_of_it.run(29, alive=(1, 3))
    assert not all_of_it.ear.lost
    all_of_it.run(2, alive=(1, 3))
    [(rank, cause)] = all_of_it.ear.lost
    assert rank == 2
    assert cause == "it was stopped for 30 s (by a signal or a debugger)"
    [silence] = all_of_it.ear.silence
    assert silence is not None
    assert 30 <= silence <= 31
    assert all_of_it.links[2].ending == "killed"
    all_of_it.run(100, alive=(1, 3))
    assert len(all_of_it.ear.lost) == 1
    assert not all_of_it.plane.blocked()
    all_of_it.close()


@pytest.mark.parametrize("sight", ["none", "not stopped", "gone"])
def test_a_silent_one_that_nobody_sees_stopped_is_given_minutes_or_for_ever(sight: str) -> None:
    stopped: dict[str, dict[int, bool | None]] = {"none": {}, "not stopped": {2: False}, "gone": {2: None}}
    silent = Clocked(stopped[sight])
    silent.run(599, alive=(1, 3))
    assert not silent.ear.lost
    silent.run(3, alive=(1, 3))
    if sight == "not stopped":
        assert not silent.ear.lost
    else:
        cause = "it gave no sign of life for 600 s (it is stopped, or a call holds its interpreter)"
        assert silent.ear.lost == [(2, cause)]
    silent.close()


def word(rank: int, number: int, seconds: float, where: str = "train.py:41 in evaluate") -> bytes:
    """The message of a rank's watchdog."""
    body = (rank, int(LoopState.blocked), round(seconds * 1000), where)
    return Message(Say.blocked, rank, number, EVERYBODY, 64, body).encode()


def test_groups_hear_of_a_blocked_loop_until_it_turns_and_nobody_is_lost() -> None:
    blocked = Clocked({2: False})
    blocked.run(5, alive=(1, 2, 3))
    blocked.run(5, alive=(1, 3))
    assert not blocked.ear.blocked
    blocked.plane.received(2, word(2, 1, 5.0))
    pings = blocked.links[2].pings
    blocked.run(3, alive=(1, 3))
    assert blocked.links[2].pings <= pings + 4  # its room is kept
    assert blocked.ear.blocked[-1] == {2: "has not run its event loop for 8 s: train.py:41 in evaluate"}
    assert blocked.plane.blocked() == blocked.ear.blocked[-1]
    assert blocked.told(1) == [(2, LoopState.blocked, 5.0)]  # passed on
    assert list(blocked.plane.core.avoided) == [2]
    blocked.run(0.25, alive=(1, 2, 3))
    count = len(blocked.ear.blocked)
    blocked.run(30, alive=(1, 2, 3))
    assert len(blocked.ear.blocked) == count
    assert not blocked.plane.blocked()
    assert not blocked.ear.lost
    blocked.close()


def test_a_held_interpreter_is_told_of_by_who_sees_its_process() -> None:
    held = Clocked({2: False})
    held.run(13, alive=(1, 3))
    [(rank, state, seconds), (_, _, again)] = held.told(3)
    assert (rank, state) == (2, LoopState.held)
    assert 6 <= seconds <= 7
    assert again >= 12
    assert held.ear.blocked[-1][2].endswith(" s: a call holds its interpreter")
    held.close()


def test_a_rank_answers_for_a_process_that_it_sees_and_has_no_link_with() -> None:
    """Of a group over hosts, only ranks of other hosts are linked with one that falls silent."""
    loop = VirtualLoop()
    plane = ControlPlane(0, 20)
    links = {neighbour: FakeLink(plane, neighbour) for neighbour in plane.core.neighbours}
    assert 6 not in links
    plane.watch(loop, Patience())
    for neighbour, link in links.items():
        plane.attach(neighbour, link)
    plane.see(6, lambda: True)
    silent = Message(Say.blocked, 4, 1, EVERYBODY, 64, (6, int(LoopState.silent), 6000, ""))
    plane.received(4, silent.encode())
    for _ in range(4):
        for neighbour in links:
            plane.received(neighbour, PING)
        loop.call_later(0.25, loop.stop)
        loop.run_forever()
    [first, second] = [message for message in links[1].sent if message.say is Say.blocked]
    assert (first.origin, second.origin) == (4, 0)
    assert second.body[:2] == (6, LoopState.stopped)
    plane.close()
    loop.close()


def test_this_process_says_that_its_loop_turns_again_once_the_others_think_that_it_does_not() -> None:
    for by in ("its watchdog", "another"):
        woken = Clocked()
        woken.run(1, alive=(1, 2, 3))
        if by == "another":
            body = (0, int(LoopState.silent), 6000, "")
            woken.plane.received(1, Message(Say.blocked, 1, 1, EVERYBODY, 64, body).encode())
        else:
            assert woken.plane.turns > 0
            woken.plane.say_blocked(5.0, "train.py:41 in evaluate" + 300 * "!")
            for link in woken.links.values():
                [message] = link.posted
                assert (message.say, message.origin, message.body[:3]) == (Say.blocked, 0, (0, 1, 5000))
                assert len(message.body[3]) == 200
        assert not woken.told(2) or by == "another"
        woken.run(3, alive=(1, 2, 3))
        assert woken.told(2)[-1] == (0, LoopState.runs, 0.0)
        assert [state for _, state, _ in woken.told(2)].count(LoopState.runs) == 1
        assert not woken.plane.blocked()
        woken.close()


def test_a_process_whose_loop_is_closed_says_so() -> None:
    plane, links = make()
    plane.say_ended("its event loop was closed while its groups were open")
    for link in links.values():
        [message] = link.posted
        assert (message.say, message.body) == (
            Say.lost,
            (0, "its event loop was closed while its groups were open", -1),
        )
    plane.close()
    plane.say_ended("again")
    plane.say_blocked(5.0, "")
    assert all(len(link.posted) == 1 for link in links.values())


def test_where_a_loop_is_takes_no_orders_and_no_room() -> None:
    rude = Clocked()
    rude.plane.received(2, word(2, 1, 6.0, "\x1b[31mred\nline" + 5000 * "x"))
    rude.plane.received(3, Message(Say.blocked, 3, 1, EVERYBODY, 64, (2**60, 1, 1000, "")).encode())
    rude.run(1, alive=(1, 3))
    text = rude.plane.blocked()[2]
    assert text.isprintable()
    assert len(text) < 300
    assert rude.plane.blocked().keys() == {2}
    rude.close()


def test_whoever_was_stopped_reads_first_and_accuses_nobody() -> None:
    woken = Clocked({1: True, 2: True, 3: True})
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


def test_neighbours_whose_loops_are_silent_are_not_pinged_for_long() -> None:
    near = Clocked()
    near.run(20, alive=(2, 3))
    assert [link.pings > PATIENCE + 1 for link in near.links.values()] == [False, True, True]
    near.close()


def test_nothing_is_due_after_the_end() -> None:
    for ending in ("close", "kill"):
        over = Clocked()
        over.run(1)
        getattr(over.plane, ending)()
        assert over.plane._signs is None
        over.loop.run_until_complete(_nothing())
        over.loop.close()


async def _nothing() -> None:
    pass


def test_simulations_have_no_heartbeat() -> None:
    async def main(pg: ProcessGroup) -> bool:
        return core_of(pg).control._signs is None

    assert all(run_virtual(run_cluster(3, main)))


def test_a_neighbour_that_left_is_not_watched() -> None:
    left = Clocked({1: True})
    left.plane.ended(1, True, "")
    left.run(40, alive=(2, 3))
    assert not left.ear.lost
    assert left.links[1].pings == 0
    left.close()


def test_a_torn_link_is_no_loss_and_may_be_made_anew() -> None:
    """All listeners are told; the neighbour is awaited again, and heard on its new link alone."""
    plane, links = make()
    ear = Ear()
    plane.subscribe(11, ear)
    plane.tampered(2, Tampered("between rank 0 and rank 2"))
    assert [rank for rank, _ in ear.altered] == [2] and not ear.lost and not plane.core.lost
    assert plane.awaited() == {2}
    again = FakeLink(plane, 2)
    plane.attach(2, again)
    assert plane.awaited() == set()
    third = FakeLink(plane, 2)
    plane.attach(2, third)  # the neighbour saw first that the second was torn, too
    assert again.ending and not third.ending
    assert [rank for rank, _ in ear.altered] == [2, 2]  # what was under way there is missing as well
    plane.flood(Say.left, 11, 0, 5, ())
    assert (len(links[2].sent), len(again.sent), len(third.sent)) == (0, 0, 1)


def test_what_is_said_while_a_link_is_torn_is_heard_once_it_stands() -> None:
    plane, links = make()
    plane.flood(Say.left, 11, 0, 5, ())
    plane.tell([2], Say.stalled, 11, 3)  # it may be lost: whoever asks will ask again
    plane.tampered(2, Tampered())
    plane.flood(Say.left, 12, 0, 6, ())
    plane.tell([2], Say.stalled, 11, 4)
    plane.ping(2, PING)
    again = FakeLink(plane, 2)
    plane.attach(2, again)
    plane.flood(Say.left, 13, 0, 7, ())
    assert [message.body for message in again.sent] == [
        (11, 0, 5, ()),
        (12, 0, 6, ()),
        (11, 4),
        (13, 0, 7, ()),
    ]
    assert not again.pings
    assert [message.body[0] for message in links[1].sent] == [11, 12, 13]


@pytest.mark.parametrize("how", ["lost", "gone"])
def test_nothing_waits_for_a_torn_link_whose_neighbour_has_ended(how: str) -> None:
    plane, _ = make()
    plane.tampered(2, Tampered())
    plane.flood(Say.left, 11, 0, 5, ())
    if how == "lost":
        plane.lose(2, "process 5 ended")
    else:
        plane.ended(2, True, "")
    assert not plane._unsaid._waiting


def test_a_process_that_could_be_looked_at_still_can_be_once_its_link_was_made_anew() -> None:
    torn = Clocked({2: True})
    torn.plane.tampered(2, Tampered())
    torn.run(5, alive=(1, 3))  # nothing is due meanwhile
    torn.plane.attach(2, FakeLink(torn.plane, 2))
    torn.run(32, alive=(1, 3))
    assert torn.ear.lost == [(2, "it was stopped for 30 s (by a signal or a debugger)")]
    torn.close()


def test_a_torn_link_of_a_plane_that_is_closed_is_nobody_s_concern() -> None:
    plane, _ = make()
    ear = Ear()
    plane.subscribe(11, ear)
    plane.close()
    plane.tampered(2, Tampered())
    assert not ear.altered


def test_pings_compare_clocks_and_the_recorder_is_told() -> None:
    now = [50.0]
    memory = bytearray(SIZE)
    recorder = Recorder(memory, 1, lambda: now[0], 0.0)
    loop = VirtualLoop()
    plane, links = make(2)
    sent: list[bytes] = []
    links[1].send = sent.append  # type: ignore[method-assign, assignment]
    plane.watch(loop, Patience(), recorder)

    def turn() -> None:
        loop.call_later(0.25, loop.stop)
        loop.run_forever()

    turn()
    first = stamp_of(sent[-1])
    assert first == Stamp(50.0, 0.0, 0.0)
    now[0] = 50.5
    plane.received(1, Stamp(1050.25, 50.0, 1050.1).ping())
    turn()
    assert stamp_of(sent[-1]) == Stamp(50.5, 1050.25, 50.5)
    (clock,) = read(memory).clocks
    assert (clock.rank, clock.at) == (1, 50.5)
    assert abs(clock.offset - (1000.1 + 999.75) / 2) < 0.001
    assert abs(clock.error - (1000.1 - 999.75) / 2) < 0.001
    plane.received(1, PING)  # one without times
    assert len(read(memory).clocks) == 1
    plane.close()
    loop.close()
