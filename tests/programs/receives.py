"""Random programs of messages whose receives lose patience, in every way.

`python -m tests.programs --of receives` runs them. Ranks 1 and 2 send messages of all sizes, by streams: of
one tag, of objects or tensors. Rank 0 receives them in tasks that give receives up and try again. Then every
message was received once, and in order by one task; a tensor whose receive was given up holds what the
program wrote there afterwards. Now and then a task receives in a block that fails, or posts all that are left
in one step, on real loops also those of tensors on a device (a stand-in: `staged`).

In some programs rank 0 closes its group early, while the others send to it. Then every send ends, and what
rank 0 has received was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.group import ProcessGroup
from tests.backends.cuda.stand_in import Tensor
from tests.helpers import host_of

SIZES = [1, 2, 100, 1024, 1025, 5000, 90_000]
"""Elements of 8 bytes: eager, at the limit, offered, of several fragments, copied by a thread."""

LARGE = [500_000, 4_000_000]
"""Of few programs."""

NEVER = 777
"""Elements that no message has."""

MOST, MOST_BYTES = 40, 1 << 26
"""Tensors that are looked at again and again, and bytes of them."""

MINE = -7
"""What the program writes to a tensor whose receive it has given up."""

PLACES = ("virtual", "virtual", "shm", "tcp")
"""Where a program runs, by its seed."""

TRIES = (1, 3, 8, 20)
"""How often a receiver gives up at most, one after the other, before it waits patiently for the next message:
a large one is never here if each receive is given up before its copy has ended."""

VIRTUAL, REAL = 8.0, 100.0
"""Seconds in which a message is here, or it is lost. A busy machine takes a few of them."""

CHUNK = 10
"""Programs of one job at most."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Messages of one tag.

    Args:
        sources: ranks that send them.
        tag: theirs.
        kind: 'object', 'contiguous' or 'strided', of the receives.
        sizes: elements of each message of a source.
        tasks: that receive them; the messages have one size where they are several.
        anybody: receives name no source.
        pauses: of a sender before each, in seconds; None: it goes on at once.
        patience: the most seconds that a receiver has.
    """

    sources: tuple[int, ...]
    tag: int
    kind: str
    sizes: tuple[int, ...]
    tasks: int
    anybody: bool
    pauses: tuple[float | None, ...]
    patience: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A program.

    Args:
        seed: of the program.
        streams: that go on at the same time.
        ending: what becomes of receives for which nothing comes: 'peers' (the others close), 'here' (rank 0
            closes) or 'none'; or of sends that nobody receives: 'early' (rank 0 closes).
    """

    seed: int
    streams: tuple[Stream, ...]
    ending: str


def plan(seed: int) -> Plan:
    """The program of a seed."""
    rng = random.Random(f"{seed} receives")
    streams = tuple(_stream(rng, tag) for tag in range(rng.choice([1, 1, 2, 3])))
    endings = ["here", "none", "early"]
    ending = rng.choice(["peers", *endings] if place_of(seed) == "virtual" else endings)
    return Plan(seed, streams, ending)


def place_of(seed: int) -> str:
    """Where a seed's program runs."""
    return PLACES[seed % len(PLACES)]


def staged(seed: int) -> bool:
    """Whether a seed's program has tensors on a device, which go through the host."""
    return place_of(seed) == "shm"


def jobs(first: int, count: int) -> Iterator[list[int]]:
    """`count` seeds from `first` on, those that share a job together."""
    for start in range(first, first + count, len(PLACES) * CHUNK):
        stop = min(start + len(PLACES) * CHUNK, first + count)
        for number in range(len(PLACES)):
            seeds = list(range(start + number, stop, len(PLACES)))
            if seeds:
                yield seeds


def _stream(rng: random.Random, tag: int) -> Stream:
    anybody = rng.random() < 0.3
    sources = (1, 2) if anybody and rng.random() < 0.7 else (rng.choice([1, 2]),)
    tasks = rng.choice([1, 1, 1, 2, 3])
    large = rng.random() < 0.01
    sizes = LARGE if large else SIZES
    count = 2 if large else rng.randint(1, 5)
    if tasks == 1 and len(sources) == 1:
        each = tuple(rng.choice(sizes) for _ in range(count))
    else:
        each = (rng.choice(sizes),) * count
    return Stream(
        *(sources, tag, rng.choice(["object", "contiguous", "strided", "strided"]), each, tasks, anybody),
        pauses=tuple(rng.choice([None, None, 0.0, 0.0005, 0.004, 0.02]) for _ in each),
        patience=0.5 if max(each) >= LARGE[0] else rng.choice([0.001, 0.005, 0.03]),
    )


def content(stream: Stream, source: int, number: int) -> Any:
    """A message: another in every element than every other."""
    at = (source * 16 + stream.tag) * 64 + number
    return np.arange(stream.sizes[number], dtype=np.int64) * 65_536 + at


def source_and_number(data: Any) -> tuple[int, int]:
    """Which message of a stream it is."""
    at = int(data[0])
    return at // 1024, at % 64


# ── the ways in which a receive is given up ──────────────────────────────────────────────────────────

Way = Callable[["dist.Work[Any]", random.Random, float], Awaitable[Any]]

LOST: Any = object()
"""The result of an await that ended without one."""


async def _result(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except (TimeoutError, asyncio.CancelledError):
        return LOST


async def _turns(rng: random.Random) -> None:
    for _ in range(rng.choice([0, 0, 0, 1, 2, 3, 5, 9])):
        await asyncio.sleep(0)
    if rng.random() < 0.2:
        await asyncio.sleep(rng.choice([0.0003, 0.002]))


@dataclass(frozen=True, slots=True)
class Untold:
    """The result of a task that was cancelled in this step, and is not told yet. The next receive is called
    in the same one."""

    task: asyncio.Task[Any]


async def _dropped(task: asyncio.Task[Any], rng: random.Random, *, told: bool = False) -> Any:
    await _turns(rng)
    if task.cancel() and not told and rng.random() < 0.3:
        return Untold(task)
    return await _result(task)


async def awaits(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    return await work


async def waits_for(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    return await _result(asyncio.wait_for(work, rng.choice([0, -1, limit, limit])))


async def waits_for_wait(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    return await _result(asyncio.wait_for(work.wait(rng.choice([None, limit])), rng.choice([0, limit])))


async def waits(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    return await _result(work.wait(limit))


async def within(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    try:
        async with asyncio.timeout(rng.choice([0, -1, limit, limit])):
            return await work
    except TimeoutError:
        return LOST


async def future(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    return await _dropped(asyncio.ensure_future(work), rng)


async def task(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    return await _dropped(asyncio.create_task(work), rng)


async def task_of_wait(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    return await _dropped(asyncio.create_task(work.wait()), rng)


async def gathered(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    inner = asyncio.ensure_future(work)
    outer = asyncio.gather(inner, asyncio.sleep(9))
    await _turns(rng)
    outer.cancel()
    await _result(outer)
    return await _result(inner)


async def grouped(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    inner: asyncio.Task[Any] | None = None
    with contextlib.suppress(BaseExceptionGroup):
        async with asyncio.TaskGroup() as tasks:
            inner = tasks.create_task(work if rng.random() < 0.5 else work.wait())
            await _turns(rng)
            raise RuntimeError
    assert inner is not None
    return await _result(inner)


async def pending(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    inner = asyncio.ensure_future(work)
    await asyncio.wait([inner], timeout=rng.choice([0, limit]))
    return await _dropped(inner, rng)


async def thrown(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    async def inner() -> Any:
        return await work

    coroutine = inner()
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    if rng.random() < 0.5:
        coroutine.close()
    else:
        with contextlib.suppress(asyncio.CancelledError):
            coroutine.throw(asyncio.CancelledError())
    return LOST


async def closed(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    (work if rng.random() < 0.5 else work.wait()).close()
    return LOST


async def generated(work: dist.Work[Any], rng: random.Random, limit: float) -> Any:
    async def parts() -> Any:
        yield await work

    stream = parts()
    inner = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)  # before, nobody has called it
    result = await _dropped(inner, rng, told=True)
    await stream.aclose()
    return result


async def _patiently(work: dist.Work[Any], messages: Messages, limit: float, rng: random.Random) -> Any:
    """Wait until the message is here, or other tasks have got all."""
    inner = asyncio.ensure_future(work)
    others = asyncio.create_task(messages.whole.wait())
    await asyncio.wait([inner, others], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    others.cancel()
    result = await _dropped(inner, rng, told=True)
    assert result is not LOST or messages.whole.is_set(), f"nothing came: {messages}"
    return result


async def _in_block(
    group: ProcessGroup, make: Callable[[], dist.Work[Any]], tag: int, rng: random.Random
) -> Any:
    """Receive in a block, alone or beside another receive: one that fails, or one for which nothing comes."""
    beside = rng.choice(["nothing", "refused", "refused", "unsent", "error"])
    if beside == "refused":
        await group.send_object({1: print}, group.rank, 1000 + tag, allow_pickle=True)
    before = rng.random() < 0.5
    try:
        async with asyncio.timeout(rng.choice([0, 0.001, 0.02]) if beside == "unsent" else None):
            async with group.coalesce():
                work = None if before else make()
                if beside in ("refused", "unsent"):
                    group.recv_object(group.rank, (1000 if beside == "refused" else 2000) + tag)
                work = work or make()
                await _turns(rng)
                if beside == "error":
                    raise KeyError
    except (TimeoutError, KeyError):
        return LOST
    except dist.UsageError as error:
        if "pickled" not in str(error):
            raise
        return LOST
    assert beside == "nothing"
    return work.result()


async def _nested(
    post: Callable[[], tuple[Any, dist.Work[Any]]], rng: random.Random
) -> list[tuple[Any, Any]]:
    """Cancel a task with others inside, of which the innermost receives, and receive in the same step. Both
    receives are of one size, and there are two messages → tensor and result of each, as they were posted."""
    got: list[tuple[Any, Any]] = []

    async def receive() -> None:
        place, work = post()
        at = len(got)
        got.append((place, LOST))
        got[at] = place, await work

    async def level(depth: int) -> None:
        if depth == 0:
            await receive()
        elif rng.random() < 0.5:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(level(depth - 1))
        else:
            await asyncio.wait_for(level(depth - 1), 2 * REAL)

    outer = asyncio.create_task(level(rng.randint(0, 2)))
    for _ in range(rng.randint(0, 8)):
        await asyncio.sleep(0)
    await _turns(rng)
    outer.cancel()
    await receive()
    await asyncio.wait([outer])
    return got


WAYS: tuple[Way, ...] = (
    *(awaits, waits_for, waits_for, waits_for_wait, waits, within, future, task, task_of_wait, gathered),
    *(grouped, pending, thrown, closed, generated),
)


# ── one rank's part ──────────────────────────────────────────────────────────────────────────────────


class Messages:
    """What the tasks of one stream have received so far.

    Attributes:
        got: source and number of each, in the order in which they came.
        whole: set when all are here.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.got: list[tuple[int, int]] = []
        self.whole = asyncio.Event()
        self._want = [(source, number) for source in stream.sources for number in range(len(stream.sizes))]

    def add(self, source: int, number: int) -> None:
        """Note that one is here."""
        self.got.append((source, number))
        if len(self.got) == len(self._want):
            self.whole.set()

    def check(self) -> None:
        """Each came once; in order, where one task received them."""
        assert sorted(self.got) == self._want, f"not each once: {self}"
        if self.stream.tasks == 1:
            for source in self.stream.sources:
                numbers = [number for sender, number in self.got if sender == source]
                assert numbers == sorted(numbers), f"not in order: {self}"

    def __repr__(self) -> str:
        return f"{self.stream} came as {self.got}"


@dataclass
class Given:
    """Tensors whose receives were given up, which the program has written to since."""

    tensors: list[Any] = field(default_factory=list)

    def up(self, tensor: Any) -> None:
        """Write to it: it is the program's."""
        tensor[...] = MINE
        self.tensors.append(tensor)
        if len(self.tensors) > MOST or sum(one.nbytes for one in self.tensors) > MOST_BYTES:
            self.check()
            del self.tensors[: 1 + len(self.tensors) // 2]

    def check(self) -> None:
        """Nobody else has written."""
        for tensor in self.tensors:
            assert (tensor == MINE).all(), "a tensor was written after its receive was given up"


async def run_program(pg: ProcessGroup, program: Plan) -> None:
    """One rank's part of a program, in a group of its own."""
    group = await pg.new_group()
    assert group is not None
    rng = random.Random(f"{program.seed} rank {group.rank}")
    last: Any = None
    try:
        if group.rank == 0:
            await _receives(group, program)
        else:
            async with asyncio.TaskGroup() as tasks:
                for stream in program.streams:
                    if group.rank in stream.sources:
                        tasks.create_task(_send(group, stream, random.Random(rng.random())))
        if program.ending == "none":
            await group.barrier()
            await _counted_once(group)
        elif program.ending == "early":
            last = await (_last_sends(group, program, rng) if group.rank else _closes_early(group, program))
    finally:
        await group.aclose()
    received, *sent = await pg.all_gather_object(last)
    if program.ending == "early":
        for source, outcomes in enumerate(sent, 1):
            wrong = [number for number in received[source] if not outcomes[number]]
            assert not wrong, f"received, and told as lost: {wrong} of rank {source}"


async def _counted_once(group: ProcessGroup) -> None:
    """Each message that was sent counts once as one that has come: by these numbers receives know whether
    anything of a member that has closed is still on its way."""
    messages = host_of(group).messages
    sent = await group.all_gather_object(list(messages.sent))
    assert messages.heard == [counts[group.rank] for counts in sent]


async def _send(group: ProcessGroup, stream: Stream, rng: random.Random) -> None:
    held = []
    for number, pause in enumerate(stream.pauses):
        if pause is not None:
            await asyncio.sleep(pause * rng.random())
        data = content(stream, group.rank, number)
        send = group.send_object if stream.kind == "object" else group.send
        work = send(data, 0, stream.tag, async_op=True)
        if rng.random() < 0.6:
            await work
        else:
            held.append(work)
    for work in held:
        await work


async def _receives(group: ProcessGroup, program: Plan) -> None:
    given = Given()
    streams = [Messages(stream) for stream in program.streams]
    limit = VIRTUAL if place_of(program.seed) == "virtual" else REAL
    async with asyncio.timeout(1.5 * limit), asyncio.TaskGroup() as tasks:
        for messages in streams:
            for index in range(messages.stream.tasks):
                tasks.create_task(_receiver(group, messages, given, program.seed, index, limit))
    for messages in streams:
        messages.check()
    given.check()
    await _end(group, program)
    given.check()


async def _together(
    group: ProcessGroup, messages: Messages, rng: random.Random, limit: float, staged: bool
) -> None:
    """Receive all that is left: post the receives in one step, and give none up."""
    stream = messages.stream
    src = None if stream.anybody else stream.sources[0]
    posted: list[tuple[Any, dist.Work[Any]]] = []
    sizes = stream.sizes[len(messages.got) :] if len(stream.sources) == 1 else None
    for index in range(len(stream.sources) * len(stream.sizes) - len(messages.got)):
        if stream.kind == "object":
            posted.append((None, group.recv_object(src, stream.tag)))
            continue
        place = _place(stream.kind, stream.sizes[0] if sizes is None else sizes[index])
        into = Tensor(place) if staged and rng.random() < 0.5 else place
        posted.append((place, group.recv(into, src, stream.tag)))
    async with asyncio.timeout(limit):
        results = await asyncio.gather(*(work for _, work in posted))
    for (place, _), result in zip(posted, results, strict=True):
        data = result if place is None else place
        source, number = _message(stream, data)
        assert place is None or result == source
        messages.add(source, number)


def _message(stream: Stream, data: Any) -> tuple[int, int]:
    """The source and number of a message, of which all is here."""
    source, number = source_and_number(data)
    whole = 0 <= number < len(stream.sizes) and np.array_equal(data, content(stream, source, number))
    assert whole, f"no message of {stream}"
    return source, number


async def _receiver(
    group: ProcessGroup, messages: Messages, given: Given, seed: int, index: int, limit: float
) -> None:
    """Receive with others until all is here."""
    rng = random.Random(f"{seed} {messages.stream.tag} {index}")
    stream, got = messages.stream, messages.got
    src = None if stream.anybody else stream.sources[0]
    alone = stream.tasks == 1
    tries, most = 0, rng.choice(TRIES)
    together = random.Random(f"{seed} {stream.tag} together")
    blocks = random.Random(f"{seed} {stream.tag} blocks")
    nested = random.Random(f"{seed} {stream.tag} nested")
    unfit = random.Random(f"{seed} {stream.tag} unfit")
    while not messages.whole.is_set():
        if alone and together.random() < 0.15:
            await _together(group, messages, together, limit, staged(seed))
            break
        if alone and len(set(_left(messages))) == 1 and len(_left(messages)) > 1 and nested.random() < 0.3:
            async with asyncio.timeout(limit):
                posted = await _nested(partial(_post, group, stream, src, _left(messages)[0]), nested)
            for place, result in posted:
                if result is not LOST:
                    messages.add(*_message(stream, result if place is None else place))
                elif place is not None:
                    given.up(place)
            continue
        if alone and stream.kind != "object" and unfit.random() < 0.3:
            await _unfit(group, src, stream.tag, unfit)
        way = awaits if rng.random() < 0.1 else rng.choice(WAYS)
        place = None
        if stream.kind == "object":
            make: Callable[[], dist.Work[Any]] = partial(group.recv_object, src, stream.tag)
        else:
            size = stream.sizes[len(got)] if len(stream.sources) == 1 and alone else stream.sizes[0]
            place = _place(stream.kind, size)
            make = partial(group.recv, place, src, stream.tag)
        in_block = alone and tries < most and blocks.random() < 0.15
        work: Any = None if in_block else make()
        try:
            if in_block:
                result = await _in_block(group, make, stream.tag, blocks)
            elif tries == most or (way is awaits and not alone):  # another task may get the last one
                result = await _patiently(work, messages, limit, rng)
            else:
                result = await way(work, rng, stream.patience * rng.random())
        except dist.PeerClosed:  # all others have what had come
            assert not alone, f"closed in place of a message: {messages}"
            return
        if type(result) is Untold:
            tries += 1
            if place is not None:
                result.task.add_done_callback(partial(_given_up, given, place))
            continue
        if result is LOST:
            tries += 1
            if place is not None:
                given.up(place)
            if rng.random() < 0.5:
                await asyncio.sleep(rng.choice([0, 0.0005, 0.004]))
            continue
        source, number = _message(stream, result if place is None else place)
        assert place is None or result == source
        messages.add(source, number)
        tries, most = 0, rng.choice(TRIES)


async def _unfit(group: ProcessGroup, src: int | None, tag: int, rng: random.Random) -> None:
    """Post a receive that no message fits, and give it up while some may come: within the six turns of the
    loop for which such a message stays."""
    task = asyncio.create_task(_deep(group, src, tag, depth := rng.randint(0, 2)))
    for _ in range(depth + rng.randint(1, 3)):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def _deep(group: ProcessGroup, src: int | None, tag: int, depth: int) -> None:
    """Receive what nobody sends, below so many groups of tasks."""
    if depth:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_deep(group, src, tag, depth - 1))
    else:
        await group.recv(np.zeros(NEVER, np.int64), src, tag)


def _left(messages: Messages) -> list[int]:
    """The sizes of the messages that have not come."""
    stream, count = messages.stream, len(messages.got)
    return [*stream.sizes[count:]] if len(stream.sources) == 1 else [*2 * stream.sizes][count:]


def _post(group: ProcessGroup, stream: Stream, src: int | None, size: int) -> tuple[Any, dist.Work[Any]]:
    if stream.kind == "object":
        return None, group.recv_object(src, stream.tag)
    place = _place(stream.kind, size)
    return place, group.recv(place, src, stream.tag)


def _given_up(given: Given, place: Any, _: asyncio.Task[Any]) -> None:
    given.up(place)


def _place(kind: str, size: int) -> Any:
    if kind == "contiguous":
        return np.zeros(size, np.int64)
    return np.zeros(2 * size, np.int64)[::2]


async def _end(group: ProcessGroup, program: Plan) -> None:
    """Receives for which nothing comes end when somebody closes."""
    tag = len(program.streams)
    rng = random.Random(f"{program.seed} end")
    makes: list[Callable[[], Any]] = [
        lambda: group.recv(np.zeros(3), 1, tag, async_op=True),
        lambda: group.recv_object(2, tag, async_op=True),
        lambda: asyncio.create_task(group.recv(np.zeros((4, 5)).T, None, tag)),
        lambda: asyncio.ensure_future(group.recv_object(None, tag)),
        lambda: asyncio.create_task(group.recv_object(1, tag).wait()),
    ]
    if program.ending in ("none", "early"):
        return
    waiting = [rng.choice(makes)() for _ in range(rng.randint(1, 3))]
    await _turns(rng)
    if program.ending == "here":
        with contextlib.suppress(dist.PeerClosed):  # of a receive that a rank with nothing to send has failed
            await asyncio.wait_for(group.aclose(), 20)
    for work in waiting:
        try:
            await asyncio.wait_for(_of(work), 20)
        except dist.GroupClosed:  # a PeerClosed, perhaps
            continue
        raise AssertionError("a receive got what nobody sent")


async def _of(work: Awaitable[Any]) -> Any:
    return await work


# ── rank 0 closes while the others send to it ────────────────────────────────────────────────────────


def last_messages(seed: int, source: int) -> list[tuple[str, int]]:
    """The kinds and sizes of the messages that a rank sends at the end of a program."""
    rng = random.Random(f"{seed} last {source}")
    sizes = SIZES if rng.random() < 0.95 else LARGE
    kinds = ["object", "contiguous", "strided"]
    return [(rng.choice(kinds), rng.choice(sizes)) for _ in range(rng.randint(1, 5))]


def _last(source: int, number: int, size: int) -> Any:
    return np.arange(size, dtype=np.int64) * 64 + source * 16 + number


async def _last_sends(group: ProcessGroup, program: Plan, rng: random.Random) -> list[bool]:
    """Send to rank 0 until it has closed → which messages were sent."""
    limit = VIRTUAL if place_of(program.seed) == "virtual" else REAL
    works = []
    for number, (kind, size) in enumerate(last_messages(program.seed, group.rank)):
        data = _last(group.rank, number, size)
        if kind == "strided":
            data = np.repeat(data, 2)[::2]
        send = group.send_object if kind == "object" else group.send
        works.append(send(data, 0, len(program.streams), async_op=True))
        if rng.random() < 0.3:
            await asyncio.wait([asyncio.ensure_future(_sent(works[-1], limit))])
        await _turns(rng)
    outcomes = [await _sent(work, limit) for work in works]
    for _ in range(int(limit / 0.01)):  # small ones are sent until its close is known
        if not await _sent(group.send(np.zeros(rng.choice([1, 2000])), 0, 9), limit):
            break
        await asyncio.sleep(0.01)
    for more in (group.send_object("x", 0), group.send(np.zeros(3), 0), group.send(np.zeros(9000), 0)):
        assert not await _sent(more, limit), "sent to a rank that is known to have closed"
    return outcomes


async def _sent(work: dist.Work[Any], limit: float) -> bool:
    try:
        await work.wait(limit)
    except dist.PeerClosed:
        return False
    return True


async def _closes_early(group: ProcessGroup, program: Plan) -> dict[int, list[int]]:
    """Receive some of what the others send, or nothing, and close → which messages of each."""
    rng = random.Random(f"{program.seed} early")
    tag, posted = len(program.streams), []
    for source in (1, 2):
        for number, (kind, size) in enumerate(last_messages(program.seed, source)):
            if rng.random() < 0.4:
                break
            work: dist.Work[Any]
            place = None
            if kind == "object":
                work = group.recv_object(source, tag, async_op=True)
            else:
                place = _place(kind, size)
                work = group.recv(place, source, tag, async_op=True)
            posted.append((source, number, size, place, work))
            if rng.random() < 0.4:
                await asyncio.wait([asyncio.ensure_future(_result(work.wait(rng.choice([0.001, 0.02]))))])
    await _turns(rng)
    await asyncio.wait_for(group.aclose(), VIRTUAL if place_of(program.seed) == "virtual" else REAL)
    received: dict[int, list[int]] = {1: [], 2: []}
    for source, number, size, place, work in posted:
        error = work.exception()
        if error is None:
            data = work.result() if place is None else place
            assert np.array_equal(data, _last(source, number, size)), f"no message {number} of rank {source}"
            received[source].append(number)
        else:
            assert type(error) is dist.GroupClosed, error
    return received
