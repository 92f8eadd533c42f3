"""Matching, in any order of sends, receives and turns of the loop: every message arrives, once, whole."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.transport import (
    EAGER_MESSAGE,
    FRAGMENT,
    Into,
    Key,
    MemoryEndpoint,
    MemoryNetwork,
    receiving,
    sending,
)
from aiodist.transport.peers import Silent
from tests.levels import COSTLY
from tests.support.channel_pair import Pair, content, turn_until

SIZES = [0, 1, 1000, EAGER_MESSAGE, EAGER_MESSAGE + 1, FRAGMENT + 16, 5 * FRAGMENT]

MESSAGES = st.dictionaries(
    st.builds(Key, st.integers(0, 2), st.integers(0, 1), st.integers(0, 3), st.integers(0, 1)),
    st.sampled_from(SIZES),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow(COSTLY)
@settings(max_examples=120, deadline=None)
@given(
    messages=MESSAGES,
    data=st.data(),
    budget=st.sampled_from([0, 3000, 65_536]),
    remembered=st.sampled_from([0, 1, 3, 4096]),
    shares=st.sampled_from([1, 2, 16]),
)
def test_every_order_delivers(
    messages: dict[Key, int], data: st.DataObject, budget: int, remembered: int, shares: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (sending, receiving):
            patch.setattr(module, "REMEMBERED", remembered)
            patch.setattr(module, "EAGER_SHARES", shares)
        every_order_delivers(messages, data, budget)


def every_order_delivers(messages: dict[Key, int], data: st.DataObject, budget: int) -> None:
    sides = ("send", "recv", "turn", "ask")
    steps = data.draw(st.permutations([(side, key) for key in messages for side in sides]))
    cancelled = data.draw(st.sampled_from([None, 2]))
    wrong = data.draw(st.sets(st.sampled_from(sorted(messages)), max_size=2))  # received in another size

    async def main() -> None:
        network = MemoryNetwork()
        ends = [MemoryEndpoint(network, rank, eager_budget=budget) for rank in range(2)]
        pair = Pair(ends[0], ends[1])
        sinks = {key: bytearray(nbytes + (key in wrong)) for key, nbytes in messages.items()}
        waiting = []
        for count, (side, key) in enumerate(steps):
            if side == "turn":
                await asyncio.sleep(0)
                continue
            if side == "ask":  # by somebody who has not posted the receive yet
                if ("recv", key) in steps[count:]:
                    pair.inc.ask(key)
                continue
            if side == "send":
                future = pair.send(key, nbytes=messages[key])
            else:
                future = pair.recv(key, len(sinks[key]), Into(memoryview(sinks[key])))
            if key.context != cancelled and key not in wrong:
                waiting.append(future)
            if cancelled is not None and count == len(steps) // 2:
                ends[0].cancel(cancelled)
                ends[1].retire(cancelled)
        await asyncio.gather(*waiting)
        for key, sink in sinks.items():
            if key in wrong:
                assert not any(sink)
            elif key.context != cancelled:
                assert sink == content(key, messages[key])
        expected = sorted(key for key in messages if key.context != cancelled)

        def seen() -> list[Key]:
            return sorted(key for _, key, _, _ in pair.at_receiver.arrivals if key.context != cancelled)

        await turn_until(lambda: len(seen()) >= len(expected))
        assert seen() == expected
        assert not pair.at_sender.losses and not pair.at_receiver.losses
        await asyncio.gather(*(end.aclose() for end in ends))

    asyncio.run(main())


async def test_contexts_that_are_gone_are_remembered_once_for_all_channels() -> None:
    """A program may make and close groups for ever."""
    network = MemoryNetwork()
    mine, other = (MemoryEndpoint(network, rank) for rank in range(2))
    heard: list[Key] = []
    other.observer = Listener(heard)

    def send(context: int) -> None:
        over = mine.outgoing(1).send(Key(context, 0, 0, 0), bytes(32), memoryview(b"x" * 100), heard.clear)
        assert not over

    for context in range(30):
        send(context)
        mine.incoming(1).recv(Key(context, 0, 0, 0), 5, Into(memoryview(bytearray(5))), heard.clear)
        mine.cancel(context)
        mine.retire(context)
        send(context)
    assert mine._peers[1].sender._cancelled == mine._peers[1].receiver._cancelled == set()
    mine.outgoing(1).send(Key(30, 0, 0, 0), bytes(32), memoryview(b"x"), heard.clear)
    await turn_until(lambda: heard != [])
    for end in (mine, other):
        await end.aclose()
    assert heard == [Key(30, 0, 0, 0)]


class Listener(Silent):
    """Hears what arrives."""

    def __init__(self, heard: list[Key]) -> None:
        self._heard = heard

    def arrived(self, rank: int, key: Key, signature: bytes, nbytes: int) -> None:
        self._heard.append(key)
