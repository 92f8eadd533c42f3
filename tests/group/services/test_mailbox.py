"""The mailbox: in order, bounded, and nothing is lost when who takes is cancelled."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given
from hypothesis import strategies as st

from aiodist.group.services import mailbox
from aiodist.group.services.mailbox import BYTES, MESSAGES, Letter, Mailbox


def letter(number: int, taken_in: list[int], size: int = 8) -> Letter:
    return Letter(b"uid", number.to_bytes(8, "big").ljust(size), lambda: taken_in.append(number))


@given(st.integers(0, 1 << 32))
def test_cancelling_loses_nothing_and_changes_no_order(seed: int) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        box, entered, taken = Mailbox(), list[int](), list[int]()

        async def take() -> None:
            found = await box.take()
            assert found is not None
            try:
                for _ in range(rng.choice([0, 0, 1, 3])):  # it is decoded
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                box.put_back(found)
                raise
            taken.append(int.from_bytes(found.payload[:8], "big"))
            box.read()

        takers: list[asyncio.Task[None]] = []
        for number in range(40):
            takers += [asyncio.create_task(take()) for _ in range(rng.randrange(3))]
            if rng.random() < 0.5:
                await asyncio.sleep(0)
            box.offer(letter(number, entered))
            for one in rng.sample(takers, rng.randrange(len(takers) + 1)):
                one.cancel()
            if rng.random() < 0.5:
                await asyncio.sleep(0)
        await asyncio.gather(*takers, return_exceptions=True)
        while len(taken) < 40:
            await take()
        assert taken == list(range(40))
        assert entered == list(range(40))

    asyncio.run(main())


async def test_a_full_mailbox_lets_senders_wait() -> None:
    box, entered = Mailbox(), list[int]()
    for number in range(MESSAGES + 3):
        box.offer(letter(number, entered))
    assert len(entered) == MESSAGES
    waiting = letter(-5 & 0xFF, entered)
    box.offer(waiting)
    assert box.withdraw(waiting)
    assert not box.withdraw(waiting)
    await box.take()
    assert entered == list(range(MESSAGES + 1))


async def test_bytes_count_too() -> None:
    box, entered = Mailbox(), list[int]()
    half = BYTES // 2 + 1
    for number in range(3):
        box.offer(letter(number, entered, half))
    assert entered == [0]
    first = await box.take()
    assert entered == [0, 1]
    assert first is not None
    box.put_back(first)
    again = await box.take()
    assert again is first


async def test_what_is_behind_a_message_that_is_withdrawn_comes_in() -> None:
    """As far as it fits; nobody takes anything meanwhile."""
    box, entered = Mailbox(), list[int]()
    box.offer(letter(0, entered, BYTES // 2 + 1))
    large = letter(1, entered, BYTES // 2 + 1)
    box.offer(large)
    box.offer(letter(2, entered))
    box.offer(letter(3, entered))
    assert entered == [0]
    assert box.withdraw(large)
    assert entered == [0, 2, 3]


async def test_a_closed_mailbox_ends_who_waits() -> None:
    box = mailbox.Mailbox()
    taking = asyncio.create_task(box.take())
    await asyncio.sleep(0)
    box.close()
    assert await taking is None
    assert await box.take() is None
