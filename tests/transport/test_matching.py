"""Whatever the order of sends, receives and turns of the loop: every message arrives, once, whole."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.testing.channel_pair import Pair, content
from aiodist.transport import EAGER_MESSAGE, SEGMENT, Into, Key, MemoryEndpoint, MemoryNetwork

SIZES = [0, 1, 1000, EAGER_MESSAGE, EAGER_MESSAGE + 1, SEGMENT + 16, 5 * SEGMENT]

MESSAGES = st.dictionaries(
    st.builds(Key, st.integers(0, 2), st.integers(0, 1), st.integers(0, 3), st.integers(0, 1)),
    st.sampled_from(SIZES),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(messages=MESSAGES, data=st.data(), budget=st.sampled_from([0, 3000, 65_536]))
def test_every_order_delivers(messages: dict[Key, int], data: st.DataObject, budget: int) -> None:
    steps = data.draw(st.permutations([(side, key) for key in messages for side in ("send", "recv", "turn")]))
    cancelled = data.draw(st.sampled_from([None, 2]))

    async def main() -> None:
        network = MemoryNetwork()
        ends = [MemoryEndpoint(network, rank, eager_budget=budget) for rank in range(2)]
        pair = Pair(ends[0], ends[1])
        sinks = {key: bytearray(nbytes) for key, nbytes in messages.items()}
        waiting = []
        for count, (side, key) in enumerate(steps):
            if side == "turn":
                await asyncio.sleep(0)
                continue
            nbytes = messages[key]
            if side == "send":
                future = pair.send(key, nbytes=nbytes)
            else:
                future = pair.recv(key, nbytes, Into(memoryview(sinks[key])))
            if key.context != cancelled:
                waiting.append(future)
            if cancelled is not None and count == len(steps) // 2:
                ends[0].cancel(cancelled)
                ends[1].retire(cancelled)
        await asyncio.gather(*waiting)
        for key, sink in sinks.items():
            if key.context != cancelled:
                assert sink == content(key, messages[key])
        seen = [key for _, key, _, _ in pair.at_receiver.arrivals if key.context != cancelled]
        assert sorted(seen) == sorted(key for key in messages if key.context != cancelled)
        await asyncio.gather(*(end.aclose() for end in ends))

    asyncio.run(main())
