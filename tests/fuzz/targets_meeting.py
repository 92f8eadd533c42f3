"""Fuzzed: what ranks, members and agents leave for each other in a store, and the file that leads to one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack

from aiodist.backends.choice import BackendChoice
from aiodist.backends.nccl.engine import NcclEngine
from aiodist.backends.nccl.sharing import DeviceFacts
from aiodist.base.errors import AiodistError, RendezvousError, UsageError, WireError
from aiodist.group.epochs.cards import check_cards, read_cards, read_ranks
from aiodist.group.membership import messages as member_messages
from aiodist.group.membership.record import Record, decode_record
from aiodist.launch.nodes.admission import Answer, Card
from aiodist.launch.nodes.messages import Next
from aiodist.launch.nodes.roster import Member, Roster
from aiodist.launch.report import render
from aiodist.launch.verdict import Ending, NodeReport, judge
from aiodist.launch.worker.lines import LastWords, LineSplitter
from aiodist.net.wire.typed import read
from aiodist.rendezvous.file_store import _read
from aiodist.rendezvous.store_card import StoreCard
from tests.fuzz.engine import Judgement
from tests.fuzz.mutate import Mutator, framed, join, packed, raw, split, texts
from tests.fuzz.target import Run, Target

Parse = Callable[[bytes], object]


def plain(parse: Parse) -> Any:
    """A target of one function."""

    @contextmanager
    def opened() -> Iterator[Run]:
        def run(data: bytes) -> str:
            parse(data)
            return ""

        yield run

    return opened


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────────

CARD: dict[str, Any] = {
    "protocol": 2,
    "byteorder": "little",
    "host": "host-a",
    "pid": 4711,
    "agreed": {"AIODIST_EAGER": "1", "AIODIST_SEGMENT": "262144"},
    "endpoint": {
        "nonce": b"n" * 16,
        "tcp": ["127.0.0.1", 2345],
        "unix": b"u" * 40,
        "mail": b"m",
        "boot": "b",
    },
    "uid": b"12345678",
    "hosts": False,
    "seat": ["host", 0, 1],
    "backend": {
        "asked": "",
        "engines": {"cuda": "nccl"},
        "told": {"cuda": DeviceFacts("a GPU", 23203, splits=True, shares=True).to_json()},
    },
}


def cards() -> list[bytes]:
    """Cards of ranks that listen here and there, and of another version."""
    far = {**CARD, "endpoint": {"nonce": b"n" * 16, "tcp": ["::1", 1]}}
    return [
        msgpack.packb(card) for card in (CARD, far, {**CARD, "protocol": 3}, {"protocol": 1, "host": "b"})
    ]


def _cards(data: bytes) -> None:
    read_ = read_cards([msgpack.packb(CARD), data], CARD)
    check_cards(read_)
    card = read_[1]
    # What the world and the endpoint do with it, without asking.
    bytes(card["uid"]), bool(card["hosts"]), str(card["host"])
    BackendChoice(engines={"cuda": NcclEngine}, staged=True).common_to([CARD["backend"], card["backend"]])
    endpoint = card["endpoint"]
    host, port = endpoint["tcp"]
    if not (type(host) is str and type(port) is int and len(endpoint["nonce"]) == 16):
        raise Judgement(f"accepted {card}")
    b"\0" + endpoint.get("unix", b"") + endpoint.get("mail", b"")


def _ranks(data: bytes) -> None:
    [_, found] = read_ranks([msgpack.packb([1]), data])
    if not all(type(rank) is int for rank in found):
        raise Judgement(f"accepted {found}")


# ── members ──────────────────────────────────────────────────────────────────────────────────────────

RECORD = Record(3, (1, 2), (b"a" * 8, b"b" * 8), "127.0.0.1:2345", b"a" * 8)


def said() -> list[bytes]:
    """Every message of members."""
    M = member_messages  # noqa: N806
    return [
        M.encode(message)
        for message in (
            M.Ready(1, 2, True, 0, (b"a" * 8,)),
            M.Draft(1, RECORD),
            M.Dropped(1, (1, 2), (b"b" * 8,), "it did not come"),
            M.Decided(1, RECORD),
            M.Void(1, "too few", True),
            M.Prepare("epoch/4", (1, 2)),
            M.Promise("epoch/4", (1, 2), None),
            M.Promise("epoch/4", (1, 2), ((1, 0), b"value")),
            M.Accept("epoch/4", (1, 2), b"value"),
            M.Accepted("epoch/4", (1, 2), b"value"),
            M.Outbid("epoch/4", (2, 2)),
            M.Ask("agree/1"),
            M.Answer("agree/1", b"value"),
            M.Answer("agree/1", None),
            M.Leave(),
        )
    ]


def _member_message(data: bytes) -> None:
    message = member_messages.decode(data)
    if member_messages.decode(member_messages.encode(message)) != message:
        raise Judgement(f"{message} is another when it is passed on")


def _record(data: bytes) -> None:
    record = decode_record(data)
    if decode_record(record.encode()) != record:
        raise Judgement(f"{record} is another when it is passed on")


# ── agents ───────────────────────────────────────────────────────────────────────────────────────────

ENDING = Ending(1, 1, 0, "host-a", 4711, 1, 123456789, 15, False, "ValueError: no", ("Traceback", "no"))
REPORT = NodeReport(0, "host-a", (ENDING, Ending(0, 0, 0, "host-a", 4710, -9, 5)), 1, 0, (1,), "", ())
ROSTER = Roster((Member(0, "host-a", 2), Member(1, "host-b", 4, 1, 2)), 0, 0, 2, 2345, 2346)


def _report(data: bytes) -> None:
    report = NodeReport.from_json(data)
    render(judge([REPORT, report], 2), nnodes=2)
    if NodeReport.from_json(report.to_json()) != report:
        raise Judgement("a report is another when it is passed on")


def _roster(data: bytes) -> None:
    roster = Roster.from_json(data)
    roster.grown(Member(9, "host-c", 1))
    if roster.node_rank(0) is not None and roster.world_size != sum(m.nproc for m in roster.members):
        raise Judgement(f"accepted {roster}")


def _agents(data: bytes) -> None:
    """A byte in front says which of the smaller messages it is."""
    kind, rest = data[:1], data[1:]
    if kind == b"n":
        Next.from_json(rest).to_json()
    elif kind == b"c":
        card = Card.from_json(rest)
        Member(1, card.host, card.nproc, card.rank)
    elif kind == b"e":
        read(int, rest, "the job's exit code")
    else:
        Answer.from_json(rest)


def smaller() -> list[bytes]:
    """Those."""
    return [
        b"n" + Next(ROSTER, used=1).to_json(),
        b"n" + Next(signum=15).to_json(),
        b"c" + Card("host-a", 2, "2", None).to_json(),
        b"c" + Card("host-a", 2, "1:4", 1).to_json(),
        b"a" + json.dumps({"port": 2345, "attempt": 0}).encode(),
        b"a" + json.dumps({"error": "complete already"}).encode(),
        b"e0",
    ]


def after_first(inner: Mutator) -> Mutator:
    """Leave the first byte mostly as it is."""
    return lambda rng, data, corpus: data[:1] + inner(rng, data[1:], [one[1:] for one in corpus])


# ── a worker's output, and the rendezvous file ───────────────────────────────────────────────────────


def outputs() -> list[bytes]:
    """What a worker writes, in pieces."""
    trace = b'Traceback (most recent call last):\n  File "x.py", line 1\naiodist.PeerLost: lost rank 1\n'
    texts_ = [b"hello\nworld", b"\r 40%\r 50%\n", b"a\r\n", b"b\r", b"\n", trace, b"\xff\xfe\n", b"x" * 5000]
    return [join(texts_), join([trace, trace]), join([b"no end"]), join([bytes([c]) for c in trace])]


@contextmanager
def open_output() -> Iterator[Run]:
    def run(data: bytes) -> str:
        for in_place in (False, True):
            splitter, words = LineSplitter(in_place=in_place), LastWords()
            pieces = []
            for part in split(data):
                pieces += splitter.feed(part)
            pieces += splitter.finish()
            words.add(*(piece.text for piece in pieces))
            if any(b"\n" in piece.text or b"\r" in piece.text for piece in pieces):
                raise Judgement("a line with an end in it")
            words.excerpt()
            str(words.symptom(1))
        return ""

    yield run


def files() -> list[bytes]:
    """A rendezvous file."""
    found = {"host": "127.0.0.1", "port": 2345, "store": "ab" * 16, "pid": 4711, "on": "host-a"}
    return [json.dumps(found).encode(), b""]


@contextmanager
def open_file() -> Iterator[Run]:
    handle = os.memfd_create("rendezvous")

    def run(data: bytes) -> str:
        os.ftruncate(handle, 0)
        os.pwrite(handle, data, 0)
        found = _read(handle, Path("rendezvous"))
        if found is not None and not (type(found.host) is str and type(found.store) is str):
            raise Judgement(f"accepted {found}")
        return "" if found is not None else "empty"

    try:
        yield run
    finally:
        os.close(handle)


def _target(
    name: str,
    what: str,
    seeds: Callable[[], list[bytes]],
    parse: Parse,
    error: type[AiodistError] | tuple[type[AiodistError], ...],
    *mutators: Mutator,
) -> Target:
    errors = error if isinstance(error, tuple) else (error,)
    return Target(name, what, seeds, plain(parse), errors, mutators)


TARGETS = [
    _target("cards", "the cards of ranks", cards, _cards, RendezvousError, raw, packed, packed),
    _target(
        "local",
        "who shares memory with whom",
        lambda: [msgpack.packb([]), msgpack.packb([0, 5])],
        _ranks,
        RendezvousError,
        raw,
        packed,
    ),
    _target(
        "membership", "what members say of the next epoch", said, _member_message, WireError, raw, packed
    ),
    _target("record", "an epoch on record", lambda: [RECORD.encode()], _record, WireError, raw, packed),
    _target(
        "store-card",
        "who a store says that it is",
        lambda: [StoreCard(b"i" * 16, 3, True).encode()],
        StoreCard.decode,
        WireError,
        raw,
    ),
    _target("report", "a node's report", lambda: [REPORT.to_json()], _report, WireError, raw, texts, texts),
    _target("roster", "a job's roster", lambda: [ROSTER.to_json()], _roster, WireError, raw, texts, texts),
    _target(
        "agents",
        "the smaller messages between agents",
        smaller,
        _agents,
        WireError,
        raw,
        after_first(texts),
        after_first(texts),
    ),
    Target("output", "what workers write", outputs, open_output, (), (raw, framed(raw)), 0.3),
    Target("file", "the rendezvous file", files, open_file, (UsageError,), (raw, texts), 0.5),
]
