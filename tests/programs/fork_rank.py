"""A rank of programs that fork (`forks`): `python -m tests.programs.fork_rank LOOP HOST PROGRAM…`."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import aiodist as dist
from aiodist.group import ProcessGroup
from tests.programs.forks import EXITS, IN_THE_LOOP, LIMIT, Plan

COUNT = 1 << 20  # elements of a large array


class _Left(BaseException):
    """Leads a child out of the loop."""


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(record.getMessage())


class _Rank:
    def __init__(self, pg: ProcessGroup, warnings: _Warnings) -> None:
        self.pg = pg
        self.loop = asyncio.get_running_loop()
        self.warnings = warnings
        self.here = os.getpid()
        self.round = 0
        self.number = 0
        self.held = defaultdict[int, asyncio.Event](asyncio.Event)  # by program: it has ended here
        self.looked_up = False
        self.read, self.write = os.pipe()
        self.came = asyncio.Queue[bytes]()
        self.loop.add_reader(self.read, self._comes)
        pg.handler(self._echo, name="echo")
        pg.handler(self._count, name="count")
        pg.handler(self._hold, name="hold")

    def _comes(self) -> None:
        """Read what came for this process. A child that goes on in the loop shares the pipe, and its own loop
        sees the same: it leaves that to its parent."""
        if os.getpid() == self.here:
            self.came.put_nowait(os.read(self.read, 100))

    def _echo(self, value: int) -> list[int]:
        return [self.pg.rank, value]

    async def _count(self, most: int) -> Any:
        for number in range(most):
            yield number + self.pg.rank

    async def _hold(self, number: int) -> int:
        await self.held[number].wait()
        return self.pg.rank

    def close(self) -> None:
        """End what the program itself watches: also in a child that leaves."""
        self.loop.remove_reader(self.read)
        os.close(self.read)
        os.close(self.write)

    async def program(self, chosen: Plan) -> None:
        pg = self.pg
        self.number += 1
        await pg.barrier()
        if pg.rank not in chosen.forks:
            await asyncio.sleep(0.02)  # so the others fork while it is under way
        under_way = self._begin(chosen)
        await asyncio.sleep(0)
        child = 0
        if pg.rank in chosen.forks:
            if chosen.way in IN_THE_LOOP:
                child = await self._fork(chosen.way)
                if not child:
                    try:
                        await self._leave(chosen.leave, under_way)
                    finally:
                        if chosen.way == "grandchild" and self.parent:
                            _status(self.parent)
            else:
                await self._apart(chosen.way)
        for then in chosen.then:
            await asyncio.wait_for(self._then(then), LIMIT)
        self.held[self.number].set()
        await self._end(chosen, under_way)
        if child:
            if chosen.leave == "outlives":
                os.kill(child, signal.SIGKILL)
            code = await asyncio.to_thread(_status, child)
            assert code == EXITS[chosen.leave], f"a child left by {code}: {chosen}"
        assert not self.warnings.told, f"{chosen}: {self.warnings.told}"
        assert self.looked_up or not _threads_of_libuv(), "aiodist has started libuv's threads"

    # Under way.

    def _begin(self, chosen: Plan) -> Any:
        pg, after = self.pg, (self.pg.rank + 1) % self.pg.size
        match chosen.meanwhile:
            case "collective":
                return pg.all_reduce(np.full(3, pg.rank + 1.0), async_op=True)
            case "receive":
                self.got = np.zeros(2)
                return pg.recv(self.got, after, tag=7, async_op=True)
            case "call":
                return asyncio.ensure_future(pg.call(after, "hold", self.number))
            case "message":
                return asyncio.ensure_future(anext(aiter(pg.messages())))
        return None

    async def _end(self, chosen: Plan, under_way: Any) -> None:
        pg, before, after = self.pg, (self.pg.rank - 1) % self.pg.size, (self.pg.rank + 1) % self.pg.size
        match chosen.meanwhile:
            case "collective":
                found = await under_way
                assert found.tolist() == [pg.size * (pg.size + 1) / 2] * 3
            case "receive":
                await pg.send(np.array([pg.rank, 5.0]), before, tag=7)
                await under_way
                assert self.got.tolist() == [after, 5.0]
            case "call":
                assert await asyncio.wait_for(under_way, LIMIT) == after
            case "message":
                await pg.send_message(before, f"from {pg.rank}")
                assert (await asyncio.wait_for(under_way, LIMIT)) == (after, f"from {after}")

    # Forks.

    async def _fork(self, way: str) -> int:
        loop = self.loop
        self.parent = 0
        done: asyncio.Future[int] = loop.create_future()
        match way:
            case "task":
                return await asyncio.ensure_future(self._as_task())
            case "callback":
                loop.call_soon(lambda: done.set_result(os.fork()))
                return await done
            case "timer":
                loop.call_later(0.002, lambda: done.set_result(os.fork()))
                return await done
            case "reader":
                near, far = socket.socketpair()
                with near, far:

                    def readable() -> None:
                        loop.remove_reader(near)
                        done.set_result(os.fork())

                    loop.add_reader(near, readable)
                    far.send(b"x")
                    return await done
            case "grandchild":
                child = os.fork()
                if not child:
                    self.parent = os.fork()
                    if self.parent:  # the child, which leaves as the grandchild does
                        return 0
                return child
            case "terminal":
                child, terminal = os.forkpty()
                if child:
                    threading.Thread(target=_read_on, args=(terminal,), daemon=True).start()
                return child
        return os.fork()

    async def _as_task(self) -> int:
        await asyncio.sleep(0)
        return os.fork()

    async def _apart(self, way: str) -> None:
        match way:
            case "thread":
                code = await asyncio.to_thread(_fork_in_thread, self.pg)
                assert code == 5
            case "fork" | "forkserver" | "spawn":
                context: Any = multiprocessing.get_context(way)
                process = context.Process(target=_in_process)
                process.start()
                await asyncio.to_thread(process.join)
                assert process.exitcode == 6, process.exitcode
                process.close()
            case "subprocess":
                subprocess.run(["true"], check=True)
            case "preexec":
                subprocess.run(["true"], check=True, preexec_fn=os.getpid)
            case "async subprocess":
                child = await asyncio.create_subprocess_exec("true")
                assert await child.wait() == 0

    # Leaving.

    async def _leave(self, leave: str, under_way: Any) -> None:
        """What a child does; it never returns."""
        loop, pg = self.loop, self.pg
        assert os.getpid() != self.here
        match leave:
            case "error":
                raise ValueError("a child's own error")
            case "exit":
                sys.exit(0)
            case "exit 3":
                sys.exit(3)
            case "_exit":
                os._exit(7)
            case "exec":
                os.execvp("true", ["true"])
            case "kill" | "outlives":
                while True:
                    if leave == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    time.sleep(60)
            case "aclose":
                await pg.aclose()
            case "abort":
                pg.abort("a child does")
            case "stop":
                loop.stop()
                await loop.create_future()
            case "run":
                await _in_thread(lambda: asyncio.run(_nothing()))
            case "world":
                dist.run(_own_world())
            case "goes on":
                await self._go_on(under_way)
            case "use":
                await pg.all_reduce(np.ones(3))
            case "shutdown":
                _shut_down_all()
                os._exit(7)
        raise _Left

    async def _go_on(self, under_way: Any) -> None:
        """Use the loop for a while; nothing of the group is there."""
        loop, pg = self.loop, self.pg
        for delay in (0.0, 0.01, 0.05):
            done = loop.create_future()
            loop.call_later(delay, done.set_result, None)
            await done
        done = loop.create_future()
        threading.Thread(target=lambda: loop.call_soon_threadsafe(done.set_result, None)).start()
        await done
        for refused in (lambda: pg.barrier(), lambda: pg.send(np.ones(1), 0), lambda: pg.all_reduce(1)):
            try:
                await refused()
            except dist.GroupClosed:
                continue
            raise AssertionError("a child uses its parent's group")
        if isinstance(under_way, dist.Work):
            try:
                await under_way  # which ended before the fork, or never will
            except dist.GroupClosed:
                pass

    # What the ranks do next.

    async def _then(self, then: str) -> None:
        pg, size = self.pg, self.pg.size
        self.round += 1
        before, after = (pg.rank - 1) % size, (pg.rank + 1) % size
        match then:
            case "small":
                for number in range(20):
                    found = await pg.all_reduce(np.full(4, number + pg.rank))
                    assert found.tolist() == [size * number + size * (size - 1) // 2] * 4
            case "large":
                found = await pg.all_reduce(np.arange(COUNT, dtype=np.float64) + pg.rank)
                assert np.array_equal(found, size * np.arange(COUNT) + size * (size - 1) / 2)
            case "ring":
                for count in (3, COUNT):
                    sent = pg.send(np.full(count, self.round + pg.rank, np.float32), after, async_op=True)
                    got = np.zeros(count, np.float32)
                    await pg.recv(got, before)
                    await sent
                    assert got[0] == got[-1] == self.round + before
            case "calls":
                for number in range(5):
                    assert await pg.call(after, "echo", number) == [after, number]
            case "stream":
                assert [part async for part in pg.stream(after, "count", 20)] == [
                    number + after for number in range(20)
                ]
            case "thread":
                for number in range(5):
                    assert await asyncio.to_thread(lambda value: value + 1, number) == number + 1
            case "timer":
                await asyncio.sleep(0.02)
            case "group":
                group = await pg.new_group()
                assert group is not None
                async with group:
                    assert await group.all_gather_object(pg.rank) == list(range(size))
            case "objects":
                told = await pg.broadcast_object({"round": self.round} if pg.rank == 0 else None, 0)
                assert told == {"round": self.round}
            case "wait":
                await asyncio.sleep(0.6)  # beyond some heartbeats
            case "watch":
                os.write(self.write, b"%d" % self.round)
                assert await asyncio.wait_for(self.came.get(), LIMIT) == b"%d" % self.round
            case "name":
                self.looked_up = True
                assert await self.loop.getaddrinfo("localhost", 80)


async def _nothing() -> None:
    await asyncio.sleep(0.01)


async def _in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


async def _own_world() -> None:
    async with await dist.init_process_group(world_size=1) as pg:
        assert (await pg.all_reduce(np.full(2, 3.0))).tolist() == [3.0, 3.0]


def _fork_in_thread(pg: ProcessGroup) -> int:
    child = os.fork()
    if not child:
        try:
            pg.barrier()
        except dist.GroupClosed:
            asyncio.run(_nothing())
            os._exit(5)
        finally:
            os._exit(1)
    return _status(child)


def _in_process() -> None:
    asyncio.run(_nothing())
    sys.exit(6)


def _shut_down_all() -> None:
    for one in gc.get_objects():
        if isinstance(one, socket.socket) and one.fileno() >= 0:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()


def _threads_of_libuv() -> int:
    count = 0
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended: one that read a terminal
            count += (thread / "comm").read_bytes().startswith(b"libuv-worker")
    return count


def _status(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _read_on(terminal: int) -> None:
    """Hand on what a child prints on its terminal, or it would wait."""
    try:
        while said := os.read(terminal, 1 << 16):
            os.write(2, said)
    except OSError:
        pass
    os.close(terminal)


async def _main(plans: Sequence[Plan], warnings: _Warnings) -> None:
    try:
        async with await dist.init_process_group(timeout=LIMIT) as pg:
            rank = _Rank(pg, warnings)
            with contextlib.closing(rank):
                for number, chosen in enumerate(plans):
                    try:
                        await rank.program(chosen)
                    except Exception as error:
                        if os.getpid() == rank.here:
                            error.add_note(f"in program {number} of the job: {chosen}")
                        raise
                await pg.barrier()  # who leaves answers no calls
    except _Left:
        pass


def main(argv: Sequence[str]) -> None:
    """A rank: the loop, and programs."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    loop, host, *programs = argv
    here = os.getpid()
    os.environ["AIODIST_STORE"] = f"{host}:{os.environ['AIODIST_STORE'].rpartition(':')[2]}"
    if loop == "asyncio":
        sys.modules["uvloop"] = None  # type: ignore[assignment]
    warnings = _Warnings()
    logging.getLogger("aiodist").addHandler(warnings)
    dist.run(_main([Plan(**json.loads(one)) for one in programs], warnings))
    if os.getpid() == here:
        assert not warnings.told, warnings.told
        print("\nwell\n", end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
