"""The rules of every transport, as one check that each of them runs.

    await check_channel(make_pair)

A failed check raises AssertionError with the name of the check in its notes. All data are distinct per
message and per byte, so that bytes in the wrong place show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from aiodist.base.environment.tuning import EAGER_BUDGET
from aiodist.transport import (
    CONTROL_MESSAGE,
    EAGER_MESSAGE,
    FRAGMENT,
    ControlLink,
    Endpoint,
    Fold,
    Into,
    Key,
    Sink,
)
from aiodist.transport.base import REMEMBERED
from tests.support.channel_pair import Pair, Recorder, content, signature, turn_until

MakePair = Callable[[], Awaitable[tuple[Endpoint, Endpoint]]]
"""A maker of two endpoints of the running loop, ranks 0 and 1, introduced to each other."""

LIMIT = 60.0
"""Seconds that each check may take before it counts as a hang."""

SIZES = (
    *(0, 1, 15, 16, 4095, 4096, 4097, EAGER_MESSAGE - 1, EAGER_MESSAGE, EAGER_MESSAGE + 1, 65_536),
    *(FRAGMENT - 1, FRAGMENT, FRAGMENT + 1, 2 * FRAGMENT, (1 << 20) + 1, 3_000_017),
)
"""Bytes of the messages that are tried: around every threshold of the protocol."""


async def check_channel(make_pair: MakePair, *, eager_budget: int = EAGER_BUDGET) -> None:
    """Run all checks of this module on the endpoints that `make_pair` makes.

    Args:
        make_pair: called once for each check; the endpoints are closed by the check.
        eager_budget: what the endpoints were made with.

    Raises:
        AssertionError: a rule of `transport.base` is broken.
    """
    for check in CHECKS:
        sender, receiver = await make_pair()
        try:
            async with asyncio.timeout(LIMIT):
                await check(Pair(sender, receiver), eager_budget)
        except BaseException as error:
            error.add_note(f"in {check.__name__} of {type(sender).__name__}")
            raise
        finally:
            sender.kill()
            await asyncio.gather(sender.aclose(), receiver.aclose())


async def check_sizes(pair: Pair, budget: int) -> None:
    """Every size arrives whole, whoever comes first, in memory and through a fold; each is announced once."""
    announced = []
    for part, nbytes in enumerate(SIZES):
        for seq, receive_first in enumerate((True, False)):
            into, folded = Key(1, 0, seq, part), Key(1, 1, seq, part)
            announced += [into, folded]
            memory, pieces = bytearray(nbytes), bytearray()
            sinks: dict[Key, Sink] = {
                into: Into(memoryview(memory)),
                folded: Fold(partial(_append, pieces, nbytes)),
            }
            posted = [pair.recv(key, nbytes, sinks[key]) for key in sinks if receive_first]
            sent = [pair.send(key, nbytes=nbytes) for key in sinks]
            if not receive_first:
                await pair.at_receiver.until(partial(_have, pair.at_receiver, len(announced)))
                posted = [pair.recv(key, nbytes, sinks[key]) for key in sinks]
            await asyncio.gather(*posted, *sent)
            assert memory == content(into, nbytes)
            assert pieces == content(folded, nbytes)
            if nbytes <= EAGER_MESSAGE and budget == 0 and not receive_first:
                assert not any(future.result() for future in (*posted, *sent))
    seen = pair.at_receiver.arrivals
    assert sorted(key for _, key, _, _ in seen) == sorted(announced)
    assert all(rank == 0 and told == signature(key) for rank, key, told, _ in seen)
    assert all(nbytes == SIZES[key.part] for _, key, _, nbytes in seen)


def _have(recorder: Recorder, count: int) -> bool:
    return len(recorder.arrivals) >= count


def _append(pieces: bytearray, total: int, fragment: memoryview, offset: int) -> None:
    assert offset == len(pieces), "fragments out of order"
    assert 0 < len(fragment) <= FRAGMENT
    assert len(fragment) % 16 == 0 or offset + len(fragment) == total
    pieces += fragment


async def check_interleaving(pair: Pair, budget: int) -> None:
    """Many messages of many contexts at once, receives posted in another order than sends."""
    keys = [
        Key(context, stream, seq, part)
        for context in (3, 1 << 40, (1 << 64) - 1)
        for stream in (0, 1, (1 << 32) - 1)
        for seq in (0, (1 << 64) - 1)
        for part in (0, 7)
    ]
    sizes = {key: SIZES[index * 5 % len(SIZES)] for index, key in enumerate(keys)}
    early = [asyncio.ensure_future(pair.receive(key, sizes[key])) for key in keys[::2]]
    sent = [pair.send(key, nbytes=sizes[key]) for key in reversed(keys)]
    late = [asyncio.ensure_future(pair.receive(key, sizes[key])) for key in keys[1::2]]
    for key, data in zip(keys[::2] + keys[1::2], await asyncio.gather(*early, *late), strict=True):
        assert data == content(key, sizes[key])
    await asyncio.gather(*sent)


async def check_budget(pair: Pair, budget: int) -> None:
    """Eager messages stop at the budget, per context; the rest waits for its receive; credit comes back."""
    await pair.passes(Key(9, 0, 0, 0), FRAGMENT)  # connected from here on: what is sent leaves
    for turn in range(3):
        keys = [Key(4, 0, turn, part) for part in range(40)]
        sent = [pair.send(key, nbytes=4000) for key in keys]
        assert sum(4000 for future in sent if future.done()) <= budget
        assert not sent[-1].done()
        other = pair.send(Key(500 + turn, 0, 0, 0), nbytes=4000)
        assert other.done() == (budget > 4096), "a context spent another's budget"
        for key in reversed(keys):
            assert await pair.receive(key, 4000) == content(key, 4000)
        await asyncio.gather(*sent)
        assert await pair.receive(Key(500 + turn, 0, 0, 0), 4000) == content(Key(500 + turn, 0, 0, 0), 4000)
    if budget >= EAGER_BUDGET:
        await pair.passes(Key(9, 0, 1, 0), FRAGMENT)  # credit is on its way before READY
        assert pair.send(Key(4, 0, 99, 0), nbytes=100).done(), "credit was not returned"


async def check_stall(pair: Pair, budget: int) -> None:
    """Messages that nobody receives hold up no other context, nor others of their own."""
    stuck = [pair.send(Key(6, 0, seq, 0), nbytes=FRAGMENT * 8) for seq in range(20)]
    await pair.passes(Key(7, 0, 0, 0), FRAGMENT * 8)
    await pair.passes(Key(6, 1, 0, 0), FRAGMENT * 8)
    assert not any(future.done() for future in stuck)
    pending = pair.inc.pending(6, 0)
    assert pending == [(seq, FRAGMENT * 8, signature(Key(6, 0, seq, 0))) for seq in range(20)]


async def check_crowd(pair: Pair, budget: int) -> None:
    """More offers than are remembered: none is lost, whoever comes first, whatever its size."""
    count, nbytes, data = REMEMBERED + budget // 100 + 100, 100, bytes(range(100))
    keys = [Key(20, 1, seq, 0) for seq in range(count)]
    sent = [pair.send(key, data) for key in keys]
    crowd = pair.at_receiver
    await crowd.until(lambda: bool(crowd.crowds))
    await pair.passes(Key(21, 1, 0, 0), FRAGMENT)
    assert len(crowd.arrivals) < count
    asked, other_size, last = keys[-3:]
    pair.inc.ask(asked)
    received = pair.recv(other_size, nbytes + 1, Into(memoryview(bytearray(nbytes + 1))))
    for key in (asked, other_size):
        await crowd.until(lambda: (0, key, signature(key), nbytes) in crowd.arrivals)  # noqa: B023
    sinks = {key: bytearray(nbytes) for key in (last, *reversed(keys[:-2]))}
    await asyncio.gather(*(pair.recv(key, nbytes, Into(memoryview(sink))) for key, sink in sinks.items()))
    assert all(sink == data for sink in sinks.values())
    assert [future.done() for future in sent] == [key != other_size for key in keys]
    assert not received.done()
    assert sorted(key for _, key, _, _ in crowd.arrivals if key.context == 20) == keys
    assert crowd.crowds == [0]


async def check_many_places(pair: Pair, budget: int) -> None:
    """More receives than the sender remembers READYs of."""
    nbytes = EAGER_MESSAGE + 1
    data = (bytes(range(251)) * 33)[:nbytes]
    keys = [Key(22, 0, seq, 0) for seq in range(REMEMBERED + 100)]
    pieces = {key: bytearray() for key in keys}
    received = [pair.recv(key, nbytes, Fold(partial(_append, pieces[key], nbytes))) for key in keys]
    await pair.passes(Key(23, 0, 0, 0), FRAGMENT)
    await asyncio.gather(*(pair.send(key, data) for key in reversed(keys)), *received)
    assert all(piece == data for piece in pieces.values())
    assert sorted(key for _, key, _, _ in pair.at_receiver.arrivals if key.context == 22) == keys


async def check_cancel_send(pair: Pair, budget: int) -> None:
    """A cancelled send leaves its buffer alone; other messages pass; its context stays dead."""
    key, nbytes = Key(8, 0, 0, 0), FRAGMENT * 64  # more than any socket holds
    expected = content(key, nbytes)
    data = bytearray(expected)
    pieces = bytearray()

    def fold(fragment: memoryview, offset: int) -> None:
        pieces.extend(fragment)
        if offset == FRAGMENT:
            pair.out.cancel(8)
            data[:] = bytes(nbytes)

    sent = pair.send(key, data)
    received = pair.recv(key, nbytes, Fold(fold))
    offered = pair.send(Key(8, 0, 1, 0), nbytes=FRAGMENT)
    for seq in range(3):
        await pair.passes(Key(9, 0, seq, 0), FRAGMENT * 4 + 1)
    assert FRAGMENT * 2 <= len(pieces) < nbytes
    assert pieces == expected[: len(pieces)], "the buffer was read after cancel"
    assert not pair.send(Key(8, 0, 2, 0), nbytes=8).done()
    assert not any(future.done() for future in (sent, offered, received))


async def check_cancel_recv(pair: Pair, budget: int) -> None:
    """A cancelled receive leaves its sink alone, also in the middle of a fragment, and one that is posted
    afterwards has no part in anything; other messages pass."""
    key, nbytes = Key(10, 0, 0, 0), FRAGMENT * 32
    sink = bytearray(nbytes)
    received = pair.recv(key, nbytes, Into(memoryview(sink)))
    never = pair.recv(Key(10, 0, 1, 0), nbytes, Into(memoryview(bytearray(nbytes))))
    sent = pair.send(key, nbytes=nbytes)
    offered, stored = Key(10, 0, 2, 0), Key(10, 0, 3, 0)
    pair.send(offered, nbytes=FRAGMENT * 2)
    pair.send(stored, nbytes=64)
    await turn_until(lambda: any(sink[:64]))  # so that it is in the middle
    pair.inc.cancel(10)
    sink[:] = b"\xee" * nbytes
    ignored = [
        pair.recv(offered, FRAGMENT * 2, Into(memoryview(sink)[: FRAGMENT * 2])),
        pair.recv(stored, 64, Into(memoryview(sink)[:64])),
        pair.recv(Key(10, 0, 4, 0), nbytes, Into(memoryview(sink))),
    ]
    pair.send(Key(10, 0, 4, 0), nbytes=nbytes)
    for seq in range(3):
        await pair.passes(Key(11, 0, seq, 0), FRAGMENT * 4 + 1)
    await sent  # its bytes were taken, and dropped
    assert sink == b"\xee" * nbytes, "the sink was written after cancel"
    assert not any(future.done() for future in (received, never, *ignored))


async def check_retire(pair: Pair, budget: int) -> None:
    """A retired context keeps nothing and reports nothing; posting in it is ignored."""
    for part in range(4):
        pair.send(Key(12, 0, part, 0), nbytes=500)
        pair.send(Key(12, 0, 4 + part, 0), nbytes=FRAGMENT)
    posted = pair.recv(Key(12, 0, 9, 0), FRAGMENT, Into(memoryview(bytearray(FRAGMENT))))
    await pair.at_receiver.until(lambda: len(pair.at_receiver.arrivals) == 8)
    assert len(pair.inc.pending(12, 0)) == 8
    pair.inc.retire(12)
    assert pair.inc.pending(12, 0) == []
    pair.send(Key(12, 0, 20, 0), nbytes=8)
    pair.send(Key(12, 0, 9, 0), nbytes=FRAGMENT)
    late = pair.recv(Key(12, 0, 20, 0), 8, Into(memoryview(bytearray(8))))
    await pair.passes(Key(13, 0, 0, 0), FRAGMENT)
    assert len(pair.at_receiver.arrivals) == 9
    assert pair.inc.pending(12, 0) == []
    assert not any(future.done() for future in (posted, late))


async def check_mismatch(pair: Pair, budget: int) -> None:
    """A message of another size than the receive is reported and not delivered."""
    for seq, (nbytes, expected) in enumerate(
        ((8, 16), (8, FRAGMENT), (FRAGMENT, 8), (FRAGMENT, FRAGMENT + 16))
    ):
        for stream in (0, 1):
            key = Key(14, stream, seq, 0)
            before = len(pair.at_receiver.arrivals)
            sink = bytearray(expected)
            received: asyncio.Future[bool] | None = None
            if stream == 0:
                received = pair.recv(key, expected, Into(memoryview(sink)))
                await pair.passes(Key(15, stream, seq, 0), FRAGMENT)  # READY has long been there
                before += 1
            pair.send(key, nbytes=nbytes)
            await pair.at_receiver.until(partial(_have, pair.at_receiver, before + 1))
            assert pair.at_receiver.arrivals[-1] == (0, key, signature(key), nbytes)
            if received is None:
                received = pair.recv(key, expected, Into(memoryview(sink)))
            await pair.passes(Key(16, stream, seq, 0), FRAGMENT)
            assert not received.done()
            assert not any(sink)


async def check_reentry(pair: Pair, budget: int) -> None:
    """Callbacks may call the channel: receive on arrival, cancel on arrival, send when done."""
    loop = asyncio.get_running_loop()
    sink = bytearray(FRAGMENT)
    results: list[asyncio.Future[bool]] = []

    def on_arrival(key: Key) -> None:
        if key.context == 17:  # receive from whoever comes
            nbytes = 100 if key.seq == 0 else FRAGMENT
            results.append(pair.recv(key, nbytes, Into(memoryview(sink)[:nbytes])))
        elif key.context == 18:
            pair.inc.cancel(18)

    pair.at_receiver.on_arrival = on_arrival
    for seq, nbytes in ((0, 100), (1, FRAGMENT)):
        await pair.send(Key(17, 0, seq, 0), nbytes=nbytes)
        await pair.at_receiver.until(lambda: len(results) > seq)  # noqa: B023
        await results[seq]
        assert sink[:nbytes] == content(Key(17, 0, seq, 0), nbytes)
    refused = [
        pair.recv(Key(18, 0, seq, 0), n, Into(memoryview(sink)[:n])) for seq, n in ((0, 100), (1, FRAGMENT))
    ]
    before = bytes(sink)
    pair.send(Key(18, 0, 1, 0), nbytes=FRAGMENT)
    pair.send(Key(18, 0, 0, 0), nbytes=100)
    await pair.passes(Key(19, 0, 0, 0), FRAGMENT)
    assert sink == before
    assert not any(future.done() for future in refused)
    # A chain of sends, each started by the one before.
    chain = [content(Key(20, 0, seq, 0), FRAGMENT * 2) for seq in range(8)]
    over = loop.create_future()

    def next_send(seq: int) -> None:
        if seq == len(chain):
            over.set_result(None)
        elif pair.out.send(
            Key(20, 0, seq, 0),
            signature(Key(20, 0, seq, 0)),
            memoryview(chain[seq]),
            partial(next_send, seq + 1),
        ):
            next_send(seq + 1)

    received = [asyncio.ensure_future(pair.receive(Key(20, 0, seq, 0), FRAGMENT * 2)) for seq in range(8)]
    next_send(0)
    await over
    assert await asyncio.gather(*received) == chain


async def check_goodbye(pair: Pair, budget: int) -> None:
    """Closing delivers what was sent, then says goodbye once; a stored message can still be received."""
    nbytes = FRAGMENT * 8
    received = asyncio.ensure_future(pair.receive(Key(21, 0, 0, 0), nbytes))
    pair.send(Key(21, 0, 0, 0), nbytes=nbytes)
    small = pair.send(Key(21, 0, 1, 0), nbytes=100)
    await pair.at_receiver.until(lambda: len(pair.at_receiver.arrivals) == 2)
    await pair.sender.aclose()
    assert await received == content(Key(21, 0, 0, 0), nbytes)
    await pair.at_receiver.until(lambda: bool(pair.at_receiver.goodbyes))
    if budget:
        assert small.done()
        assert await pair.receive(Key(21, 0, 1, 0), 100) == content(Key(21, 0, 1, 0), 100)
    await pair.receiver.aclose()
    assert (pair.at_receiver.goodbyes, pair.at_receiver.losses) == ([0], [])
    assert not pair.at_sender.losses


async def check_goodbye_of_receiver(pair: Pair, budget: int) -> None:
    """The sender learns of the goodbye of a receiver that closes first."""
    await pair.passes(Key(22, 0, 0, 0), FRAGMENT)
    await pair.receiver.aclose()
    await pair.at_sender.until(lambda: bool(pair.at_sender.goodbyes))
    assert (pair.at_sender.goodbyes, pair.at_sender.losses) == ([1], [])
    pair.send(Key(22, 0, 1, 0), nbytes=FRAGMENT)  # ignored


async def check_kill(pair: Pair, budget: int) -> None:
    """An end without goodbye is a loss, reported once at each side; afterwards everything is ignored."""
    await pair.passes(Key(23, 0, 0, 0), FRAGMENT)
    sink = bytearray(FRAGMENT * 64)
    received = pair.recv(Key(23, 0, 1, 0), len(sink), Into(memoryview(sink)))
    sent = pair.send(Key(23, 0, 1, 0), nbytes=len(sink))
    await turn_until(lambda: any(sink[:64]))
    pair.sender.kill()
    await pair.at_receiver.until(lambda: bool(pair.at_receiver.losses))
    assert [rank for rank, _ in pair.at_receiver.losses] == [0]
    assert not any(future.done() for future in (received, sent))
    assert not pair.send(Key(23, 0, 2, 0), nbytes=8).done()
    pair.receiver.cancel(23)


async def check_no_peer(pair: Pair, budget: int) -> None:
    """A peer that cannot be dialed is lost, once, and not from inside `send`."""
    pair.receiver.kill()
    sent = [pair.send(Key(24, 0, seq, 0), nbytes=8) for seq in range(2)]
    assert not pair.at_sender.losses
    await pair.at_sender.until(lambda: bool(pair.at_sender.losses))
    sent.append(pair.send(Key(24, 0, 2, 0), nbytes=8))
    await asyncio.sleep(0)
    assert [rank for rank, _ in pair.at_sender.losses] == [1]
    assert not any(future.done() for future in sent)


async def check_control(pair: Pair, budget: int) -> None:
    """Control messages keep order and size both ways, and their link ends as channels do."""
    await _control(pair, graceful=True)
    await _control(pair, graceful=False)


async def _control(pair: Pair, *, graceful: bool) -> None:
    accepted: list[ControlLink] = []
    pair.receiver.on_control = lambda rank, link: accepted.append(link)
    mine = await pair.sender.link_control(1)
    ended: asyncio.Future[tuple[bool, str]] = asyncio.get_running_loop().create_future()
    messages = [content(Key(0, 0, seq, 0), n) for seq, n in enumerate((1, 100, CONTROL_MESSAGE, 5, 30_000))]
    mine.send(messages[0])  # before anybody listens
    await turn_until(lambda: bool(accepted))
    theirs = accepted[0]
    assert (mine.rank, theirs.rank) == (1, 0)
    got: list[bytes] = []
    back: list[bytes] = []

    def echo(message: bytes) -> None:
        got.append(message)
        theirs.send(message)

    theirs.on_closed = lambda goodbye, cause: ended.set_result((goodbye, cause))
    theirs.on_message = echo
    mine.on_message = back.append
    for message in messages[1:]:
        mine.send(message)
    await turn_until(lambda: len(back) == len(messages))
    assert got == back == messages
    if graceful:
        mine.send(b"last")
        mine.close()
    else:
        mine.kill()
    goodbye, cause = await ended
    assert (goodbye, bool(cause)) == (graceful, not graceful)
    assert (got[-1] == b"last") == graceful


CHECKS: tuple[Callable[[Pair, int], Awaitable[None]], ...] = (
    check_sizes,
    check_interleaving,
    check_budget,
    check_stall,
    check_crowd,
    check_many_places,
    check_cancel_send,
    check_cancel_recv,
    check_retire,
    check_mismatch,
    check_reentry,
    check_goodbye,
    check_goodbye_of_receiver,
    check_kill,
    check_no_peer,
    check_control,
)
