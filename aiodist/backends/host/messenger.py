"""The fast path of messages: small contiguous tensors, and bytes, by the engine's `messenger`.

As the engine's `starter` is for collectives. To check a call's arguments, make a request, and enter the
operation in flight takes longer than the message itself. What programs do again and again is the same call on
contiguous arrays of one shape, so what follows from dtype, shape, rank and tag is prepared here, once. All
checks are on. A receive that waits matches no message until it comes (`Messages.next_messages`), if it is
the only one with its tag; another one is posted, and entered in flight if it is still pending when the loop
turns. The other side may take the general path.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from aiodist import _engine
from aiodist.backends.base import Array, Numbers, Operation
from aiodist.backends.host.channels import Channels
from aiodist.backends.host.held_up import ANY
from aiodist.backends.host.messages import Messages
from aiodist.backends.work import GroupState, Work
from aiodist.base.operations import OBJECT_TAGS, Kind
from aiodist.base.types import AS, DTYPE_CODES, Call, message_signature
from aiodist.net.wire.frame import pack_eager
from aiodist.transport import EAGER_MESSAGE

_BYTE = np.dtype(np.uint8)
_AXES = 8  # most of a tensor, in the engine
_HOST = "cpu"  # where their tensors lie


def signature_of_bytes(nbytes: int, number: int) -> bytes:
    """The signature of a message of so many bytes."""
    return message_signature(_BYTE, nbytes, number)


class HostMessenger:
    """The fast path of one group's messages.

    Args:
        engine: the compiled one.
        inbox: of the group.
        channels, messages: of the group.
        submit: posts a receive.
        hold: posts one two turns of the loop later.
        issuer: what its Works have in common.
        numbers: of its operations.
        enter: enters a receive in flight.
        ended: called when a receive has ended (`Operation`).
        gone: global ranks that send nothing more: a receive that waits for one of them has to be ended.

    Attributes:
        send, recv, send_bytes, recv_bytes: the messenger's.
    """

    def __init__(
        self,
        engine: _engine.Compiled,
        inbox: _engine.Inbox,
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
        self._prepared = engine.PreparedMessage
        self._channels = channels
        self._messages = messages
        self._submit = submit
        self._hold = hold
        self._track = issuer.track
        self._enter = enter
        self._ended = ended
        self._senders: Sequence[int] = range(channels.size)
        self._posted: list[Operation] = []  # since the loop turned; most have ended
        self._will_note = False
        hub = channels.resources.hub
        memories = {} if hub is None else hub.memories
        near = [memories[rank].shared if rank in memories else None for rank in channels.ranks]
        messenger = engine.Messenger(
            *(inbox, messages, channels, issuer, numbers.counts, Work, self._prepare, self._prepare_bytes),
            *(self._hold_back, self._begin, gone, near),
        )
        self.send, self.recv = messenger.send, messenger.recv
        self.send_bytes, self.recv_bytes = messenger.send_bytes, messenger.recv_bytes

    def _begin(self, receive: _engine.Receive) -> None:
        """Post a receive like any other."""
        self._submit(self._posted_as(receive))

    def _hold_back(self, receive: _engine.Receive) -> None:
        """Post a receive two turns of the loop later."""
        self._hold(self._posted_as(receive))

    def _posted_as(self, receive: _engine.Receive) -> Operation:
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

    def _prepare(self, sends: bool, tensor: Array, peer: int, tag: int) -> _engine.PreparedMessage | None:
        """Prepare all calls that are like this one; None where they are no case for the engine."""
        dtype, shape = tensor.dtype, tensor.shape
        fits = (
            dtype in DTYPE_CODES
            and dtype.isnative
            and 0 < tensor.nbytes <= EAGER_MESSAGE
            and tensor.ndim <= _AXES
            and 0 <= tag < OBJECT_TAGS - 1
        )
        if not fits:
            return None
        call = Call(Kind.send if sends else Kind.recv, 0, dtype, shape, None, peer)
        return self._prepared_of(
            sends, call, peer, tag, tensor.nbytes, message_signature(dtype, tensor.size, 0)
        )

    def _prepare_bytes(self, sends: bool, peer: int, tag: int) -> _engine.PreparedMessage:
        """Prepare all messages of bytes, of any number, to or from a peer with a tag."""
        kind = Kind.send if sends else Kind.recv
        side = "" if peer == ANY else f"dst={peer}" if sends else f"src={peer}"
        call = Call(kind, 0, _BYTE, (0,), None, peer, 0, f"{AS}{kind.name}_object({side})")
        return self._prepared_of(sends, call, peer, tag, 0, bytes(32))

    def _prepared_of(
        self, sends: bool, call: Call, peer: int, tag: int, nbytes: int, signature: bytes
    ) -> _engine.PreparedMessage:
        channels = self._channels
        channel = channels.outgoing(peer) if sends else None if peer == ANY else channels.incoming(peer)
        header = pack_eager(channels.context, 1 + tag, 0, nbytes, signature)
        stream = (not sends, peer, tag, "")  # as `Numbers.counts` has it
        sealed = call.shape == (0,) or call.dtype in channels.resources.seals
        sort = self._track.sort_of(call, tag)
        return self._prepared(call, sort, channel, header, stream, peer, tag, sealed=sealed)
