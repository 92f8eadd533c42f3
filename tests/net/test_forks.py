"""Forked children, as processes of their own: what they do to their parent, which is nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.levels import few

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])

PRELUDE = """\
import asyncio, os, signal, socket, sys, time
from aiodist.net.forks import own_loop, own_socket
from aiodist.net.sockets import connect, listen

def status(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def workers():
    names = [open(f"/proc/self/task/{thread}/comm").read() for thread in os.listdir("/proc/self/task")]
    return sum(name.startswith("libuv-worker") for name in names)

def run(main):
    if sys.argv[1] == "asyncio":
        return asyncio.run(main)
    import uvloop
    return uvloop.run(main)
"""


def script(text: str, loop: str) -> str:
    """Run a program; what it prints."""
    code = PRELUDE + textwrap.dedent(text)
    done = subprocess.run(
        [sys.executable, "-c", code, loop], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@LOOPS
@pytest.mark.parametrize("leave", few(["return", "raise ValueError", "sys.exit(0)"], ["raise ValueError"]))
def test_a_child_that_leaves_the_loop_takes_no_socket_of_the_parents_with_it(loop: str, leave: str) -> None:
    said = script(
        f"""
        async def main():
            loop = asyncio.get_running_loop()
            server = await listen("127.0.0.1", 0)
            here = await connect(*server.getsockname())
            there = own_socket(server.accept()[0])
            there.setblocking(False)
            came = asyncio.Queue()
            loop.add_reader(here, lambda: came.put_nowait(here.recv(100)))
            for number in range(3):
                child = os.fork()
                if not child:
                    {leave}
                await asyncio.to_thread(status, child)  # the loop is woken by another thread, too
                there.send(b"%d" % number)
                assert await asyncio.wait_for(came.get(), 60) == b"%d" % number
            loop.remove_reader(here)
            print("well")

        run(main())
        """,
        loop,
    )
    assert said == "well\n"


@LOOPS
def test_what_a_child_does_to_sockets_the_other_end_does_not_see(loop: str) -> None:
    said = script(
        """
        async def main():
            server = await listen("127.0.0.1", 0)
            here = await connect(*server.getsockname())
            there = server.accept()[0]
            there.setblocking(False)
            child = os.fork()
            if not child:
                here.send(b"the child's")
                here.shutdown(socket.SHUT_RDWR)
                here.close()
                os._exit(7)
            assert status(child) == 7
            here.send(b"the parent's")
            assert there.recv(100) == b"the parent's"
            there.send(b"an answer")
            assert here.recv(100) == b"an answer"
            print("well")

        run(main())
        """,
        loop,
    )
    assert said == "well\n"


@LOOPS
def test_a_child_that_lives_on_holds_no_port(loop: str) -> None:
    said = script(
        """
        async def main():
            server = await listen("127.0.0.1", 0)
            name = server.getsockname()
            (read, write), (up, here) = os.pipe(), os.pipe()
            child = os.fork()
            if not child:
                os.write(here, b"x")
                os.read(read, 1)
                os._exit(0)
            os.read(up, 1)
            server.close()
            again = await listen(*name)
            assert again.getsockname() == name
            os.write(write, b"x")
            assert status(child) == 0
            print("well")

        run(main())
        """,
        loop,
    )
    assert said == "well\n"


@LOOPS
def test_a_signal_of_the_childs_is_not_the_parents(loop: str) -> None:
    said = script(
        """
        async def main():
            loop = asyncio.get_running_loop()
            own_loop(loop)
            came = asyncio.Queue()
            loop.add_signal_handler(signal.SIGUSR2, came.put_nowait, os.getpid())
            child = os.fork()
            if not child:
                os.kill(os.getpid(), signal.SIGUSR2)
                done = loop.create_future()
                loop.call_later(0.05, done.set_result, None)
                await done
                os._exit(came.qsize())
            # From 3.12 on asyncio itself stops signals from waking a loop in a child.
            expected = 1 if sys.version_info < (3, 12) else 0
            assert await asyncio.to_thread(status, child) == expected
            assert came.empty()
            os.kill(os.getpid(), signal.SIGUSR2)
            assert await asyncio.wait_for(came.get(), 60) == os.getpid()
            assert came.empty()
            print("well")

        run(main())
        """,
        loop,
    )
    assert said == "well\n"


@LOOPS
def test_a_child_goes_on_with_a_loop_of_its_own(loop: str) -> None:
    """Also what the program watches there: it is not this library's."""
    said = script(
        """
        async def main():
            loop = asyncio.get_running_loop()
            own_loop(loop)
            near, far = socket.socketpair()
            came = loop.create_future()
            loop.add_reader(near, lambda: (loop.remove_reader(near), came.set_result(None)))
            await asyncio.sleep(0)
            child = os.fork()
            if not child:
                woken = loop.create_future()
                import threading
                threading.Thread(
                    target=lambda: (time.sleep(0.05), loop.call_soon_threadsafe(woken.set_result, None))
                ).start()
                await woken
                far.send(b"x")
                await came
                sys.exit(3)
            assert await asyncio.to_thread(status, child) == 3
            loop.remove_reader(near)
            print("well")

        run(main())
        """,
        loop,
    )
    assert said == "well\n"


def test_a_fork_in_another_thread_leaves_the_loop_alone() -> None:
    said = script(
        """
        def forks(loop):
            child = os.fork()
            if not child:
                loop.remove_reader(here)
                os._exit(4)
            return status(child)

        async def main():
            global here
            loop = asyncio.get_running_loop()
            server = await listen("127.0.0.1", 0)
            here = await connect(*server.getsockname())
            there = server.accept()[0]
            came = asyncio.Queue()
            loop.add_reader(here, lambda: came.put_nowait(here.recv(100)))
            await asyncio.sleep(0.01)
            assert await asyncio.to_thread(forks, loop) == 4
            there.send(b"x")
            assert await asyncio.wait_for(came.get(), 60) == b"x"
            loop.remove_reader(here)
            print("well")

        run(main())
        """,
        "uvloop",
    )
    assert said == "well\n"


def test_names_and_connections_start_none_of_libuvs_threads() -> None:
    said = script(
        """
        async def main():
            server = await listen("localhost", 0)
            await connect("localhost", server.getsockname()[1])
            assert workers() == 0
            await asyncio.get_running_loop().getaddrinfo("localhost", 80)
            print(workers() > 0)

        run(main())
        """,
        "uvloop",
    )
    assert said == "True\n"  # they would have been seen


def test_a_child_ends_well_where_the_program_has_started_libuvs_threads() -> None:
    said = script(
        """
        async def main():
            loop = asyncio.get_running_loop()
            own_loop(loop)
            await loop.getaddrinfo("localhost", 80)
            child = os.fork()
            if not child:
                if not os.fork():
                    sys.exit(0)
                sys.exit(status(-1))
            print(status(child))

        run(main())
        """,
        "uvloop",
    )
    assert said == "0\n"


@LOOPS
def test_a_connection_that_is_refused_says_so(loop: str) -> None:
    said = script(
        """
        async def main():
            server = await listen("127.0.0.1", 0)
            name = server.getsockname()
            server.close()
            try:
                await connect(*name)
            except ConnectionRefusedError as error:
                print(error.strerror)

        run(main())
        """,
        loop,
    )
    assert said == "Connection refused\n"
