"""Mail: who is proved to share this host's memory, who is not, and what strangers leave behind."""

from __future__ import annotations

import array
import asyncio
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiodist.errors import BackendUnavailable
from aiodist.shm.arena import PAGE, available
from aiodist.transport import mail as module
from aiodist.transport.listening import unix_address
from aiodist.transport.mail import Mailbox
from aiodist.wire.handshake import NONCE_BYTES
from aiodist.wire.letter import Letter, seal

if available():
    from aiodist.shm.home import Home

pytestmark = pytest.mark.skipif(not available(), reason="needs memfd (Linux)")


class Ranks(list[Mailbox]):
    """Mailboxes of ranks 0…, and their cards."""

    def __init__(self, count: int, **different: Any) -> None:
        loop = asyncio.get_running_loop()
        self.cards: dict[int, dict[str, Any]] = {}
        for rank in range(count):
            nonce = secrets.token_bytes(NONCE_BYTES)
            given: dict[str, Any] = {"rank": rank, "job": "job", "secret": b"secret", "nonce": nonce}
            given["home_nbytes"] = PAGE
            self.append(Mailbox(loop, **(given | (different if rank == count - 1 else {}))))
            self.cards[rank] = {"nonce": nonce, "mail": self[rank].name}

    def introduce(self, rank: int) -> None:
        self[rank].introduce({r: card for r, card in self.cards.items() if r != rank})


@asynccontextmanager
async def mailboxes(count: int = 2, introduced: bool = True, **different: Any) -> AsyncIterator[Ranks]:
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


async def read_all(mailbox: Mailbox) -> None:
    """Until a mailbox has taken all that was sent to it: an own letter comes last."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    seen = asyncio.get_running_loop().create_future()
    take = mailbox._letter

    def letter(data: bytes, descriptors: list[int], pid: int) -> None:
        take(data, descriptors, pid)
        if data == b"the last":
            seen.set_result(None)

    mailbox._letter = letter  # type: ignore[method-assign]
    with sock:
        sock.sendto(b"the last", unix_address(mailbox.name))
        await seen
    mailbox._letter = take  # type: ignore[method-assign]


def post(name: bytes, data: bytes, descriptors: list[int]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        sock.sendmsg([data], rights, 0, unix_address(name))


async def test_everybody_meets_everybody() -> None:
    async with mailboxes(5) as ranks:
        others = [set(range(5)) - {rank} for rank in range(5)]
        assert await asyncio.gather(*(one.prove(others[r]) for r, one in enumerate(ranks))) == others
        for rank, one in enumerate(ranks):
            assert one.home is not None
            one.home.view[PAGE] = rank + 1
        for rank, one in enumerate(ranks):
            assert {r: n.view[PAGE] for r, n in one.neighbours.items()} == {r: r + 1 for r in others[rank]}
            assert {n.pid for n in one.neighbours.values()} == {os.getpid()}
        ranks[0].neighbours[3].ring_loop()
        ranks[0].neighbours[3].ring_bulk()
        assert ranks[3].home is not None
        assert os.eventfd_read(ranks[3].home.loop_bell) == 1
        assert os.eventfd_read(ranks[3].home.bulk_bell) == 1


async def test_who_is_written_to_answers() -> None:
    async with mailboxes() as (mine, theirs):
        assert await mine.prove([1]) == {1}
        assert list(theirs.neighbours) == [0]
        assert await theirs.prove([0]) == {0}
        assert await mine.prove([1]) == {1}


async def test_letters_wait_until_the_cards_are_known() -> None:
    async with mailboxes(introduced=False) as ranks:
        ranks.introduce(0)
        proof = asyncio.ensure_future(ranks[0].prove([1]))
        assert not (await asyncio.wait([proof], timeout=0))[0]
        ranks.introduce(1)
        assert await proof == {1}


async def test_a_full_mailbox_is_waited_for() -> None:
    async with mailboxes(introduced=False) as ranks:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as noisy:
            noisy.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    noisy.sendto(b"noise", unix_address(ranks[1].name))
            ranks.introduce(0)
            proof = asyncio.ensure_future(ranks[0].prove([1]))
            while not ranks[0]._tries:
                assert not (await asyncio.wait([proof], timeout=0))[0]
            ranks.introduce(1)
            assert await proof == {1}


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("different", [{"secret": b"other"}, {"job": "other"}, {"nonce": bytes(16)}])
async def test_others_are_not_believed(different: dict[str, Any]) -> None:
    async with mailboxes(**different) as (mine, theirs):
        assert set().union(*await asyncio.gather(mine.prove([1]), theirs.prove([0]))) == set()
        assert not mine.neighbours
        assert not theirs.neighbours


async def test_nobody_at_the_address() -> None:
    async with mailboxes() as (mine, _theirs):
        mine.introduce({1: {"nonce": bytes(NONCE_BYTES), "mail": b"aiodist-nobody"}})
        assert await mine.prove([1]) == set()
        assert await mine.prove([1]) == set()


@pytest.mark.usefixtures("no_waiting")
async def test_one_who_never_answers() -> None:
    async with mailboxes(introduced=False) as ranks:
        ranks.introduce(0)
        assert await ranks[0].prove([1]) == set()


@pytest.mark.parametrize("count", [1, 3, 4, 100])
async def test_descriptors_of_strangers_are_closed(count: int, pipe: tuple[int, int]) -> None:
    async with mailboxes() as (mine, _theirs):
        reading, writing = pipe
        noise = [
            b"",
            b"x" * 10_000,
            seal(Letter(1, bytes(16), PAGE, bytes(32)), b"other", "job", 0, b"?" * 16),
        ]
        for data in noise:
            post(mine.name, data, [writing] * count)
        os.close(writing)
        await read_all(mine)
        assert os.read(reading, 1) == b""  # nobody holds the other end any more
        assert not mine.neighbours


async def test_a_letter_from_another_user(no_waiting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is answered, so that nobody waits, but its memory is not taken: they talk over TCP."""
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    async with mailboxes() as (mine, theirs):
        proofs = await asyncio.gather(mine.prove([1]), theirs.prove([0]))
        assert list(proofs) == [set(), set()]
        assert not mine.neighbours and not theirs.neighbours


async def test_a_friend_s_letter_with_the_wrong_things_in_it(pipe: tuple[int, int]) -> None:
    async with mailboxes() as ranks:
        mine, _ = ranks
        reading, writing = pipe
        letter = Letter(1, ranks.cards[1]["nonce"], 2 * PAGE, bytes(32))
        data = seal(letter, b"secret", "job", 0, ranks.cards[0]["nonce"])
        for descriptors in ([], [writing], [writing] * 3, [writing] * 4):
            post(mine.name, data, descriptors)
        with socket.socket(socket.AF_INET) as no_line:
            post(mine.name, data, [writing] * 3 + [no_line.fileno()])
        os.close(writing)
        await read_all(mine)
        assert os.read(reading, 1) == b""
        assert not mine.neighbours


async def test_the_first_letter_counts() -> None:
    async with mailboxes() as ranks:
        mine, _ = ranks
        assert await mine.prove([1]) == {1}
        first = mine.neighbours[1]
        other = Home(PAGE, secrets.token_bytes(32))
        letter = Letter(1, ranks.cards[1]["nonce"], other.nbytes, other.arena.nonce)
        post(
            mine.name,
            seal(letter, b"secret", "job", 0, ranks.cards[0]["nonce"]),
            list(other.descriptors()),
        )
        await read_all(mine)
        assert mine.neighbours == {1: first}
        assert first.window.nonce != other.arena.nonce
        other.close()


async def test_a_rank_without_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with mailboxes() as (mine, theirs):

        def none() -> None:
            theirs._homeless = BackendUnavailable("no memory")

        monkeypatch.setattr(theirs, "_make_home", none)
        assert await mine.prove([1]) == set()
        with pytest.raises(BackendUnavailable, match="no memory"):
            await theirs.prove([0])


async def test_neighbours_that_are_not_mutual_are_let_go() -> None:
    async with mailboxes(3) as ranks:
        mine = ranks[0]
        assert await mine.prove([1, 2]) == {1, 2}
        lost = mine.neighbours[2]
        mine.keep({1})
        assert list(mine.neighbours) == [1]
        assert lost.loop_bell == lost.bulk_bell == -1
        assert await mine.prove([1, 2]) == {1}
        with pytest.raises(ConnectionRefusedError):
            post(mine.name, b"too late", [0])


async def test_a_line_comes_with_the_letter() -> None:
    async with mailboxes(3) as ranks:
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
    async with mailboxes() as (mine, theirs):
        assert await theirs.prove([0], linked=[0]) == {0}
        assert await mine.prove([1]) == {1}
        assert theirs._own_lines
        assert mine._their_lines


async def test_closing_wakes_who_waits() -> None:
    async with mailboxes(introduced=False) as ranks:
        ranks.introduce(0)
        proof = asyncio.ensure_future(ranks[0].prove([1]))
        await asyncio.wait([proof], timeout=0)
        ranks[0].close()
        assert await proof == set()


CHILD = """
import asyncio, sys
from aiodist.transport.mail import Mailbox

async def main():
    loop = asyncio.get_running_loop()
    mailbox = Mailbox(loop, 1, "job", b"secret", bytes.fromhex(sys.argv[1]), 1 << 20)
    print(mailbox.name.decode(), flush=True)
    name, nonce = sys.stdin.readline().split()
    mailbox.introduce({0: {"mail": name.encode(), "nonce": bytes.fromhex(nonce)}})
    print(await mailbox.prove([0]), mailbox.neighbours[0].pid, flush=True)
    mailbox.home.view[4096:4101] = b"hello"
    mailbox.neighbours[0].ring_loop()
    sys.stdin.readline()
    mailbox.close()

asyncio.run(main())
"""


async def test_two_processes() -> None:
    nonce = secrets.token_bytes(NONCE_BYTES)
    async with mailboxes(1) as ranks:
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
        assert mine.home is not None
        loop = asyncio.get_running_loop()
        loop.add_reader(mine.home.loop_bell, rung.set)
        await rung.wait()
        loop.remove_reader(mine.home.loop_bell)
        neighbour = mine.neighbours[1]
        assert neighbour.pid == child.pid
        assert bytes(neighbour.view[4096:4101]) == b"hello"
        child.kill()
        await child.wait()
        assert bytes(neighbour.view[4096:4101]) == b"hello", "what it published outlives it"
        neighbour.ring_loop()
