"""Connections that a busy loop is in the way of, on either side, are made when it turns again."""

from __future__ import annotations

import asyncio

import pytest

from aiodist.net import admission
from aiodist.testing.clock import VirtualLoop
from aiodist.transport import Key, SocketEndpoint, dialing
from aiodist.transport.dialing import DIAL_DEADLINE, Unanswered, persist
from aiodist.transport.endpoint import Mode
from aiodist.transport.greeting import Greeting
from tests.support.channel_pair import Recorder, turn_until


class Attempts:
    """Dials that end as they are told: after so many seconds, by an error or by success."""

    def __init__(self, *ends: tuple[float, Exception | None]) -> None:
        self.left = list(ends)

    async def __call__(self) -> str:
        seconds, error = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        await asyncio.sleep(seconds)
        if error is not None:
            raise error
        return "connected"


def outcome(attempts: Attempts) -> tuple[str, float]:
    """The end of the attempts, and its time."""
    loop = VirtualLoop()

    async def main() -> str:
        try:
            return await persist(attempts)
        except Exception as error:
            return type(error).__name__

    try:
        return loop.run_until_complete(main()), loop.time()
    finally:
        loop.close()


BROKEN = Unanswered("it closed the connection during the handshake")


def test_a_handshake_that_is_broken_off_is_begun_again() -> None:
    assert outcome(Attempts((0.1, BROKEN), (0.1, BROKEN), (0.1, None)))[0] == "connected"


def test_who_breaks_off_at_once_is_given_up() -> None:
    ended, when = outcome(Attempts((0.1, BROKEN)))
    assert ended == "Unanswered"
    assert DIAL_DEADLINE < when < DIAL_DEADLINE + 2


def test_who_was_late_each_time_is_not() -> None:
    """Either loop was busy, again and again."""
    late = [(25.0, BROKEN)] * 9
    assert outcome(Attempts(*late, (0.1, None)))[0] == "connected"
    assert outcome(Attempts(*[(40.0, TimeoutError())] * 9, (0.1, None)))[0] == "connected"


def test_an_address_at_which_nobody_answers_is_given_up_in_time() -> None:
    ended, when = outcome(Attempts((DIAL_DEADLINE, TimeoutError())))
    assert (ended, when) == ("TimeoutError", DIAL_DEADLINE)


def test_what_is_no_matter_of_time_is_told_at_once() -> None:
    assert outcome(Attempts((0.1, ConnectionRefusedError()), (0.1, None)))[0] == "ConnectionRefusedError"


async def pair(mode: Mode) -> list[SocketEndpoint]:
    made = [await SocketEndpoint.open(rank=rank, job="job", secret=b"secret", mode=mode) for rank in range(2)]
    for one in made:
        one.observer = Recorder()
        one.introduce({rank: other.card for rank, other in enumerate(made)})
    return made


@pytest.mark.parametrize("mode", ["tcp", "shm"])
@pytest.mark.parametrize("late", ["who accepts", "who dials"])
@pytest.mark.parametrize("purpose", ["data", "control"])
async def test_a_busy_loop_costs_nobody_its_place(
    mode: Mode, late: str, purpose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a handshake may last: the acceptor answers late, or has broken it off meanwhile."""
    monkeypatch.setattr(dialing, "DIAL_DEADLINE", 0.05)
    monkeypatch.setattr(admission, "PATIENCE", 0.05)
    monkeypatch.setattr(dialing, "PATIENCE", 0.05)
    busy = asyncio.Event()
    shake = Greeting.shake
    held: list[Greeting] = []

    async def slow(self: Greeting, handshake: object, tls: object = None) -> object:
        if len(held) == (0 if late == "who dials" else 1):  # the dialer's is the first
            held.append(self)
            await busy.wait()
        else:
            held.append(self)
        return await shake(self, handshake, tls)  # type: ignore[arg-type]

    monkeypatch.setattr(Greeting, "shake", slow)
    made = await pair(mode)
    try:
        ended: list[bool] = []
        data = memoryview(bytes(range(100)))
        if purpose == "control":
            linking = asyncio.ensure_future(made[0].link_control(1))
            linking.add_done_callback(lambda link: ended.append(link.result().rank == 1))
        elif made[0].outgoing(1).send(Key(1, 0, 0, 0), bytes(32), data, lambda: ended.append(True)):
            ended.append(True)
        await turn_until(lambda: len(held) >= 1)
        asyncio.get_running_loop().call_later(0.2, busy.set)
        await turn_until(lambda: bool(ended))
        assert ended == [True]
        for one in made:
            assert isinstance(one.observer, Recorder)
            assert not one.observer.losses
    finally:
        for one in made:
            one.kill()
