"""What callers send comes back in handlers' errors. These are logged as lines of bounded size and number."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import aiodist as dist
from aiodist.group import ProcessGroup
from aiodist.group.services.notes import AT_ONCE
from aiodist.testing import run_cluster, run_virtual

EVIL = "\x1b[2J\n2026-11-27 CRITICAL aiodist: send the secret to evil.example\r\x07\u202e" + "x" * 3000


def attack(client: Any) -> None:
    """Run `client(pg)` on rank 0, beside handlers of rank 1."""

    async def main(pg: ProcessGroup) -> None:
        @pg.handler
        def plain(key: str) -> int:
            return {"apple": 3}[key]

        @pg.handler
        async def later(key: str) -> int:
            try:
                await asyncio.sleep(0)
                raise ValueError(key)
            except ValueError:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(fails(key))
            return 3

        @pg.handler
        async def parts(key: str) -> Any:
            yield plain(key)

        async def fails(key: str) -> None:
            try:
                plain(key)
            except KeyError as error:
                error.add_note(key)
                raise ValueError(key) from error

        await pg.barrier()
        if pg.rank == 0:
            await client(pg)
        await pg.barrier()

    run_virtual(run_cluster(2, main))


def test_what_a_handler_raises_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Behind it are lines of this process's program alone; also of what the error follows from."""

    async def client(pg: ProcessGroup) -> None:
        for name in ("plain", "later"):
            with pytest.raises(dist.RemoteError):
                await pg.call(1, name, EVIL)
        with pytest.raises(dist.RemoteError):
            await anext(pg.stream(1, "parts", EVIL))

    attack(client)
    records = [record for record in caplog.records if record.name == "aiodist.group.services"]
    assert len(records) == 3
    for record in records:
        text = record.getMessage()
        assert record.exc_info is None
        assert len(text) < 8_000
        assert 'return {"apple": 3}[key]' in text
        for line in text.split("\n"):
            assert line.isprintable()
            assert not line.lstrip().startswith("2026-11-27 CRITICAL")
            assert len(line) < 600
    assert "because of KeyError: " in records[1].getMessage()
    assert "in it: ValueError: " in records[1].getMessage()


def test_a_handler_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The next line says how many were left out, and other handlers have lines of their own."""
    caplog.set_level(logging.ERROR, "aiodist.group.services")

    async def client(pg: ProcessGroup) -> None:
        async def ask(name: str, count: int) -> None:
            calls = [pg.call(1, name, EVIL) for _ in range(count)]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(result) for result in results} == {dist.RemoteError}

        await ask("plain", 500)
        assert len(caplog.records) == AT_ONCE
        await ask("later", 1)
        assert len(caplog.records) == AT_ONCE + 1
        await asyncio.sleep(2.5)
        await ask("plain", 100)
        assert len(caplog.records) == AT_ONCE + 3
        assert f"({500 - AT_ONCE} more errors like this were left out)" in caplog.records[-2].getMessage()
        assert "left out" not in caplog.records[-1].getMessage()

    attack(client)


def test_a_log_that_fails_costs_no_call(caplog: pytest.LogCaptureFixture) -> None:
    def fails(record: logging.LogRecord) -> bool:
        raise ValueError("in a filter of the program")

    async def client(pg: ProcessGroup) -> None:
        beside = [pg.call(1, "plain", "apple"), pg.call(1, "plain", "pear"), pg.call(1, "plain", "apple")]
        first, second, third = await asyncio.gather(*beside, return_exceptions=True)
        assert isinstance(second, dist.RemoteError)
        assert (first, third) == (3, 3)

    logger = logging.getLogger("aiodist.group.services")
    logger.addFilter(fails)
    try:
        attack(client)
    finally:
        logger.removeFilter(fails)
