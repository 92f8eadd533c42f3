"""The fast path of messages: small contiguous tensors, without anything that they do not need.

As the engine's `starter` is for collectives. To check a call's arguments, make a request, and enter the
operation in flight takes longer than the message itself. What loops do again and again is the same call on
contiguous arrays of one shape, so what follows from dtype, shape, rank and tag is kept, with the header of
its frame. All checks are on. A receive that waits matches no message until it comes (`next_messages`), if it
is the only one with its tag; another one is posted, and entered in flight if it is still pending when the
loop turns. The other side may take the general path.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from sys import _getframe
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from aiodist.backends.base import Array, Numbers, Operation, contents
from aiodist.backends.host.channels import Channels
from aiodist.backends.host.held_up import ANY
from aiodist.backends.host.messages import Messages
from aiodist.backends.host.next_message import NextMessage
from aiodist.backends.work import GroupState, Work
from aiodist.base.operations import OBJECT_TAGS, Kind
from aiodist.base.types import AS, DTYPE_CODES, NUMBER_AT, Call, message_signature
from aiodist.net.wire.frame import SEQ_AT, SIGNATURE_AT, pack_eager
from aiodist.observe.recorder import CallSite
from aiodist.transport import EAGER_MESSAGE, Incoming, Outgoing

_SHAPES = 256  # that are remembered
_BYTE = np.dtype(np.uint8)
_HOST = "cpu"  # where their tensors lie
_put_number = struct.Struct("<Q").pack_into


class Header:
    """The header of the EAGER frame of messages that are alike, but for their numbers.

    Args:
        context: of the group.
        tag, dtype, count: of the messages.
    """

    __slots__ = ("_bytes",)

    def __init__(self, context: int, tag: int, dtype: np.dtype[Any], count: int) -> None:
        signature = message_signature(dtype, count, 0)
        self._bytes = bytearray(pack_eager(context, 1 + tag, 0, count * dtype.itemsize, signature))

    def numbered(self, number: int) -> bytes:
        """The header of message `number`."""
        header = self._bytes
        _put_number(header, SEQ_AT, number)
        _put_number(header, SIGNATURE_AT + NUMBER_AT, number)
        return bytes(header)


class CallTemplate(NamedTuple):
    """The form that calls of one dtype, shape, rank and tag take.

    Attributes:
        call: but for its number.
        header: of the messages.
        outgoing, incoming: the channel that they go over.
        nbytes: of a message.
        sort: in the recorder.
        sealed: whether its bytes have to be authenticated.
    """

    call: Call
    header: Header
    outgoing: Outgoing | None
    incoming: Incoming | None
    nbytes: int
    sort: CallSite
    sealed: bool


_NEW: Any = object()
_SEND, _RECV = Kind.send, Kind.recv


class FastMessages:
    """The fast path of one group's messages.

    Args:
        channels, messages: of the group.
        submit: posts a receive.
        hold: posts one two turns of the loop later.
        issuer: what its Works have in common.
        numbers: of its operations.
        enter: enters a receive in flight.
        ended: called when a receive has ended (`Operation`).
        gone: global ranks that send nothing more: a receive that waits for one of them has to be ended.
    """

    def __init__(
        self,
        channels: Channels,
        messages: Messages,
        submit: Callable[[Operation], None],
        hold: Callable[[Operation], None],
        issuer: GroupState,
        numbers: Numbers,
        enter: Callable[[Operation], None],
        ended: Callable[[Operation], None],
        gone: Collection[int],
    ) -> None:
        self._channels = channels
        self._messages = messages
        self._poller = channels.resources.poller
        self._submit = submit
        self._hold = hold
        self._issuer = issuer
        self._track, self._keep = issuer.track, issuer.track.keep
        self._calls: dict[tuple[Kind, int, int], tuple[Call, CallSite]] = {}  # of messages of bytes
        self._numbers = numbers
        self._enter = enter
        self._ended = ended
        self._gone = gone
        self._post = self._begin  # bound once
        self._context = channels.context
        self._senders: Sequence[int] = range(channels.size)
        self._sends: dict[Any, CallTemplate | None] = {}
        self._receives: dict[Any, CallTemplate | None] = {}
        self._posted: list[Operation] = []  # since the loop turned; most have ended
        self._will_note = False

    def send(self, tensor: Any, dst: Any, tag: Any, held: bool) -> Work[None] | None:
        """Send a tensor, if it is a case for this and can leave at once; else None, and nothing has happened.

        Args:
            tensor, dst, tag: as the caller passed them, unchecked.
            held: the caller passed `async_op=True`.
        """
        if type(tensor) is not np.ndarray or type(dst) is not int or type(tag) is not int:
            return None  # before it is asked anything
        case = self._sends.get((tensor.dtype, tensor.shape, dst, tag), _NEW)
        if case is _NEW:
            case = self._found(self._sends, _SEND, tensor, dst, tag)
        if case is None or not tensor.flags.c_contiguous or not self._issuer.here():
            return None
        channel = case.outgoing
        assert channel is not None
        if not channel.takes(self._context, case.nbytes):
            return None
        number = self._numbers.next_message(_SEND, dst, tag)
        self._messages.sent[dst] += 1
        issued = monotonic()  # before the receiver notes its end; the rest costs no time while it is awaited
        channel.send_eager(case.header.numbered(number), self._context, contents(tensor), case.sealed)
        frame, sort = _getframe(2), case.sort  # as `Track.note`, written out
        known = frame.f_code is sort.code and frame.f_lasti == sort.at
        noted = (sort, number, sort.line if known else self._track.line_of(sort, frame), issued)
        self._keep(noted)
        work: Work[None] = Work(self._issuer, case.call, held, None, None, number, noted)
        work._finish(None)
        return work

    def recv(self, tensor: Any, src: Any, tag: Any, held: bool) -> Work[int] | None:
        """Post a receive, likewise."""
        if type(tensor) is not np.ndarray or type(src) is not int or type(tag) is not int:
            return None
        case = self._receives.get((tensor.dtype, tensor.shape, src, tag), _NEW)
        if case is _NEW:
            case = self._found(self._receives, _RECV, tensor, src, tag)
        if case is None or not tensor.flags.carray or not self._issuer.here():
            return None
        number = self._numbers.next_message(_RECV, src, tag)
        frame, sort = _getframe(2), case.sort  # as in `send`
        known = frame.f_code is sort.code and frame.f_lasti == sort.at
        noted = (sort, number, sort.line if known else self._track.line_of(sort, frame), monotonic())
        self._keep(noted)
        work: Work[int] = Work(self._issuer, case.call, held, None, None, number, noted)
        self._wait(NextMessage(work, src, tag, tensor, None, self._post), case.incoming)
        return work

    def send_bytes(self, data: bytes, dst: int, tag: int, held: bool) -> Work[None] | None:
        """Send bytes; what else the caller passes is checked."""
        channel, nbytes = self._channels.outgoing(dst), len(data)
        small = nbytes <= EAGER_MESSAGE and channel.takes(self._context, nbytes)
        if not small or not self._issuer.here():
            return None
        number = self._numbers.next_message(_SEND, dst, tag)
        self._messages.sent[dst] += 1
        signature = message_signature(_BYTE, nbytes, number)
        header = pack_eager(self._context, 1 + tag, number, nbytes, signature)
        call, sort = self._of_bytes(_SEND, dst, tag)
        issued = monotonic()  # as in `send`
        channel.send_eager(header, self._context, memoryview(data), sealed=True)
        noted = self._track.note(sort, number, _getframe(2), issued)
        work: Work[None] = Work(self._issuer, call, held, None, None, number, noted)
        work._finish(None)
        return work

    def recv_bytes(self, src: int, tag: int, held: bool, convert: Callable[[Any], Any]) -> Work[Any] | None:
        """Post a receive of bytes, of any number; `convert` makes the result of (sender, array)."""
        if not self._issuer.here():
            return None
        number = self._numbers.next_message(_RECV, src, tag)
        call, sort = self._of_bytes(_RECV, src, tag)
        noted = self._track.note(sort, number, _getframe(2))
        work: Work[Any] = Work(self._issuer, call, held, None, None, number, noted)
        channel = None if src == ANY else self._channels.incoming(src)
        self._wait(NextMessage(work, src, tag, None, convert, self._post), channel)
        return work

    def _wait(self, receive: NextMessage, channel: Incoming | None) -> None:
        """Have a receive get its message: the one that is here, or the next.

        Args:
            channel: from its source, where it has one.
        """
        work, messages = receive.work, self._messages
        if messages.held_up.is_behind(work, receive.tag, receive.source):
            self._hold(self._posted_as(receive))
        elif messages.nothing_waits(receive.tag) and not (self._gone or self._channels.crowded):
            work._taken_back_by(messages.abandon, receive)
            if channel is not None and self._poller.polls and receive.source != self._channels.rank:
                receive.poller, receive.channel = self._poller, channel
                work._driven_by(receive)
            messages.wait(receive)
        elif messages.receive_here(receive):
            work._taken_back_by(messages.abandon, receive)
        else:
            self._begin(receive)

    def _begin(self, receive: NextMessage) -> None:
        """Post a receive like any other."""
        self._submit(self._posted_as(receive))

    def _posted_as(self, receive: NextMessage) -> Operation:
        """The operation as which a receive is posted, which is entered in flight when the loop turns."""
        self._note_soon()
        work, target = receive.work, receive.target
        senders, place = (self._senders, _HOST) if target is not None else ((), "")
        receive.operation = operation = Operation(
            *(work.call, work, None, target, None, self._ended, receive.source, receive.tag, senders),
            place=place,
            convert=receive.convert,
        )
        self._posted.append(operation)  # before it begins: its message may break the group right there
        return operation

    def _note_soon(self) -> None:
        if not self._will_note:
            self._will_note = True
            self._channels.loop.call_soon(self._note)

    def note_all(self) -> None:
        """Enter in flight what is pending."""
        self._messages.post_waiting()
        self._note()

    def _note(self) -> None:
        self._will_note = False
        posted, self._posted = self._posted, []
        for operation in posted:
            if not operation.work.done():
                self._enter(operation)

    def _found(
        self, cases: dict[Any, CallTemplate | None], kind: Kind, tensor: Array, peer: int, tag: int
    ) -> CallTemplate | None:
        """The case of a call that is new; remembered, also where there is none."""
        dtype, shape, channels = tensor.dtype, tensor.shape, self._channels
        fits = (
            dtype in DTYPE_CODES
            and dtype.isnative
            and 0 < tensor.nbytes <= EAGER_MESSAGE
            and 0 <= peer < channels.size
            and 0 <= tag < OBJECT_TAGS - 1
        )
        case = None
        if fits:
            call = Call(kind, 0, dtype, shape, None, peer)
            header = Header(self._context, tag, dtype, tensor.size)
            sends = kind is _SEND
            outgoing = channels.outgoing(peer) if sends else None
            incoming, sort = None if sends else channels.incoming(peer), self._track.sort_of(call, tag)
            sealed = dtype in channels.resources.seals
            case = CallTemplate(call, header, outgoing, incoming, tensor.nbytes, sort, sealed)
        if len(cases) >= _SHAPES:
            cases.clear()
        cases[dtype, shape, peer, tag] = case
        return case

    def _of_bytes(self, kind: Kind, peer: int, tag: int) -> tuple[Call, CallSite]:
        """The call of a message of any number of bytes, but for its number, and its sort."""
        found = self._calls.get((kind, peer, tag))
        if found is None:
            if len(self._calls) >= _SHAPES:
                self._calls.clear()
            side = "" if peer == ANY else f"dst={peer}" if kind is _SEND else f"src={peer}"
            call = Call(kind, 0, _BYTE, (0,), None, peer, 0, f"{AS}{kind.name}_object({side})")
            found = self._calls[kind, peer, tag] = call, self._track.sort_of(call, tag)
        return found
