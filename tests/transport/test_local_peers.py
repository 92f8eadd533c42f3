"""Local peers: who is proved to share this host's memory, who is not, and what others leave behind."""

from __future__ import annotations

import array
import asyncio
import errno
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiodist.base.environment import user
from aiodist.base.errors import BackendUnavailable
from aiodist.net import sockets
from aiodist.net.wire.handshake import NONCE_BYTES
from aiodist.net.wire.local_message import MESSAGE_BYTES, LocalMessage, seal
from aiodist.transport import local_peers as module
from aiodist.transport.listening import unix_address
from aiodist.transport.local_handshake import Me
from aiodist.transport.local_peers import LocalPeers
from aiodist.transport.shm.arena import PAGE, available

if available():
    from aiodist.transport.shm.segment import Segment

pytestmark = pytest.mark.skipif(not available(), reason="needs memfd (Linux)")


class Ranks(list[LocalPeers]):
    """The `LocalPeers` of ranks 0…, and their cards."""

    def __init__(self, count: int, **different: Any) -> None:
        loop = asyncio.get_running_loop()
        self.cards: dict[int, dict[str, Any]] = {}
        for rank in range(count):
            nonce = secrets.token_bytes(NONCE_BYTES)
            me = Me(rank, "job", b"secret", nonce)
            self.append(LocalPeers(loop, me._replace(**different) if rank == count - 1 else me, PAGE))
            self.cards[rank] = {"nonce": nonce, "mail": self[rank].name}

    def introduce(self, rank: int) -> None:
        self[rank].introduce({r: card for r, card in self.cards.items() if r != rank})


@asynccontextmanager
async def local_ranks(count: int = 2, introduced: bool = True, **different: Any) -> AsyncIterator[Ranks]:
    ranks = Ranks(count, **different)
    if introduced:
        for rank in range(count):
            ranks.introduce(rank)
    try:
        yield ranks
    finally:
        for one in ranks:
            one.close()
            one.close()


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_DEADLINE", 0.05)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Reading end and writing end; the latter is for the test to give away."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


class Caller:
    """A connection to a `LocalPeers`, made by hand."""

    def __init__(self, name: bytes) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.setblocking(False)
        try:
            self.sock.connect(unix_address(name))
        except OSError:
            self.sock.close()
            raise
        self.said = b""

    def say(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self.sock.sendmsg([data], rights if descriptors else [])
        self.said += data

    async def hear(self, nbytes: int = MESSAGE_BYTES) -> bytes:
        """So many bytes, or what comes before the end."""
        heard = b""
        while len(heard) < nbytes:
            try:
                data = await asyncio.get_running_loop().sock_recv(self.sock, nbytes - len(heard))
            except ConnectionError:
                break
            if not data:
                break
            heard += data
        self.said += heard
        return heard

    async def refused(self) -> None:
        """Check that the connection is ended, without another message."""
        assert await self.hear() == b""
        self.sock.close()


async def hello(ranks: Ranks, target: int, rank: int = 1) -> Caller:
    """A caller that has said hello as `rank`, which it is, and was answered."""
    caller = Caller(ranks[target].name)
    caller.say(sealed(ranks, target, LocalMessage(rank, ranks.cards[rank]["nonce"], 0, bytes(32)), b""))
    assert len(await caller.hear()) == MESSAGE_BYTES
    return caller


def sealed(ranks: Ranks, target: int, message: LocalMessage, said: bytes) -> bytes:
    return seal(message, b"secret", "job", target, ranks.cards[target]["nonce"], said)


async def test_everybody_meets_everybody() -> None:
    async with local_ranks(5) as ranks:
        others = [set(range(5)) - {rank} for rank in range(5)]
        assert await asyncio.gather(*(one.prove(others[r]) for r, one in enumerate(ranks))) == others
        for rank, one in enumerate(ranks):
            assert one.segment is not None
            one.segment.view[PAGE] = rank + 1
        for rank, one in enumerate(ranks):
            assert {r: n.view[PAGE] for r, n in one.peer_segments.items()} == {r: r + 1 for r in others[rank]}
            assert {n.pid for n in one.peer_segments.values()} == {os.getpid()}
        ranks[0].peer_segments[3].ring_loop()
        ranks[0].peer_segments[3].ring_bulk()
        assert ranks[3].segment is not None
        assert ranks[3].segment.hear() == (True, True)
        assert ranks[3].segment.hear() == (False, False)


async def test_who_is_written_to_answers() -> None:
    async with local_ranks() as (mine, theirs):
        assert await mine.prove([1]) == {1}
        assert list(theirs.peer_segments) == [0]
        assert await theirs.prove([0]) == {0}
        assert await mine.prove([1]) == {1}


async def test_messages_wait_until_the_cards_are_known() -> None:
    async with local_ranks(introduced=False) as ranks:
        ranks.introduce(0)
        proof = asyncio.ensure_future(ranks[0].prove([1]))
        assert not (await asyncio.wait([proof], timeout=0))[0]
        ranks.introduce(1)
        assert await proof == {1}


@pytest.mark.parametrize("mine", [0, 1])
async def test_a_full_backlog_is_waited_for(mine: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "BACKLOG", 10)
    async with local_ranks(introduced=False) as ranks:
        crowd = []
        with pytest.raises(BlockingIOError):
            while True:
                crowd.append(Caller(ranks[1 - mine].name))
        ranks.introduce(mine)
        proof = asyncio.ensure_future(ranks[mine].prove([1 - mine]))
        while not ranks[mine]._backoff.failed:
            assert not (await asyncio.wait([proof], timeout=0))[0]
        ranks.introduce(1 - mine)
        assert await proof == {1 - mine}
        for caller in crowd:
            caller.sock.close()


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("different", [{"secret": b"other"}, {"job": "other"}, {"nonce": bytes(16)}])
async def test_others_are_not_believed(different: dict[str, Any]) -> None:
    async with local_ranks(**different) as (mine, theirs):
        assert set().union(*await asyncio.gather(mine.prove([1]), theirs.prove([0]))) == set()
        assert not mine.peer_segments
        assert not theirs.peer_segments


async def test_nobody_at_the_address() -> None:
    async with local_ranks() as (mine, _theirs):
        mine.introduce({1: {"nonce": bytes(NONCE_BYTES), "mail": b"aiodist-nobody"}})
        assert await mine.prove([1]) == set()
        assert await mine.prove([1]) == set()


@pytest.mark.usefixtures("no_waiting")
async def test_one_who_never_answers() -> None:
    async with local_ranks(introduced=False) as ranks:
        ranks.introduce(0)
        assert await ranks[0].prove([1]) == set()


@pytest.mark.parametrize("count", [1, 3, 4, 100])
async def test_descriptors_of_unauthenticated_peers_are_closed(count: int, pipe: tuple[int, int]) -> None:
    async with local_ranks() as (mine, _theirs):
        reading, writing = pipe
        noise = [
            b"x",
            b"x" * 10_000,
            seal(LocalMessage(1, bytes(16), PAGE, bytes(32)), b"other", "job", 0, b"?" * 16),
        ]
        callers = [Caller(mine.name) for _ in noise]
        for caller, data in zip(callers, noise, strict=True):
            caller.say(data, [writing] * count)
        os.close(writing)
        for caller in callers[1:]:
            await caller.refused()
        callers[0].sock.close()
        assert await asyncio.get_running_loop().run_in_executor(None, os.read, reading, 1) == b""
        assert not mine.peer_segments


async def test_another_user_is_told_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both sides refuse at once, so that none waits: they talk over TCP."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    async with local_ranks() as (mine, theirs):
        proofs = await asyncio.gather(mine.prove([1]), theirs.prove([0]))
        assert list(proofs) == [set(), set()]
        assert not mine.peer_segments and not theirs.peer_segments
        caller = Caller(mine.name)
        caller.say(b"x")
        await caller.refused()
    said = [record.getMessage() for record in caplog.records]
    assert f"uid {os.getuid()} listens under the name of rank 0 on this host: left alone" in said
    assert f"refused pid {os.getpid()} of this host: it runs under another user" in said


async def test_who_looks_like_this_user_in_a_namespace_is_no_local_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This process runs under the number of all users whom its user namespace does not know."""
    monkeypatch.setattr(user, "overflow", os.geteuid)
    monkeypatch.setattr(user, "_knows_all", lambda: False)
    async with local_ranks() as (mine, theirs):
        proofs = await asyncio.gather(mine.prove([1]), theirs.prove([0]))
        assert list(proofs) == [set(), set()]
        caller = Caller(mine.name)
        caller.say(b"x")
        await caller.refused()


async def test_an_authenticated_message_with_the_wrong_descriptors(pipe: tuple[int, int]) -> None:
    async with local_ranks(9) as ranks:
        mine = ranks[0]
        reading, writing = pipe
        for rank, descriptors in enumerate(([], [writing], [writing] * 3, [writing] * 4), 1):
            caller = await hello(ranks, 0, rank)
            message = LocalMessage(rank, ranks.cards[rank]["nonce"], 2 * PAGE, bytes(32))
            caller.say(sealed(ranks, 0, message, caller.said), descriptors)
            await caller.refused()
        assert mine._not_local == {1, 2, 3, 4}
        early = Caller(mine.name)  # a hello brings nothing
        early.say(
            sealed(ranks, 0, LocalMessage(5, ranks.cards[5]["nonce"], 0, bytes(32)), b""), [writing] * 3
        )
        await early.refused()
        early = Caller(mine.name)
        early.say(sealed(ranks, 0, LocalMessage(6, ranks.cards[6]["nonce"], PAGE, bytes(32)), b""))
        await early.refused()
        piecemeal = Caller(mine.name)
        for _ in range(3):
            piecemeal.say(b"x", [writing] * 3)
        await piecemeal.refused()
        os.close(writing)
        assert await asyncio.get_running_loop().run_in_executor(None, os.read, reading, 1) == b""
        assert not mine.peer_segments


async def test_a_message_is_worth_nothing_on_another_connection() -> None:
    """A message that a process of the job once sent, repeated."""
    async with local_ranks(3) as ranks:
        mine = ranks[0]
        segment = Segment(PAGE, secrets.token_bytes(32))
        message = LocalMessage(1, ranks.cards[1]["nonce"], segment.nbytes, segment.arena.nonce)
        first = await hello(ranks, 0)
        greeting = first.said[:MESSAGE_BYTES]
        last = sealed(ranks, 0, message, first.said)
        first.sock.close()
        again = Caller(mine.name)
        again.say(greeting)
        assert len(await again.hear()) == MESSAGE_BYTES  # a hello, and no descriptor: nothing is proved yet
        again.say(last, segment.descriptors())
        await again.refused()
        other = Caller(ranks[2].name)
        other.say(greeting)
        await other.refused()
        mirror = await hello(ranks, 0)
        mirror.say(mirror.said[MESSAGE_BYTES:], segment.descriptors())
        await mirror.refused()
        assert not mine.peer_segments
        segment.close()


async def test_nothing_leaves_before_the_other_has_proved_who_it_is() -> None:
    """Another process of this user listens under the name of rank 0: it gets a hello, and no more."""
    async with local_ranks() as ranks:
        name = b"aiodist-thief-" + secrets.token_hex(8).encode()
        with socket.socket(socket.AF_UNIX) as thief:
            thief.bind(unix_address(name))
            thief.listen()
            thief.setblocking(False)
            ranks[1].introduce({0: {"nonce": ranks.cards[0]["nonce"], "mail": name}})
            proof = asyncio.ensure_future(ranks[1].prove([0]))
            sock, _ = await asyncio.get_running_loop().sock_accept(thief)
            with sock:
                sock.setblocking(False)
                heard = b""
                while len(heard) < MESSAGE_BYTES:
                    heard += await asyncio.get_running_loop().sock_recv(sock, MESSAGE_BYTES)
                await asyncio.get_running_loop().sock_sendall(sock, heard)  # its own message
                data, ancillary, _, _ = await received(sock)
                assert (data, ancillary) == (b"", [])
            assert await proof == set()


async def received(sock: socket.socket) -> tuple[bytes, list[Any], int, Any]:
    """The next bytes, with what is beside them."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(sock.fileno(), ready.set)
    await ready.wait()
    loop.remove_reader(sock.fileno())
    return sock.recvmsg(1000, 1000)


async def test_the_first_handshake_counts() -> None:
    async with local_ranks() as ranks:
        mine, _ = ranks
        assert await mine.prove([1]) == {1}
        first = mine.peer_segments[1]
        caller = Caller(mine.name)
        caller.say(sealed(ranks, 0, LocalMessage(1, ranks.cards[1]["nonce"], 0, bytes(32)), b""))
        await caller.refused()
        assert mine.peer_segments == {1: first}


@pytest.mark.parametrize("first", [0, 1])
async def test_of_two_who_dial_at_once_the_higher_has_its_way(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HOLD", 0)
    async with local_ranks() as ranks:
        proofs = {
            rank: asyncio.ensure_future(ranks[rank].prove([1 - rank], [0])) for rank in (first, 1 - first)
        }
        await asyncio.gather(*proofs.values())
        assert [proofs[rank].result() for rank in (0, 1)] == [{1}, {0}]
        assert set(ranks[1]._own_lines) == {0} and set(ranks[0]._their_lines) == {1}
        assert not ranks[0]._own_lines and not ranks[1]._their_lines
        assert not ranks[0]._handshakes


async def test_silent_callers_make_room_for_local_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_UNAUTHENTICATED", 3)
    async with local_ranks() as ranks:
        crowd = [Caller(ranks[0].name) for _ in range(10)]
        for caller in crowd:
            caller.say(b"AIODIST")
        await crowd[0].refused()
        assert await ranks[1].prove([0]) == {0}
        assert len(ranks[0]._handshakes) <= 4
        for caller in crowd:
            caller.sock.close()


async def test_what_the_kernel_cannot_carry_now_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may only have so many descriptors under way."""
    refusals = 3
    real = socket.socket.sendmsg

    class Busy(socket.socket):
        def sendmsg(self, buffers: Any, rights: Any = (), *more: Any) -> int:
            nonlocal refusals
            if rights and refusals:
                refusals -= 1
                raise OSError(errno.ETOOMANYREFS, "too many references")
            return int(real(self, buffers, rights, *more))

    async with local_ranks() as ranks:
        monkeypatch.setattr(socket, "socket", Busy)
        assert await asyncio.gather(*(ranks[rank].prove([1 - rank]) for rank in (0, 1))) == [{1}, {0}]
        assert not refusals


async def test_a_rank_without_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with local_ranks() as (mine, theirs):

        def none() -> None:
            theirs._no_segment = BackendUnavailable("no memory")

        monkeypatch.setattr(theirs, "segment_for_others", none)
        assert await mine.prove([1]) == set()
        with pytest.raises(BackendUnavailable, match="no memory"):
            await theirs.prove([0])
        assert not mine.peer_segments and not theirs.peer_segments


async def test_local_peers_that_are_not_mutual_are_released() -> None:
    async with local_ranks(3) as ranks:
        mine = ranks[0]
        assert await mine.prove([1, 2]) == {1, 2}
        lost = mine.peer_segments[2]
        mine.keep({1})
        assert list(mine.peer_segments) == [1]
        assert lost.bell == -1
        assert await mine.prove([1, 2]) == {1}
        with pytest.raises(ConnectionRefusedError):
            Caller(mine.name)


async def test_a_line_comes_with_the_message() -> None:
    async with local_ranks(3) as ranks:
        mine, theirs, other = ranks
        proved = await asyncio.gather(theirs.prove([0, 2], [0]), other.prove([0, 1], [0, 1]))
        assert list(proved) == [{0, 2}, {0, 1}]
        assert await mine.prove([1, 2]) == {1, 2}
        assert theirs.line(0) is None, "not before it is agreed"
        came = mine.keep({1})
        assert list(came) == [1]
        theirs.keep({0})
        other.keep(set())
        line = theirs.line(0)
        assert line is not None
        assert theirs.line(0) is theirs.line(2) is other.line(0) is other.line(1) is None
        line.send(b"hello")
        assert came[1].recv(10) == b"hello"
        line.close()
        assert came[1].recv(10) == b""
        came[1].close()


async def test_lines_that_nobody_takes_are_closed() -> None:
    async with local_ranks() as (mine, theirs):
        assert await theirs.prove([0], linked=[0]) == {0}
        assert await mine.prove([1]) == {1}
        assert theirs._own_lines
        assert mine._their_lines


async def test_closing_wakes_who_waits() -> None:
    async with local_ranks(introduced=False) as ranks:
        ranks.introduce(0)
        proof = asyncio.ensure_future(ranks[0].prove([1]))
        await asyncio.wait([proof], timeout=0)
        ranks[0].close()
        assert await proof == set()


CHILD = """
import asyncio, sys
from aiodist.transport.local_handshake import Me
from aiodist.transport.local_peers import LocalPeers

async def main():
    loop = asyncio.get_running_loop()
    local_peers = LocalPeers(loop, Me(1, "job", b"secret", bytes.fromhex(sys.argv[1])), 1 << 20)
    print(local_peers.name.decode(), flush=True)
    name, nonce = sys.stdin.readline().split()
    local_peers.introduce({0: {"mail": name.encode(), "nonce": bytes.fromhex(nonce)}})
    print(await local_peers.prove([0]), local_peers.peer_segments[0].pid, flush=True)
    local_peers.segment.view[4096:4101] = b"hello"
    local_peers.peer_segments[0].ring_loop()
    sys.stdin.readline()
    local_peers.close()

asyncio.run(main())
"""


async def test_two_processes() -> None:
    nonce = secrets.token_bytes(NONCE_BYTES)
    async with local_ranks(1) as ranks:
        mine = ranks[0]
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CHILD, nonce.hex()), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdin is not None
        assert child.stdout is not None
        name = (await child.stdout.readline()).strip()
        mine.introduce({1: {"mail": name, "nonce": nonce}})
        child.stdin.write(f"{mine.name.decode()} {ranks.cards[0]['nonce'].hex()}\n".encode())
        assert await mine.prove([1]) == {1}
        assert await child.stdout.readline() == f"{{0}} {os.getpid()}\n".encode()
        rung = asyncio.Event()
        assert mine.segment is not None
        loop = asyncio.get_running_loop()
        loop.add_reader(mine.segment.bell, rung.set)
        await rung.wait()
        loop.remove_reader(mine.segment.bell)
        peer_segment = mine.peer_segments[1]
        assert peer_segment.pid == child.pid
        assert bytes(peer_segment.view[4096:4101]) == b"hello"
        child.kill()
        await child.wait()
        assert bytes(peer_segment.view[4096:4101]) == b"hello", "what it published outlives it"
        peer_segment.ring_loop()
