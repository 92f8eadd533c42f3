"""What the fuzzers have found, each as the smallest input that shows it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest

from aiodist.backends.base import Operation
from aiodist.backends.host.held_up import ANY
from aiodist.backends.host.messages import Messages
from aiodist.base.errors import AiodistError, GroupBroken, RendezvousError, UsageError, WireError
from aiodist.base.types import Call, Kind
from aiodist.group.breakage import pack as pack_verdict
from aiodist.group.breakage import unpack as unpack_verdict
from aiodist.group.control import messages as control
from aiodist.group.control.messages import EVERYBODY, MAX_BYTES, Message, Say
from aiodist.group.membership import messages as member_messages
from aiodist.group.membership.record import decode_record
from aiodist.net.wire import bounded, messages, objects
from aiodist.net.wire.frame import Type, parse
from aiodist.net.wire.frame import pack as pack_frame
from aiodist.net.wire.messages import MAX_FRAME, Encoder, Status, encode_response, pack
from aiodist.rendezvous.client import TcpStore
from aiodist.rendezvous.file_store import _read
from aiodist.transport.base import Into, Key
from aiodist.transport.receiving import Incoming
from aiodist.transport.shm.arena import PAGE, Window, available
from tests.fuzz.hand_loop import HandLoop
from tests.fuzz.targets_control import CONTEXT, ERRORS, NEIGHBOUR, process
from tests.fuzz.targets_store import Asking, Serving, running
from tests.fuzz.targets_transport import CANCELLED, eager, open_receiver

# ── lengths that lie ─────────────────────────────────────────────────────────────────────────────────


def liar(nbytes: int) -> bytes:
    """Lists in lists, each of which claims to be as long as the message is."""
    header = (
        b"\xdc" + struct.pack(">H", nbytes - 1) if nbytes < 1 << 16 else b"\xdd" + struct.pack(">I", nbytes)
    )
    return (header * 1000)[:nbytes].ljust(nbytes, b"\xc0")


def peak(call: Callable[[], object]) -> int:
    """Bytes that a call takes at most."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        with pytest.raises(WireError):
            call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def _request(data: bytes) -> object:
    return messages.split_request(data)


def _object(data: bytes) -> object:
    return objects.decode(struct.pack("<BQ", objects.FORMAT, len(data)) + data)


@pytest.mark.parametrize("nbytes", [900, 1024, 1025, 60_000])
@pytest.mark.parametrize(
    "parse",
    [_request, messages.split_response, _object, control.decode, member_messages.decode, decode_record],
)
def test_lists_that_claim_more_than_there_is_take_no_memory(
    parse: Callable[[bytes], object], nbytes: int
) -> None:
    data = liar(nbytes)
    assert peak(lambda: parse(data)) < 4 << 20


@pytest.mark.parametrize("parse", [_request, messages.split_response, _object])
def test_nor_do_those_in_a_large_message(parse: Callable[[bytes], object]) -> None:
    data = liar(MAX_FRAME)
    assert peak(lambda: parse(data)) < 4 * MAX_FRAME


def test_an_array_of_a_million_axes_is_refused_at_once() -> None:
    shape = struct.pack("<BB", 0, 0) + b"\xff" * (8 << 20)
    structure = msgpack.packb(msgpack.ExtType(objects._Ext.array, shape))
    with pytest.raises(WireError, match="an array of 1048576 axes"):
        _object(structure)


# ── control messages that can be read and not be passed on ───────────────────────────────────────────


def _loose(say: Say, *values: Any) -> bytes:
    """A message with short floats, which are long when it is passed on."""
    packer = msgpack.Packer(use_single_float=True)
    packed: bytes = packer.pack((int(say), NEIGHBOUR, 1, EVERYBODY, 64, values))
    return packed


def test_short_floats_that_grow_when_they_are_passed_on() -> None:
    data = _loose(Say.broken, CONTEXT, "lost", (0.5,) * 12_000)
    assert len(data) < MAX_BYTES
    with pytest.raises(WireError, match="not a control message"):
        control.decode(data)
    loop = HandLoop()
    plane, group = process(loop)
    plane.received(NEIGHBOUR, data)  # used to raise, into the event loop
    assert NEIGHBOUR in plane.core.lost and group.broken is not None


@pytest.mark.parametrize("depth", [3, 600, 900, 1000, 1015])
def test_a_nest_that_is_too_deep_to_be_packed_or_shown(depth: int) -> None:
    head = msgpack.packb((CONTEXT, "broken"))[1:]
    body = b"\x93" + head + b"\x91" * depth + b"\xc0"
    data = b"\x96" + b"".join(msgpack.packb(x) for x in (int(Say.broken), 1, 1, EVERYBODY, 64)) + body
    with pytest.raises(WireError, match="not a control message"):
        control.decode(data)
    loop = HandLoop()
    plane, _ = process(loop)
    plane.received(NEIGHBOUR, data)
    assert NEIGHBOUR in plane.core.lost


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_honest_messages_still_pass(error: GroupBroken) -> None:
    message = Message(Say.broken, 1, 2, EVERYBODY, 64, (CONTEXT, *pack_verdict(error)))
    assert control.decode(message.encode()) == message


# ── a store's clients ────────────────────────────────────────────────────────────────────────────────


def ask(serving: Serving, who: int, id: int, method: str, *args: Any) -> None:
    """One request."""
    serving.take(bytes([who]) + Encoder().request(id, [], method, list(args))[4:])


def test_a_world_of_more_ranks_than_memory_has_room_for() -> None:
    serving = Serving()
    ask(serving, 0, 1, "gather", "here", 0, 1 << 40, b"card", 0.01)
    with running(serving.loop):
        serving.loop.advance(1.0)  # used to list who is missing
    serving.read()
    [(id, status, (kind, message, _, missing))] = serving.answers
    assert (id, status, kind, missing) == (1, Status.failure, "usage", [])
    assert "65536 can meet" in message


@pytest.mark.parametrize("method", ["wait", "multi_get", "gather"])
def test_a_failure_that_names_a_key_of_eight_mebibytes_fits_into_a_frame(method: str) -> None:
    name = "k" * (MAX_FRAME - 64)
    args = (name, 0, 2, b"", 0.01) if method == "gather" else ([name], 0.01)
    serving = Serving()
    ask(serving, 0, 1, method, *args)
    ask(serving, 1, 2, "wait", ["other"], 0.02)
    with running(serving.loop):
        serving.loop.advance(1.0)  # used to raise, and nobody's time was up any more
    serving.read()
    assert [(id, status) for id, status, _ in serving.answers] == [(1, Status.failure), (2, Status.failure)]
    said = "a store's keys have at most" if method == "gather" else "no process set 'kkk"
    assert serving.answers[0][2][1].startswith(said)
    serving.works()


# ── a store's answers ────────────────────────────────────────────────────────────────────────────────

BAD_FAILURES = [None, [], "timeout", [1, "m", "h", []], ["timeout", "m", "h", None], ["usage", b"m", "", []]]
BAD_NEWS = [None, 5, [5], [["key"]], [[b"key", b"v", 1]], [["key", "v", 1]], {"a": 1}]


def heard(status: Status, id: int, value: Any, call: Callable[[TcpStore], Any]) -> Any:
    """What becomes of a call when the store answers with this."""
    loop = HandLoop()
    with running(loop):
        asking = Asking()
        watch = asking.store.watch("k")
        asked = call(asking.store)
        asked.send(None)
        asking.hear(encode_response(id, status, pack(value)))
        try:
            asked.send(None)
        except StopIteration as end:
            return end.value
        except AiodistError as error:
            return error
        finally:
            asked.close()
            watch.end(None)


@pytest.mark.parametrize("value", BAD_FAILURES)
def test_a_failure_that_is_none_ends_in_an_error(value: Any) -> None:
    error = heard(Status.failure, 2, value, lambda store: store.get("key"))
    assert isinstance(error, RendezvousError) and "the store's failure says nothing" in str(error)


@pytest.mark.parametrize("status", [Status.closing, Status.away])
def test_a_goodbye_that_is_a_nest(status: Status) -> None:
    nest: Any = "x"
    for _ in range(500):  # packed at once; a thousand deep on the wire
        nest = [nest]
    value = b"\x91" * 500 + pack(nest)
    payload = b"\x93" + pack(0) + pack(int(status)) + value
    with running(HandLoop()):
        asking = Asking()
        assert asking.hear(struct.pack("<I", len(payload)) + payload) is None  # used to be a RecursionError
        asking.end()


@pytest.mark.parametrize("parse", [member_messages.decode, decode_record])
@pytest.mark.parametrize("depth", [990, 1000, 1015])
def test_a_nest_that_nobody_can_print(parse: Callable[[bytes], object], depth: int) -> None:
    with pytest.raises(WireError, match="not a"):
        parse(b"\x91" * depth + b"\xc0")
    with pytest.raises(WireError, match="not a verdict"):
        unpack_verdict("lost", bounded.unpack(b"\x91" * depth + b"\xc0", use_list=False))


@pytest.mark.parametrize("value", BAD_NEWS)
def test_news_that_are_none_end_in_an_error(value: Any) -> None:
    error = heard(Status.push, 1, value, lambda store: store.get("key"))
    assert isinstance(error, RendezvousError) and "the store's news say nothing" in str(error)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda store: store.get("k"), []),
        (lambda store: store.get("k"), None),
        (lambda store: store.get("k"), ["text"]),
        (lambda store: store.multi_get(["k", "l"]), [b"one"]),
        (lambda store: store.add("k", 1), "5"),
        (lambda store: store.add("k", 1), True),
        (lambda store: store.compare_set("k", b"", b""), 1 << 40),  # bytes of it are a TiB
        (lambda store: store.check(["k"]), 1),
        (lambda store: store.list_keys(), "keys"),
        (lambda store: store.num_keys(), None),
        (lambda store: store.gather("g", 2, 0, b""), [b"one"]),
        (lambda store: store.set("k", b""), b"no"),
    ],
)
def test_an_answer_that_cannot_be_one_ends_in_an_error(call: Callable[[TcpStore], Any], value: Any) -> None:
    error = heard(Status.reply, 2, value, call)
    assert isinstance(error, RendezvousError) and "cannot be its answer" in str(error)


def test_good_answers_are_handed_on() -> None:
    assert heard(Status.reply, 2, [b"v"], lambda store: store.get("k")) == b"v"
    assert heard(Status.reply, 2, b"v", lambda store: store.compare_set("k", b"", b"v")) == b"v"
    assert heard(Status.reply, 2, [b"a", b"b"], lambda store: store.gather("g", 2, 0, b"a")) == [b"a", b"b"]
    error = heard(Status.failure, 2, ["usage", "no", "hint", []], lambda store: store.get("k"))
    assert isinstance(error, UsageError) and error.hint == "hint"


# ── data links ───────────────────────────────────────────────────────────────────────────────────────


def test_a_sender_that_keeps_to_no_budget() -> None:
    receiver = Incoming(1, lambda *_: None, lambda *_: None, eager_budget=10_000)
    one = parse(pack_frame(Type.EAGER, 7, 0, 0, 0, nbytes=4900, total=4900))
    for seq in range(2):
        receiver.received(one._replace(seq=seq), memoryview(bytes(4900)))
    with pytest.raises(WireError, match="more than 10000 bytes were sent before they were asked for"):
        receiver.received(one._replace(seq=2), memoryview(bytes(4900)))
    receiver.received(one._replace(context=8), memoryview(bytes(4900)))  # another group has its own
    # What was asked for makes room.
    assert receiver.recv(Key(7, 0, 0, 0), 4900, Into(memoryview(bytearray(4900))), lambda: None)
    receiver.received(one._replace(seq=2), memoryview(bytes(4900)))
    receiver.retire(7)
    assert not receiver._kept.get(7) and len(receiver._stored) == 1


@pytest.mark.skipif(not available(), reason="needs sealed memory")
def test_an_arena_that_ends_in_the_middle_of_a_page() -> None:
    fd = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 2 * PAGE + 5)  # its words could not be counted
        fcntl.fcntl(fd, 1033, 0x17)  # F_ADD_SEALS: as an arena has them
        with pytest.raises(WireError, match="an arena of"):
            Window(fd, 2 * PAGE + 5)
    finally:
        os.close(fd)


# ── others ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_rendezvous_file_that_is_a_nest(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"[" * 100_000)
    with path.open("rb") as file, pytest.raises(UsageError, match="holds something else"):
        _read(file.fileno(), path)


def test_a_message_that_is_offered_with_more_bytes_than_there_are() -> None:
    failed: list[Exception] = []
    backend: Any = SimpleNamespace(rank=0, size=2, context=7, failed=failed.append, crowded=set())
    matching = Messages(backend)
    call = Call(Kind.recv, 0, np.dtype(np.uint8), (0,))
    work: Any = SimpleNamespace(_taken_back_by=lambda give_up, receive: None)
    matching.recv(Operation(call, work, None, None, None, lambda _: None, peer=ANY, tag=5))
    matching.arrived(1, 5, 0, call.signature, 1 << 47)
    assert [isinstance(error, MemoryError) for error in failed] == [True]


def test_the_loop_is_nobodys_afterwards() -> None:
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_what_comes_late_in_a_cancelled_context_is_not_received() -> None:
    """The target's own mistake: it took that for a message that is lost."""
    with open_receiver() as run:
        assert run(eager(Key(CANCELLED, 0, 0, 0), b"late") + pack_frame(Type.GOODBYE)) == ""
