"""The errors that callers get, and what the process that is called says of its handlers' errors."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

import aiodist as dist
from aiodist.base.errors import A_MESSAGE
from aiodist.group import ProcessGroup
from aiodist.group.services.mailbox import MESSAGES
from aiodist.group.services.outcomes import LATE, PASSED, error_of
from aiodist.net.wire.calls import Says
from aiodist.testing import run_cluster, run_virtual
from tests.group.services.narrow import Narrow
from tests.helpers import core_of


@pytest.mark.parametrize(
    ("kind", "body", "name", "error", "words"),
    [
        (LATE, None, "add", dist.CallTimeout, "calling add on rank 1: no answer within 2 s"),
        (
            Says.DROPPED,
            PASSED.encode(),
            "add",
            dist.CallTimeout,
            "calling add on rank 1: no answer within 2 s",
        ),
        (Says.REFUSED, PASSED.encode(), "add", dist.CallTooLate, "it waited for its turn there for 2 s"),
        (
            Says.REFUSED,
            PASSED.encode(),
            A_MESSAGE,
            dist.CallTooLate,
            "sending a message to rank 1: the mailbox",
        ),
        (Says.DROPPED, b"it leaves", "add", dist.CallUnknown, "it was stopped there: it leaves"),
        (Says.REFUSED, b"no handler", "add", dist.CallNotRun, "calling add on rank 1: no handler"),
    ],
)
def test_whose_clock_says_so_does_not_matter(
    kind: int, body: bytes | None, name: str, error: type[dist.CallError], words: str
) -> None:
    made = error_of((kind, body), 1, name, 2.0)
    assert type(made) is error
    assert words in str(made)
    assert isinstance(made, TimeoutError) is (kind == LATE or body == PASSED.encode())


async def two(serve: Callable[[ProcessGroup], object], ask: Callable[[ProcessGroup], object]) -> None:
    """Run `serve(pg)` on rank 1, then `await ask(pg)` on rank 0."""

    async def main(pg: ProcessGroup) -> None:
        if pg.rank:
            serve(pg)
        await pg.barrier()
        if pg.rank == 0:
            await ask(pg)  # type: ignore[misc]
        await pg.barrier()

    await run_cluster(2, main)


async def test_a_call_whose_time_is_over_raises_a_timeout_error() -> None:
    """Each time, though the other side's answer may come first."""

    def serve(pg: ProcessGroup) -> None:
        @pg.handler(limit=1)
        async def slow() -> None:
            await asyncio.sleep(100)

    async def ask(pg: ProcessGroup) -> None:
        for _ in range(8):
            with pytest.raises(dist.CallTimeout, match="no answer within"):
                await pg.call(1, "slow", timeout=0.02)
        await asyncio.sleep(0.01)
        running = asyncio.create_task(pg.call(1, "slow"))
        await asyncio.sleep(0.01)
        for _ in range(8):  # it waits for its turn
            with pytest.raises(TimeoutError) as late:
                await pg.call(1, "slow", timeout=0.02)
            assert isinstance(late.value, dist.CallTimeout | dist.CallTooLate)
        running.cancel()

    await two(serve, ask)


async def test_a_message_that_finds_the_mailbox_full() -> None:
    async def ask(pg: ProcessGroup) -> None:
        for number in range(MESSAGES):
            await pg.send_message(1, number)
        for _ in range(4):
            with pytest.raises(TimeoutError, match="sending a message to rank 1: ") as late:
                await pg.send_message(1, "more", timeout=0.02)
            assert "mailbox" in str(late.value)

    await two(lambda pg: None, ask)


async def test_what_a_handler_raises_is_logged_with_its_lines(caplog: pytest.LogCaptureFixture) -> None:
    def serve(pg: ProcessGroup) -> None:
        @pg.handler
        def plain(key: str) -> int:
            return {"apple": 3}[key]

        @pg.handler
        async def waits(key: str) -> int:
            await asyncio.sleep(0)
            return plain(key)

        @pg.handler
        async def asks() -> None:
            await pg.call(1, "nothing")

    async def ask(pg: ProcessGroup) -> None:
        for name in ("plain", "waits"):
            with pytest.raises(dist.RemoteError):
                await pg.call(1, name, "pear")
            record = caplog.records[-1]
            assert (record.name, record.levelname) == ("aiodist.group.services", "ERROR")
            assert f"handler {name} raised" in caplog.text
            assert 'return {"apple": 3}[key]' in caplog.text
            assert "running.py" not in caplog.text
            caplog.clear()
        with pytest.raises(dist.RemoteError, match="CallNotRun"):
            await pg.call(1, "asks")
        assert not [record for record in caplog.records if record.name == "aiodist.group.services"]

    await two(serve, ask)


async def test_keyword_arguments_are_refused_with_a_hint() -> None:
    async def ask(pg: ProcessGroup) -> None:
        with pytest.raises(dist.UsageError, match=r"got a, b\. The arguments of a handler go by position"):
            await pg.call(1, "add", a=2, b=3)  # type: ignore[call-overload]
        with pytest.raises(dist.UsageError, match="go by position"):
            pg.stream(1, "lines", count=2)  # type: ignore[call-overload]

    await two(lambda pg: None, ask)


EXITS = """
import sys, asyncio, aiodist as dist

async def main():
    async with await dist.init_process_group(rank=0, world_size=1) as pg:
        @pg.handler
        async def ends():
            await asyncio.sleep(0)
            sys.exit(4)
        await pg.call(0, ends)

dist.run(main())
"""


def test_a_handler_that_exits_leaves_its_line(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text(EXITS)
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", "1", "exits.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 4
    assert "handler ends called exit" in done.stderr
    assert 'exits.py", line 9, in ends' in done.stderr


def test_a_healthy_rank_is_not_said_to_be_lost() -> None:
    """Only a line to it breaks, or cannot be made: what ended so says it, and the next call goes."""
    network = Narrow()

    async def main(pg: ProcessGroup) -> None:
        @pg.handler
        async def waits(seconds: float) -> int:
            await asyncio.sleep(seconds)
            return pg.rank

        @pg.handler
        async def parts() -> AsyncIterator[int]:
            yield pg.rank
            await asyncio.sleep(1000)

        await pg.barrier()
        if pg.rank == 0:
            network.refused = 1
            with pytest.raises(dist.CallNotRun, match=r"cannot be reached \(refused\)") as refused:
                await pg.call(1, waits, 0.0)
            assert type(refused.value.__cause__) is ConnectionRefusedError
            stream = pg.stream(1, parts)
            assert await anext(stream) == 1
            for timeout in (None, 30.0):
                calls = [pg.call(1, waits, 1000.0, timeout=timeout), anext(stream)]
                asked = [asyncio.ensure_future(one) for one in calls]
                await asyncio.sleep(0.5)
                network.cut(0, 1)
                for one in asked:
                    with pytest.raises(dist.CallUnknown, match="Connection reset by peer") as cut:
                        await one
                    assert type(cut.value.__cause__) is ConnectionError
                    assert str(cut.value.__cause__) == "Connection reset by peer"
                assert await pg.call(1, waits, 0.0) == 1
        await pg.barrier()

    run_virtual(run_cluster(2, main, endpoint=network.endpoint, timeout=60.0))


def test_a_call_does_not_wait_for_news_beyond_its_deadline() -> None:
    network = Narrow()

    async def main(pg: ProcessGroup) -> None:
        pg.handler(asyncio.sleep, name="waits")
        await pg.barrier()
        if pg.rank == 0:
            loop = asyncio.get_running_loop()
            loop.call_later(1.0, network.cut, 0, 1)
            began = loop.time()
            with pytest.raises(dist.CallUnknown, match="reset by peer"):
                await pg.call(1, "waits", 1000, timeout=1.5)
            assert loop.time() <= began + 1.6
        await pg.barrier()

    run_virtual(run_cluster(2, main, endpoint=network.endpoint, timeout=60.0))


def test_the_cause_is_that_the_rank_is_lost_where_that_is_known_a_moment_later() -> None:
    """Its connection ends first. What was not sent whole says so, too."""
    network, told = Narrow(), list[type[dist.CallError]]()

    async def main(pg: ProcessGroup) -> None:
        @pg.handler
        async def parts() -> AsyncIterator[int]:
            yield pg.rank
            await asyncio.sleep(1000)

        pg.handler(asyncio.sleep, name="waits")
        await pg.barrier()
        if pg.rank == 0:
            stream = pg.stream(1, parts)
            assert await anext(stream) == 1
            asked = [
                asyncio.ensure_future(one)
                for one in (
                    pg.call(1, "waits", 1000),
                    anext(stream),
                    pg.call(1, "waits", bytes(50 << 20)),
                    pg.send_message(1, bytes(50 << 20)),
                )
            ]
            await asyncio.sleep(0.5)
            network.cut(0, 1)
            await asyncio.sleep(1.0)
            core_of(pg).control.lose(1, "it died, for a test")
            for one, kind in zip(asked, [dist.CallUnknown] * 2 + [dist.CallNotRun] * 2, strict=True):
                with pytest.raises(kind, match="it died, for a test") as caught:
                    await one
                assert isinstance(caught.value.__cause__, dist.PeerLost)
                assert caught.value.__cause__.ranks == (1,)
                told.append(kind)
        else:
            await asyncio.sleep(10)

    with contextlib.suppress(ExceptionGroup):  # of a rank that is said to be lost
        run_virtual(run_cluster(2, main, endpoint=network.endpoint, timeout=60.0))
    assert len(told) == 4
