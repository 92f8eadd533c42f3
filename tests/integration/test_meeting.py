"""How processes meet, and what they are told when they cannot: real processes, a line each."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.levels import COSTLY, few
from tests.ports import free_port

SCRIPT = """
import asyncio, json, sys
import numpy as np
import aiodist as dist
{before}
async def main():
    async with await dist.init_process_group(**json.loads(sys.argv[1])) as pg:
        total = await pg.all_reduce(np.array([10 ** pg.rank]))
        print("rank", pg.rank, "of", pg.size, "total", total[0])
        {inside}
try:
    dist.run(main())
except dist.AiodistError as error:
    print(type(error).__name__ + ": " + str(error))
    sys.exit(3)
"""


async def start(
    environ: Mapping[str, str], before: str = "", inside: str = "pass", **arguments: object
) -> asyncio.subprocess.Process:
    """A process that joins and sums, with nothing in its environment but what is given."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT.format(before=before, inside=inside),
        json.dumps(arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**kept, "OPENBLAS_NUM_THREADS": "1", **environ},
    )


async def together(
    *environs: Mapping[str, str], before: Sequence[str] = ("", "", "")
) -> list[asyncio.subprocess.Process]:
    """Processes that begin at one moment: their patience is short, and Python may take longer to start."""
    ready = "\ndist.run, dist.init_process_group\nprint('ready', flush=True)\nsys.stdin.readline()"
    started = [await start(environ, more + ready) for environ, more in zip(environs, before, strict=False)]
    for process in started:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"\n")
    return started


async def outputs(processes: Sequence[asyncio.subprocess.Process]) -> list[str]:
    """What each printed, with its exit code before it."""
    try:
        async with asyncio.timeout(200):
            texts = await asyncio.gather(*[process.communicate() for process in processes])
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return [f"{p.returncode}: {text[0].decode()}" for p, text in zip(processes, texts, strict=True)]


def environment(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    """What a launcher sets."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "AIODIST_TIMEOUT": "100",
        **more,
    }


@pytest.mark.slow(COSTLY)
async def test_env_without_a_launcher() -> None:
    port = free_port()
    got = await outputs([await start(environment(rank, 3, port)) for rank in range(3)])
    assert got == [f"0: rank {rank} of 3 total 111\n" for rank in range(3)]


@pytest.mark.slow(COSTLY)
async def test_rank_follows_from_node_and_local_rank() -> None:
    port = free_port()
    started = []
    for node in range(2):
        for local in range(2):
            environ = environment(
                0, 4, port, NODE_RANK=str(node), LOCAL_RANK=str(local), LOCAL_WORLD_SIZE="2"
            )
            del environ["RANK"]
            started.append(await start(environ))
    assert await outputs(started) == [f"0: rank {rank} of 4 total 1111\n" for rank in range(4)]


@pytest.mark.slow(COSTLY)
async def test_tcp_url() -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    started = [await start({}, init_method=url, rank=rank, world_size=2) for rank in range(2)]
    assert await outputs(started) == [f"0: rank {rank} of 2 total 11\n" for rank in range(2)]


@pytest.mark.slow(COSTLY)
async def test_file_url_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "meet"
    started = [await start({}, init_method=f"file://{path}", rank=rank, world_size=3) for rank in range(3)]
    assert await outputs(started) == [f"0: rank {rank} of 3 total 111\n" for rank in range(3)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow(COSTLY)
async def test_users_store_and_a_second_world_over_it() -> None:
    before = """
async def main():
    rank = int(sys.argv[1][-2])
    server = await dist.StoreServer.start("127.0.0.1", PORT, "job", b"") if rank == 0 else None
    store = await dist.TcpStore.connect("127.0.0.1", PORT, "job", b"")
    for name in ("first", "second"):
        async with await dist.init_process_group(store=store, rank=rank, world_size=2, group_name=name) as pg:
            print(pg.name, (await pg.all_reduce(np.array([rank + 1])))[0])
        assert not dist.is_initialized()
    await store.barrier("end", 2, rank)
    await store.aclose()
    if server is not None:
        await server.aclose()
dist.run(main())
sys.exit(0)
""".replace("PORT", str(free_port()))
    got = await outputs([await start({}, before=before, r=rank) for rank in range(2)])
    assert got == ["0: first 3\nsecond 3\n"] * 2


@pytest.mark.slow(COSTLY)
async def test_alone_is_a_world_of_one() -> None:
    assert await outputs([await start({})]) == ["0: rank 0 of 1 total 1\n"]


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    ("change", "words"),
    few(
        [
            ({"RANK": None}, "RANK"),
            ({"RANK": "one"}, "RANK='one' is not a number"),
            ({"RANK": "5"}, "RANK=5"),
            ({"WORLD_SIZE": "many"}, "WORLD_SIZE='many' is not a number"),
            ({"WORLD_SIZE": "0"}, "WORLD_SIZE"),
            ({"MASTER_PORT": "http"}, "MASTER_PORT"),
            ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
            ({"AIODIST_TRANSPORT": "pigeon"}, "AIODIST_TRANSPORT='pigeon' is not known"),
        ],
        [
            ({"RANK": "one"}, "RANK='one' is not a number"),
            ({"MASTER_ADDR": None}, "MASTER_ADDR is not set"),
        ],
    ),
)
async def test_bad_environment_is_one_clear_line(change: dict[str, str | None], words: str) -> None:
    environ = environment(0, 2, free_port())
    for name, value in change.items():
        if value is None:
            del environ[name]
        else:
            environ[name] = value
    [got] = await outputs([await start(environ)])
    assert got.startswith("3: UsageError: ")
    assert words in got
    assert len(got.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    few([{"backend": "smoke-signals"}, {"init_method": "carrier://x"}], [{"init_method": "carrier://x"}]),
)
async def test_bad_arguments(arguments: dict[str, object]) -> None:
    [got] = await outputs([await start({}, "", "pass", **arguments)])
    assert got.startswith("3: UsageError: ")


@pytest.mark.slow(COSTLY)
async def test_port_in_use_names_the_owner() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        [got] = await outputs([await start(environment(0, 2, port))])
    assert got.startswith("3: RendezvousError: ")
    assert str(port) in got
    assert str(os.getpid()) in got


@pytest.mark.slow(COSTLY)
async def test_unreachable_master() -> None:
    port = free_port()
    [got] = await outputs([await start(environment(1, 2, port, AIODIST_TIMEOUT="2"))])
    assert got.startswith("3: RendezvousTimeout: ")
    assert f"127.0.0.1:{port}" in got
    assert "refused" in got


@pytest.mark.slow(COSTLY)
async def test_other_settings_are_refused_in_one_line() -> None:
    port = free_port()
    started = [
        await start(environment(0, 2, port, AIODIST_TRANSPORT="tcp")),
        await start(environment(1, 2, port, AIODIST_TRANSPORT="auto")),
    ]
    for got in await outputs(started):
        assert got.startswith("3: RendezvousError: ")
        assert "AIODIST_TRANSPORT" in got


async def two_processes_with_one_rank() -> None:
    port = free_port()
    started = await together(*(environment(rank, 3, port, AIODIST_TIMEOUT="10") for rank in (0, 1, 1)))
    got = await outputs(started)
    told = [text for text in got if "rank 1 is taken by pid" in text]
    assert len(told) == 1
    assert f"pid {started[1].pid}" in told[0]
    assert f"pid {started[2].pid}" in told[0]


async def incomplete_world_names_who_is_missing() -> None:
    port = free_port()
    started = await together(*(environment(rank, 4, port, AIODIST_TIMEOUT="10") for rank in (0, 2)))
    for got in await outputs(started):
        assert got.startswith("3: RendezvousTimeout: ")
        assert "ranks 1 and 3" in got or "ranks 1, 3" in got


async def other_protocol_version_is_refused_in_one_line() -> None:
    port = free_port()
    old = "import aiodist.net.wire.handshake as h; h.PROTOCOL_VERSION = 99"
    started = await together(
        *(environment(rank, 2, port, AIODIST_TIMEOUT="10") for rank in range(2)), before=["", old]
    )
    got = await outputs(started)
    assert got[1].startswith("3: AuthenticationError: ")
    assert "protocol" in got[1]
    assert "99" in got[1]
    assert "ranks 1" in got[0] or "rank 1" in got[0]


async def wrong_secret_is_refused() -> None:
    port = free_port()
    started = await together(
        environment(0, 2, port, AIODIST_TIMEOUT="10", AIODIST_SECRET="right"),
        environment(1, 2, port, AIODIST_TIMEOUT="10", AIODIST_SECRET="wrong"),
    )
    got = await outputs(started)
    assert got[1].startswith("3: AuthenticationError: ")
    assert "secret" in got[1]
    assert not any("right" in text.lower().replace("copyright", "") for text in got)


@pytest.mark.slow(COSTLY)
async def test_who_meets_in_vain_is_told_why() -> None:
    """All at the same time: each takes its 10 seconds."""
    async with asyncio.TaskGroup() as group:
        for case in (
            two_processes_with_one_rank,
            incomplete_world_names_who_is_missing,
            other_protocol_version_is_refused_in_one_line,
            wrong_secret_is_refused,
        ):
            group.create_task(case(), name=case.__name__)


LISTENING = r"""
import os, re

def listening():
    names = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    mine = {found.group(1) for name in names if (found := re.search(r"socket:.(\d+)", name))}
    rows = [line.split() for file in ("tcp", "tcp6") for line in open(f"/proc/net/{file}").readlines()[1:]]
    return sorted({row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in mine})
"""


@pytest.mark.slow(COSTLY)
async def test_everything_listens_on_loopback_alone() -> None:
    inside = "print('listening', listening())"
    port = free_port()
    for got in await outputs(
        [await start(environment(rank, 2, port), LISTENING, inside) for rank in range(2)]
    ):
        assert "listening ['0100007F']" in got
