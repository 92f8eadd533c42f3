"""The short way of messages: small contiguous tensors, without anything that they do not need.

As `local.short` is for collectives. What checks a call's arguments, makes a request, and enters the operation
in flight takes longer than the message itself. What loops do again and again is the same call on contiguous
arrays of one shape, so what follows from dtype, shape, rank and tag is kept, with the header of its frame.
All checks are on, and a receive that is still pending when the loop turns is entered in flight then. The
other side may go the long way.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from aiodist.backends.base import Array, Numbers, Operation, complete, contents
from aiodist.backends.host.channels import Channels
from aiodist.backends.host.looking import Looking, hand_back
from aiodist.backends.host.messages import ANY, Messages
from aiodist.roles import Kind
from aiodist.transport import EAGER_MESSAGE, Incoming, Outgoing
from aiodist.types import DTYPE_CODES, NUMBER_AT, OBJECT_TAGS, Call, message_signature
from aiodist.wire.frame import SEQ_AT, SIGNATURE_AT, Type, pack
from aiodist.work import Issuer, Work

_SHAPES = 256  # that are remembered
_BYTE = np.dtype(np.uint8)
_HOST = "cpu"  # where their tensors lie
_EAGER = int(Type.EAGER)
_put_number = struct.Struct("<Q").pack_into


class Header:
    """The header of the EAGER frame of messages that are alike, but for their numbers.

    Args:
        context: of the group.
        tag, dtype, count: of the messages.
    """

    __slots__ = ("_bytes",)

    def __init__(self, context: int, tag: int, dtype: np.dtype[Any], count: int) -> None:
        nbytes, signature = count * dtype.itemsize, message_signature(dtype, count, 0)
        self._bytes = bytearray(
            pack(Type.EAGER, context, 1 + tag, nbytes=nbytes, total=nbytes, signature=signature)
        )

    def numbered(self, number: int) -> bytes:
        """The header of message `number`."""
        header = self._bytes
        _put_number(header, SEQ_AT, number)
        _put_number(header, SIGNATURE_AT + NUMBER_AT, number)
        return bytes(header)


class Case(NamedTuple):
    """The form that calls of one dtype, shape, rank and tag take.

    Attributes:
        call: but for its number.
        header: of the messages.
        outgoing, incoming: the channel that they go over.
        nbytes: of a message.
    """

    call: Call
    header: Header
    outgoing: Outgoing | None
    incoming: Incoming | None
    nbytes: int


_NEW: Any = object()


class ShortMessages:
    """The short way of one group's messages.

    Args:
        channels, messages: of the group.
        submit: starts a receive.
        issuer: what its Works have in common.
        numbers: of its operations.
        enter: enters a receive in flight.
        ended: called when a receive has ended (`Operation`).
    """

    def __init__(
        self,
        channels: Channels,
        messages: Messages,
        submit: Callable[[Operation], None],
        issuer: Issuer,
        numbers: Numbers,
        enter: Callable[[Operation], None],
        ended: Callable[[Operation], None],
    ) -> None:
        self._channels = channels
        self._messages = messages
        self._poller = channels.resources.poller
        self._submit = submit
        self._issuer = issuer
        self._numbers = numbers
        self._enter = enter
        self._ended = ended
        self._context = channels.context
        self._senders: Sequence[int] = range(channels.size)
        self._sends: dict[Any, Case | None] = {}
        self._receives: dict[Any, Case | None] = {}
        self._posted: list[Operation] = []  # since the loop turned; most have ended
        self._will_note = False
        self._looking: Looking | None = None  # the latest

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
            case = self._found(self._sends, Kind.send, tensor, dst, tag)
        if case is None or not tensor.flags.c_contiguous or not self._issuer.here():
            return None
        channel = case.outgoing
        assert channel is not None
        if not channel.takes(self._context, case.nbytes):
            return None
        number = self._numbers.next_message(Kind.send, dst, tag)
        channel.send_eager(case.header.numbered(number), self._context, contents(tensor))
        work: Work[None] = Work(self._issuer, case.call, held, None, None, number)
        work._finish(None)
        return work

    def recv(self, tensor: Any, src: Any, tag: Any, held: bool) -> Work[int] | None:
        """Post a receive, likewise."""
        if type(tensor) is not np.ndarray or type(src) is not int or type(tag) is not int:
            return None
        case = self._receives.get((tensor.dtype, tensor.shape, src, tag), _NEW)
        if case is _NEW:
            case = self._found(self._receives, Kind.recv, tensor, src, tag)
        if case is None or not tensor.flags.carray or not self._issuer.here():
            return None
        number = self._numbers.next_message(Kind.recv, src, tag)
        work: Work[int] = Work(self._issuer, case.call, held, None, None, number)
        channel, messages = case.incoming, self._messages
        assert channel is not None
        messages.settle()
        quiet, here = messages.quiet(tag), None
        if not quiet:
            fits = partial(_of_items, tensor.dtype, tensor.size, tensor.nbytes)
            here = messages.take_here(src, tag, fits)
        if here is not None:
            contents(tensor)[:] = here.data
            work._taken_back_by(partial(hand_back, messages, here.source, tag, here.number, tensor, True))
            work._finish(src)
            return work
        if held or not (quiet and self._may_look(channel)):
            self._begin(self._operation_on(tensor, case.call, src, tag, work))
            return work
        following = messages.next(src, tag)
        self._looking = Looking(
            *(messages, self._poller, channel, self._context, src, tag, following),
            *(case.header.numbered(following), work, tensor, None),
            lambda: self._operation_on(tensor, case.call, src, tag, work),
            self._begin,
        )
        self._note_soon()
        return work

    def _operation_on(self, tensor: Array, call: Call, src: int, tag: int, work: Work[int]) -> Operation:
        ended, senders = self._ended, self._senders
        return Operation(call, work, None, tensor, None, ended, src, tag, senders, place=_HOST)

    def send_bytes(self, data: Array, dst: int, tag: int, held: bool) -> Work[None] | None:
        """Send bytes that are checked: an array of one axis, which the caller does not change."""
        channel, nbytes = self._channels.outgoing(dst), data.size
        small = nbytes <= EAGER_MESSAGE and channel.takes(self._context, nbytes)
        if not small or not self._issuer.here():
            return None
        number = self._numbers.next_message(Kind.send, dst, tag)
        signature = message_signature(_BYTE, nbytes, number)
        key = self._context, 1 + tag, number, 0
        header = pack(_EAGER, *key, nbytes=nbytes, total=nbytes, signature=signature)
        channel.send_eager(header, self._context, data.data, sealed=True)
        work: Work[None] = Work(self._issuer, _of_bytes(Kind.send, dst), held, None, None, number)
        work._finish(None)
        return work

    def recv_bytes(self, src: int, tag: int, held: bool, convert: Callable[[Any], Any]) -> Work[Any] | None:
        """Post a receive of bytes, of any number; `convert` makes the result of (sender, array)."""
        if not self._issuer.here():
            return None
        number = self._numbers.next_message(Kind.recv, src, tag)
        work: Work[Any] = Work(self._issuer, _of_bytes(Kind.recv, src), held, None, None, number)
        messages = self._messages
        messages.settle()
        quiet = messages.quiet(tag)
        here = None if quiet else messages.take_here(src, tag, _of_size)
        if here is not None:
            place = np.frombuffer(bytearray(here.data), np.uint8)
            work._taken_back_by(partial(hand_back, messages, here.source, tag, here.number, place, False))
            complete(work, (here.source, place), convert)
            return work

        def operation() -> Operation:
            return Operation(work.call, work, None, None, None, self._ended, src, tag, convert=convert)

        if held or src == ANY or not quiet or not self._may_look(self._channels.incoming(src)):
            self._begin(operation())
            return work
        channel, following = self._channels.incoming(src), messages.next(src, tag)
        header = pack(_EAGER, self._context, 1 + tag, following)
        self._looking = Looking(
            *(messages, self._poller, channel, self._context, src, tag, following, header),
            *(work, None, convert, operation, self._begin),
        )
        self._note_soon()
        return work

    def _may_look(self, channel: Incoming) -> bool:
        """Whether a receive may look for its message first, where its tag is quiet."""
        return self._poller.polls and channel.peeks()

    def _begin(self, operation: Operation) -> None:
        """Post a receive."""
        self._note_soon()
        self._posted.append(operation)  # before it begins: its message may break the group right there
        self._submit(operation)

    def _note_soon(self) -> None:
        if not self._will_note:
            self._will_note = True
            self._channels.loop.call_soon(self._note)

    def _note(self) -> None:
        self._will_note = False
        if self._looking is not None and self._looking.polled:
            self._note_soon()  # it is posted when its await stops polling
            self._note_posted()
        else:
            self.note_all()

    def note_all(self) -> None:
        """Enter in flight what is pending."""
        self._looking = None
        self._messages.settle()
        self._note_posted()

    def _note_posted(self) -> None:
        posted, self._posted = self._posted, []
        for operation in posted:
            if not operation.work.done():
                self._enter(operation)

    def _found(
        self, cases: dict[Any, Case | None], kind: Kind, tensor: Array, peer: int, tag: int
    ) -> Case | None:
        """The case of a call that is new; remembered, also where there is none."""
        dtype, shape, channels = tensor.dtype, tensor.shape, self._channels
        fits = (
            dtype in DTYPE_CODES
            and dtype.isnative
            and 0 < tensor.nbytes <= EAGER_MESSAGE
            and 0 <= peer < channels.size
            and peer != channels.rank
            and 0 <= tag < OBJECT_TAGS - 1
        )
        case = None
        if fits:
            call = Call(kind, 0, dtype, shape, None, peer)
            header = Header(self._context, tag, dtype, tensor.size)
            sends = kind is Kind.send
            outgoing = channels.outgoing(peer) if sends else None
            case = Case(call, header, outgoing, None if sends else channels.incoming(peer), tensor.nbytes)
        if len(cases) >= _SHAPES:
            cases.clear()
        cases[dtype, shape, peer, tag] = case
        return case


@lru_cache(256)
def _of_bytes(kind: Kind, peer: int) -> Call:
    """The call of a message of any number of bytes, but for its number."""
    return Call(kind, 0, _BYTE, (0,), None, peer)


def _of_size(nbytes: int, number: int) -> bytes:
    """The signature of a message of bytes."""
    return message_signature(_BYTE, nbytes, number)


def _of_items(dtype: np.dtype[Any], items: int, expected: int, nbytes: int, number: int) -> bytes:
    """The signature of a message of so many items; nothing where it has another size than is expected."""
    return message_signature(dtype, items, number) if nbytes == expected else b""
