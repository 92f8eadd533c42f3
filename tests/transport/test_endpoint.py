"""Socket endpoints: who gets in, what runs over what, and what is said about those who are gone."""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest

from aiodist.base.errors import (
    BackendUnavailable,
    GroupBroken,
    PeerLost,
    RendezvousError,
    UsageError,
    WireError,
)
from aiodist.net import admission
from aiodist.net.wire.handshake import NONCE_BYTES, Handshake, Identity, Purpose
from aiodist.transport import (
    FRAGMENT,
    ControlLink,
    Into,
    Key,
    SocketEndpoint,
    dialing,
    endpoint,
    greeting,
    local_peers,
    peers,
)
from aiodist.transport.endpoint import Mode
from aiodist.transport.listening import unix_address
from aiodist.transport.shm.arena import available
from tests.ports import needs_ipv6
from tests.support.channel_pair import Pair, Recorder

needs_memfd = pytest.mark.skipif(not available(), reason="needs memfd (Linux)")


@asynccontextmanager
async def endpoints(
    count: int = 2, mode: Mode = "auto", introduce: bool = True, **different: Any
) -> AsyncIterator[list[SocketEndpoint]]:
    """Endpoints of ranks 0…; `different` overrides arguments of the last one."""
    made = []
    for rank in range(count):
        arguments: dict[str, Any] = {"rank": rank, "job": "job", "secret": b"secret", "mode": mode}
        made.append(await SocketEndpoint.open(**(arguments | (different if rank == count - 1 else {}))))
    for one in made:
        one.observer = Recorder()
        if introduce:
            one.introduce({rank: other.card for rank, other in enumerate(made)})
    try:
        yield made
    finally:
        await asyncio.gather(*(one.aclose() for one in made))


def recorder(endpoint: SocketEndpoint) -> Recorder:
    assert isinstance(endpoint.observer, Recorder)
    return endpoint.observer


def start(endpoint: SocketEndpoint, rank: int) -> None:
    endpoint.outgoing(rank).send(Key(1, 0, 0, 0), bytes(32), memoryview(b"hello"), lambda: None)


async def loss(endpoint: SocketEndpoint) -> str:
    """The cause of the only loss that an endpoint reports."""
    await recorder(endpoint).until(lambda: bool(recorder(endpoint).losses))
    ((_, cause),) = recorder(endpoint).losses
    return cause


@pytest.mark.parametrize("mode", ["tcp", "auto"])
@pytest.mark.parametrize(
    ("different", "cause"),
    [({"secret": b"other"}, "secret"), ({"job": "other"}, "belongs to job 'other'")],
)
async def test_unauthenticated_peers_are_refused(mode: Mode, different: dict[str, Any], cause: str) -> None:
    async with endpoints(mode=mode, **different) as (mine, theirs):
        start(mine, 1)
        assert cause in await loss(mine)
        with pytest.raises(PeerLost, match=cause):
            await mine.link_control(1)
        assert not recorder(theirs).arrivals
        assert not recorder(theirs).losses


async def test_a_rank_that_was_never_introduced() -> None:
    async with endpoints(introduce=False) as (mine, _theirs):
        start(mine, 1)
        assert await loss(mine) == "cannot connect to it (rank 1 was never introduced)"


async def test_another_process_at_the_address() -> None:
    async with endpoints() as (mine, theirs):
        mine.introduce({1: {**theirs.card, "nonce": bytes(16)}})
        start(mine, 1)
        assert "another process has taken that address" in await loss(mine)


async def test_a_second_process_with_a_rank_does_not_get_in() -> None:
    async with endpoints() as (mine, theirs):
        pair = Pair(mine, theirs)
        await pair.passes(Key(1, 0, 0, 0), FRAGMENT)
        impostor = await SocketEndpoint.open(rank=0, job="job", secret=b"secret")
        impostor.introduce({1: theirs.card})
        impostor.observer = Recorder()
        start(impostor, 1)
        assert await loss(impostor)
        await pair.passes(Key(1, 0, 1, 0), FRAGMENT)
        assert not pair.at_receiver.losses
        impostor.kill()


async def test_garbage_and_silence_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "PATIENCE", 0.01)
    loop = asyncio.get_running_loop()
    async with endpoints() as (mine, theirs):
        for data in (b"GET / HTTP/1.1\r\n\r\n", b""):
            sock = socket.socket()
            sock.setblocking(False)
            await loop.sock_connect(sock, tuple(theirs.card["tcp"]))
            with contextlib.suppress(ConnectionError):  # cut off before all was said, or read
                await loop.sock_sendall(sock, data)
                while await loop.sock_recv(sock, 4096):
                    pass
            sock.close()
        assert not recorder(theirs).losses
        monkeypatch.undo()
        await Pair(mine, theirs).passes(Key(1, 0, 0, 0), 100)


@needs_memfd
@pytest.mark.parametrize("count", [1, 2])
async def test_descriptors_of_refused_peers_are_closed(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "PATIENCE", 0.01)
    loop = asyncio.get_running_loop()
    async with endpoints() as (_mine, theirs):
        reading, writing = os.pipe()
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        sock.connect(unix_address(theirs.card["unix"]))
        sock.sendmsg(
            [b"AIODIST"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [writing] * count))]
        )
        os.close(writing)
        with contextlib.suppress(ConnectionResetError):  # its time was over before its bytes were read
            while await loop.sock_recv(sock, 4096):
                pass
        sock.close()
        assert os.read(reading, 1) == b""  # nobody holds the other end any more
        os.close(reading)


async def test_an_address_that_is_not_ours() -> None:
    for host in ("192.0.2.1", "no-such-host.invalid"):
        with pytest.raises(RendezvousError, match="Set AIODIST_HOST"):
            await SocketEndpoint.open(rank=0, job="job", secret=b"", host=host)


async def test_ipv6() -> None:
    needs_ipv6()
    pair = [await SocketEndpoint.open(rank=r, job="j", secret=b"", host="::1", mode="tcp") for r in range(2)]
    for one in pair:
        one.introduce({rank: other.card for rank, other in enumerate(pair)})
    await Pair(pair[0], pair[1]).passes(Key(1, 0, 0, 0), 1000)
    await asyncio.gather(*(one.aclose() for one in pair))


@needs_memfd
async def test_locality_is_proved_and_used() -> None:
    async with endpoints(3) as made:
        assert list(await asyncio.gather(*(one.prove_local(range(3)) for one in made))) == [{0, 1, 2}] * 3
        assert await made[0].prove_local([2]) == {2}
        assert made[0].peer_pid(1) == made[1].peer_pid(0) == os.getpid()
        await Pair(made[0], made[2]).passes(Key(1, 0, 0, 0), 3 * FRAGMENT)
        assert await made[0].prove_local([2]) == {2}
        made[0].route(2, "shm")
    async with endpoints(2, "tcp") as made:
        assert await made[0].prove_local([0, 1]) == {0}
        await Pair(made[0], made[1]).passes(Key(1, 0, 0, 0), FRAGMENT)
        assert await made[0].prove_local([0, 1]) == {0}
        assert made[0].peer_pid(1) is None
        assert made[0].segment is None
        assert made[0].peer_segments == {}


@needs_memfd
async def test_a_control_link_comes_with_the_proof() -> None:
    async with endpoints(3) as made:
        came: asyncio.Queue[tuple[int, ControlLink]] = asyncio.Queue()
        made[0].on_control = lambda rank, link: came.put_nowait((rank, link))
        proved = (made[1].prove_local([0, 2], linked=[0]), made[2].prove_local([0, 1], linked=[0]))
        assert list(await asyncio.gather(*proved)) == [{0, 2}, {0, 1}]
        made[0].keep_peer_segments({1})
        made[1].keep_peer_segments({0})
        link = await made[1].link_control(0)
        rank, other = await came.get()
        assert rank == 1
        messages: asyncio.Queue[bytes] = asyncio.Queue()
        other.on_message = messages.put_nowait
        link.send(b"hello")
        assert await messages.get() == b"hello"
        ends: asyncio.Queue[bool] = asyncio.Queue()
        other.on_closed = lambda goodbye, _cause: ends.put_nowait(goodbye)
        link.close()
        assert await ends.get()
        assert list(made[0].peer_segments) == [1]
        assert made[0].peer_pid(2) is None
        dialed = await made[1].link_control(0)  # there was one only; the next is dialed
        assert (await came.get())[0] == 1
        assert dialed is not link


@needs_memfd
async def test_another_boot_is_another_host() -> None:
    async with endpoints() as (mine, theirs):
        mine.introduce({1: {**theirs.card, "boot": "another"}})
        assert await mine.prove_local([1]) == set()
        await Pair(mine, theirs).passes(Key(1, 0, 0, 0), FRAGMENT)
        assert mine.peer_pid(1) is None


@needs_memfd
async def test_memory_that_does_not_work_falls_back_to_tcp() -> None:
    nobody = {"mail": b"aiodist-nobody", "unix": b"aiodist-nobody"}  # as in another network namespace
    async with endpoints() as (mine, theirs):
        mine.introduce({1: theirs.card | nobody})
        assert await mine.prove_local([1]) == set()
        await Pair(mine, theirs).passes(Key(1, 0, 0, 0), FRAGMENT)
    async with endpoints(mode="shm") as (mine, theirs):
        mine.introduce({1: theirs.card | nobody})
        start(mine, 1)
        assert await loss(mine) == "cannot connect to it (Connection refused)"


@needs_memfd
async def test_a_process_that_may_not_map_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(nbytes: int, nonce: bytes) -> None:
        raise BackendUnavailable("no memory")

    monkeypatch.setattr(local_peers, "Segment", none)
    async with endpoints() as (mine, theirs):
        assert await mine.prove_local([1]) == set()
        assert mine.segment is None
        await Pair(mine, theirs).passes(Key(1, 0, 0, 0), FRAGMENT)
    async with endpoints(mode="shm") as (mine, _theirs):
        with pytest.raises(BackendUnavailable, match="no memory"):
            await mine.prove_local([1])


@needs_memfd
# ── what this process lacks itself ───────────────────────────────────────────────────────────────────────


def failing(number: int) -> Callable[..., Any]:
    """A function that lacks something."""

    def fail(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


OWN = pytest.mark.parametrize(
    "number",
    [
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.EADDRNOTAVAIL,
        errno.EACCES,
        errno.EPERM,
    ],
    ids=errno.errorcode.get,
)


@OWN
@pytest.mark.parametrize("way", ["a TCP socket", "a Unix socket"])
async def test_what_a_dial_lacks_is_not_the_peers_fault(
    number: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode: Mode = "tcp" if way == "a TCP socket" else "shm"
    if mode == "shm" and not available():
        pytest.skip("needs memfd (Linux)")
    async with endpoints(mode=mode) as (zero, one):
        match way:
            case "a TCP socket":
                monkeypatch.setattr(endpoint, "connect", failing(number))
            case _:
                monkeypatch.setattr(dialing, "connect_unix", failing(number))
        start(zero, 1)
        await recorder(zero).until(lambda: bool(recorder(zero).failures))
        [(rank, error)] = recorder(zero).failures
        assert rank == 1
        assert error.message.startswith("rank 0 ")
        assert error.message.endswith(", so it cannot connect with rank 1")
        assert error.hint
        assert not recorder(zero).losses
        assert not recorder(one).failures
        zero.drop(1)
        one.drop(0)


@OWN
async def test_what_a_control_link_lacks_is_not_the_peers_fault(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with endpoints(mode="tcp") as (zero, _):
        monkeypatch.setattr(endpoint, "connect", failing(number))
        with pytest.raises(GroupBroken, match=r"^rank 0 .*, so it cannot connect with rank 1\. ") as caught:
            await zero.link_control(1)
        assert not isinstance(caught.value, PeerLost)


async def test_who_ends_while_it_is_passed_memory_and_is_lost_is_spoken_of_once() -> None:
    async with endpoints() as (zero, _):
        peer = zero._peer(1)
        zero.drop(1)  # as the control links say it
        zero._hung_up(peer, GroupBroken("rank 1 ended a connection"))
        assert not recorder(zero).failures


@needs_memfd
async def test_another_user_at_the_address_is_no_lack_of_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with endpoints(mode="shm") as (zero, one):
        monkeypatch.setattr(dialing, "is_other_user", lambda sock: True)
        start(zero, 1)
        assert await loss(zero) == "cannot connect to it (another user listens there)"
        assert not recorder(zero).failures
        one.drop(0)


@needs_memfd
async def test_descriptors_that_come_beside_a_handshake_are_not_taken() -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)
        meeting = greeting.Greeting(loop, ours)
        theirs.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
        before = len(os.listdir("/proc/self/fd"))
        nobody = Handshake.server(Identity("job", Purpose.data), b"", bytes(NONCE_BYTES))
        with pytest.raises(WireError, match="its first bytes are b'x'"):
            await meeting.shake(nobody)
        assert len(os.listdir("/proc/self/fd")) == before
        meeting.close()


async def test_who_can_accept_nobody_for_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with endpoints(mode="tcp") as (zero, _):
        zero._listener._exhausted(OSError(errno.EMFILE, ""))  # type: ignore[misc]
        [(rank, error)] = recorder(zero).failures
        assert rank is None
        assert error.message.startswith("rank 0 has no file descriptor left (its limit is ")
        assert error.message.endswith("), so it cannot take connections")


async def test_listening_without_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """One part fails, and nothing of the rest is left behind."""
    for name in ("listen_tcp", "listen_unix", "LocalPeers", "add_reader"):
        if name != "listen_tcp" and not available():
            continue
        with monkeypatch.context() as patch:
            if name == "listen_tcp":
                patch.setattr("aiodist.transport.listening.socket.socket", failing(errno.EMFILE))
            elif name == "add_reader":
                patch.setattr(asyncio.get_running_loop(), name, failing(errno.EMFILE))
            else:
                patch.setattr(endpoint, name, failing(errno.EMFILE))
            with pytest.raises(RendezvousError, match=r"^this process has no file descriptor left .*listen"):
                await SocketEndpoint.open(rank=0, job="job", secret=b"secret")


@needs_memfd
@pytest.mark.parametrize(
    "where",
    [
        "aiodist.transport.local_handshake.receive",
        "aiodist.transport.shm.segment.Window",
        "aiodist.transport.shm.segment.Arena",
    ],
)
async def test_memory_that_cannot_be_shared_for_want_of_something_is_said(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    modes: tuple[Mode, ...] = ("auto", "shm")
    for mode in modes:
        async with endpoints(mode=mode) as (zero, one):
            with monkeypatch.context() as patch:
                patch.setattr(where, failing(errno.EMFILE))
                asked = zero.prove_local([1], [1], 0.5), one.prove_local([0], [0], 0.5)
                tries = await asyncio.gather(*asked, return_exceptions=True)
        words = "so it cannot share memory with rank 1"
        if mode == "shm":
            assert isinstance(tries[0], BackendUnavailable)
            assert words in tries[0].message or "(Too many open files)" in tries[0].message
        else:
            assert list(tries) == [set(), set()]
            assert any(said.startswith("rank 0 has no file") and words in said for said in caplog.messages)


async def test_a_route_can_change_until_the_channel_is_used() -> None:
    async with endpoints() as (mine, theirs):
        pair = Pair(mine, theirs)
        assert await mine.prove_local([1]) == {1}
        mine.route(1, "shm")
        mine.route(1, "tcp")
        await pair.passes(Key(1, 0, 0, 0), FRAGMENT)
        assert not (pair.at_receiver.losses or pair.at_receiver.goodbyes)
        mine.route(1, "tcp")
        with pytest.raises(UsageError, match="runs over tcp already"):
            mine.route(1, "shm")


@pytest.mark.parametrize("mode", ["tcp", "auto"])
async def test_a_peer_that_does_not_answer_goodbye_is_not_waited_for(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with endpoints(mode=mode) as (mine, theirs):
        await Pair(mine, theirs).passes(Key(1, 0, 0, 0), 100)
        (link,) = theirs._links
        asyncio.get_running_loop().remove_reader(link._sock.fileno())  # as if it were stopped
        monkeypatch.setattr(peers, "LINGER", 0.01)
        await mine.aclose()
        assert not mine._links


async def test_after_the_end() -> None:
    async with endpoints() as (mine, theirs):
        await mine.aclose()
        await mine.aclose()
        mine.kill()
        with pytest.raises(UsageError, match="closed"):
            mine.outgoing(1)
        with pytest.raises(UsageError, match="closed"):
            await mine.link_control(1)
        start(theirs, 0)
        assert "cannot connect" in await loss(theirs)


def test_killed_after_its_loop() -> None:
    made: list[SocketEndpoint] = []

    async def main() -> None:
        made.extend([await SocketEndpoint.open(rank=rank, job="j", secret=b"") for rank in range(2)])
        for one in made:
            one.introduce({rank: other.card for rank, other in enumerate(made)})
        await Pair(made[0], made[1]).passes(Key(1, 0, 0, 0), FRAGMENT)
        await made[0].link_control(1)

    asyncio.run(main())
    for one in made:
        one.kill()


CHILD = """
import asyncio, msgpack, os, sys
from aiodist.transport import Key, FRAGMENT, SocketEndpoint

async def main():
    endpoint = await SocketEndpoint.open(rank=1, job="job", secret=b"s", mode=sys.argv[1])
    card = msgpack.packb(endpoint.card)
    os.write(1, len(card).to_bytes(4, "big") + card)
    endpoint.introduce({0: msgpack.unpackb(sys.stdin.buffer.read())})
    data = memoryview(bytes(FRAGMENT * 64))
    endpoint.outgoing(0).send(Key(1, 0, 0, 0), bytes(32), data, lambda: None)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("mode", ["tcp", pytest.param("shm", marks=needs_memfd)])
async def test_a_killed_process_is_lost_once(mode: Mode) -> None:
    mine = await SocketEndpoint.open(rank=0, job="job", secret=b"s", mode=mode)
    observer = mine.observer = Recorder()
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CHILD, mode), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    size = int.from_bytes(await child.stdout.readexactly(4), "big")
    mine.introduce({1: msgpack.unpackb(await child.stdout.readexactly(size))})
    sink = memoryview(bytearray(FRAGMENT * 64))
    arrived: list[bool] = []
    observer.on_arrival = lambda key: child.send_signal(signal.SIGKILL)
    mine.incoming(1).recv(Key(1, 0, 0, 0), len(sink), Into(sink), lambda: arrived.append(True))
    child.stdin.write(msgpack.packb(mine.card))
    child.stdin.close()
    await observer.until(lambda: bool(observer.losses))
    assert [rank for rank, _ in observer.losses] == [1]
    if mode == "shm":
        assert mine.peer_pid(1) == child.pid
    await child.wait()
    await mine.aclose()
    assert len(observer.losses) == 1
    assert not observer.goodbyes
