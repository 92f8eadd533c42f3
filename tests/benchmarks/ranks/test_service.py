"""Requests, by groups and by a stream: who asks gets the answer to what it asked."""

from __future__ import annotations

import asyncio
import socket

import pytest

import aiodist as dist
from aiodist.testing import run_cluster
from benchmarks.harness.cases import WrongResultError
from benchmarks.ranks.service import KINDS, StreamService, answer, check, group_service, measured, request


@pytest.mark.parametrize("kind", KINDS)
async def test_a_group_serves_many_requests_at_once(kind: str) -> None:
    async def main(pg: dist.ProcessGroup) -> list[float]:
        return await measured(group_service(pg, kind, 4), pg.rank, lambda: pg.barrier(), 4, 12)

    for wall, spent, p99 in await run_cluster(2, main):
        assert wall >= p99 >= 0
        assert wall > 0
        assert spent > 0


@pytest.mark.parametrize("kind", KINDS)
async def test_so_does_a_stream(kind: str) -> None:
    ends = [await asyncio.open_connection(sock=sock) for sock in socket.socketpair()]
    meeting = asyncio.Barrier(2)

    async def barrier() -> None:
        await meeting.wait()

    services = [StreamService(reader, writer, kind, 4, 12) for reader, writer in ends]
    await asyncio.gather(*(measured(service, rank, barrier, 4, 12) for rank, service in enumerate(services)))
    for _, writer in ends:
        writer.close()
        await writer.wait_closed()


def test_an_answer_to_another_request_is_wrong() -> None:
    check(3, answer(request(3))["value"])
    with pytest.raises(WrongResultError, match="request 4"):
        check(4, answer(request(3))["value"])
