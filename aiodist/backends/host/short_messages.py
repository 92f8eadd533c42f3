"""The short way of messages: small contiguous tensors, without anything that they do not need.

As `local.short` is for collectives. What checks a call's arguments, makes a request, and enters the operation
in flight takes longer than the message itself. What loops do again and again is the same call on contiguous
arrays of one shape, so what follows from dtype, shape, rank and tag is kept. All checks are on, and a receive
that is still pending when the loop turns is entered in flight then. The other side may go the long way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from aiodist.backends.base import Array, Numbers, Operation, as_bytes, flat
from aiodist.backends.host.channels import Channels
from aiodist.roles import Kind
from aiodist.transport import EAGER_MESSAGE, Key, Outgoing
from aiodist.types import DTYPE_CODES, OBJECT_TAGS, Call, message_signature
from aiodist.work import Issuer, Work

_SHAPES = 256  # that are remembered
_BYTE = np.dtype(np.uint8)
_HOST = "cpu"  # where their tensors lie


class Case(NamedTuple):
    """The form that calls of one dtype, shape, rank and tag take.

    Attributes:
        call: but for its number.
        channel: of a send.
        stream: of its key.
        items: elements.
    """

    call: Call
    channel: Outgoing | None
    stream: int
    items: int


_NEW: Any = object()


class ShortMessages:
    """The short way of one group's messages.

    Args:
        channels: of the group.
        submit: starts a receive.
        issuer: what its Works have in common.
        numbers: of its operations.
        enter: enters a receive in flight.
        ended: called when a receive has ended (`Operation`).
    """

    def __init__(
        self,
        channels: Channels,
        submit: Callable[[Operation], None],
        issuer: Issuer,
        numbers: Numbers,
        enter: Callable[[Operation], None],
        ended: Callable[[Operation], None],
    ) -> None:
        self._channels = channels
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
        channel = case.channel
        assert channel is not None
        if not channel.takes(self._context, tensor.nbytes):
            return None
        number = self._numbers.next_message(Kind.send, dst, tag)
        key = Key(self._context, case.stream, number, 0)
        signature = message_signature(tensor.dtype, case.items, number)
        channel.send(key, signature, as_bytes(flat(tensor)), _never)
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
        ended, senders = self._ended, self._senders
        operation = Operation(case.call, work, None, tensor, None, ended, src, tag, senders, place=_HOST)
        self._begin(operation)
        return work

    def send_bytes(self, data: Array, dst: int, tag: int, held: bool) -> Work[None] | None:
        """Send bytes that are checked: an array of one axis, which the caller does not change."""
        channel, nbytes = self._channels.outgoing(dst), data.size
        small = nbytes <= EAGER_MESSAGE and channel.takes(self._context, nbytes)
        if not small or not self._issuer.here():
            return None
        number = self._numbers.next_message(Kind.send, dst, tag)
        key = Key(self._context, 1 + tag, number, 0)
        channel.send(key, message_signature(_BYTE, nbytes, number), data.data, _never, sealed=True)
        work: Work[None] = Work(self._issuer, Call(Kind.send, number, _BYTE, (nbytes,), None, dst), held)
        work._finish(None)
        return work

    def recv_bytes(self, src: int, tag: int, held: bool, convert: Callable[[Any], Any]) -> Work[Any] | None:
        """Post a receive of bytes, of any number; `convert` makes the result of (sender, array)."""
        if not self._issuer.here():
            return None
        number = self._numbers.next_message(Kind.recv, src, tag)
        call = Call(Kind.recv, number, _BYTE, (0,), None, src)
        work: Work[Any] = Work(self._issuer, call, held)
        ended = self._ended
        self._begin(Operation(call, work, None, None, None, ended, src, tag, convert=convert))
        return work

    def _begin(self, operation: Operation) -> None:
        """Post a receive."""
        if not self._posted:
            self._channels.loop.call_soon(self.note_all)
        self._posted.append(operation)  # before it begins: its message may break the group right there
        self._submit(operation)

    def note_all(self) -> None:
        """Enter in flight what is pending."""
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
            channel = channels.outgoing(peer) if kind is Kind.send else None
            case = Case(call, channel, 1 + tag, tensor.size)
        if len(cases) >= _SHAPES:
            cases.clear()
        cases[dtype, shape, peer, tag] = case
        return case


def _never() -> None:
    raise AssertionError("a message that leaves at once does not end later")
