"""Point-to-point matching: by source and tag in order, or from any source.

Message k from a to b with a tag is the k-th send there and the k-th receive here. A receive from a known
source is matched with its number when it is posted, so that its memory is ready before the message comes. A
receive from any source, or of any size, can match only what has arrived; what is posted behind it waits
in its queue, so that among receives which could take a message the first posted gets it.

A receive whose await is cancelled is taken back, whatever its message is doing: see `matches`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from aiodist import _engine
from aiodist.backends.base import Array, Decoding, Operation, as_bytes, flat
from aiodist.backends.buffers import buffers
from aiodist.backends.host.channels import Channels
from aiodist.backends.host.copies import TensorCopy
from aiodist.backends.host.held_up import ANY, HeldUp
from aiodist.backends.host.matches import Decoded, Match, Matches, move_up
from aiodist.base.errors import PeerClosed, PeerLost, WireError
from aiodist.base.types import agree, message_signature
from aiodist.observe.recorder.layout import FIRST
from aiodist.transport import Handled, Incoming, Into, Key

_NOTHING: Mapping[tuple[int, int], Arrival] = {}
_NO, _NOW, _KEPT = map(int, Handled)
_NO_PLACE = np.empty(0, np.uint8)
_SURE = 6  # turns of the loop after which no cancel is on its way to a receive any more


class Arrival(NamedTuple):
    """A message that came, or was offered, before a receive matched it. `order` counts them.

    Args:
        data: its bytes, where they are here and not in the channel.
    """

    order: int
    source: int
    number: int
    signature: bytes
    nbytes: int
    data: bytes | None = None


class Messages:
    """The point-to-point side of one group on one rank. Ranks are group ranks.

    Args:
        channels: of the group.
        seals: dtypes whose messages have to be authenticated, as objects have.

    Attributes:
        sent: to each member, the number of messages, on the fast path or here.
        heard: of each member, the number of messages that came or were offered.
        arrivals: by tag, what came before a receive matched it, by source and number.
        next_messages: by tag, in the order in which they were begun: the receive that gets the next message
            of its source, and is the only one of its tag. It has matched none yet, and is posted as soon as
            anything else happens to its tag. The engine looks here, too, and at what follows.
        queues: by tag, receives that wait for an arrival.
        numbers: by source and tag, of the message that is matched next.
        unowned_counts: of the matches.
        awaited: by member, how many messages are waited for, and what is done then.
        dead: no progress is made any more.
        held_up: receives that are posted later.
    """

    def __init__(self, channels: Channels, seals: frozenset[np.dtype[Any]] = frozenset()) -> None:
        self._channels = channels
        self._seals = seals
        self._matches = Matches()
        self.numbers, self.unowned_counts = self._matches.numbers, self._matches.unowned_counts
        self.queues: dict[int, deque[Operation]] = {}
        self.arrivals: dict[int, dict[tuple[int, int], Arrival]] = {}
        self._came = itertools.count()
        self.sent = [0] * channels.size
        self.heard = [0] * channels.size
        self.awaited: dict[int, tuple[int, Callable[[], object]]] = {}  # member → `when_come`
        self.dead = False
        self.next_messages: dict[int, _engine.Receive] = {}
        self._sends: dict[int, dict[Key, Operation]] = {}  # by receiver: those that have not left yet
        self.held_up = HeldUp()
        self._gaps: dict[tuple[int, int], None] = {}  # source and tag of receives that were given up just now

    def nothing_waits(self, tag: int) -> bool:
        """Whether nothing has come with a tag that waits for a receive, and no receive with it waits but such
        as have matched their messages: the next message of a source is the next receive's. Not where no
        progress is made any more."""
        waits = tag in self.queues or tag in self.arrivals or tag in self.next_messages
        return not (waits or self.dead or self._matches.unowned_counts or self.held_up.holds(tag))

    def receive_here(self, receive: _engine.Receive) -> bool:
        """Have a receive that is begun now get the message that is its own, if all of it is here."""
        tag = receive.tag
        if self.dead or tag in self.queues or self._matches.unowned_counts or tag not in self.arrivals:
            return False
        if self.held_up.holds(tag):
            return False
        if receive.source == ANY:
            found = self._first(ANY, tag)
        else:
            found = self.arrivals[tag].get((receive.source, self._matches.next(receive.source, tag)))
        if type(found) is not Arrival or found.data is None:
            return False
        if not receive.fits(found.signature, found.nbytes, found.number):
            return False
        self._drop_arrival(tag, found)
        self._matches.pass_over(found.source, tag)
        receive.receive(found.source, found.number, found.data)
        channels = self._channels
        channels.incoming(found.source).let_go(channels.context, found.nbytes)
        return True

    def _drop_arrival(self, tag: int, arrival: Arrival) -> None:
        arrivals = self.arrivals[tag]
        del arrivals[arrival.source, arrival.number]
        if not arrivals:
            del self.arrivals[tag]

    def post_waiting(self, tag: int | None = None) -> None:
        """Have the receives that have matched nothing posted; those with one tag, or all."""
        next_messages = self.next_messages
        while next_messages:
            receive = next_messages.pop(next(iter(next_messages)) if tag is None else tag, None)
            if receive is None:
                break
            receive.post(receive)

    def abandon(self, receive: _engine.Receive) -> None:
        """Take back a receive whose await was cancelled. What it has got in this very turn of the loop goes
        to the next one."""
        if receive.operation is not None:
            self.given_up(receive.operation)
        elif receive.got >= 0:
            self._channels.guard(self._restore, _match_of(receive))
        elif self.next_messages.get(receive.tag) is receive:
            del self.next_messages[receive.tag]

    def take(self, rank: int, stream: int, number: int, signature: bytes, data: memoryview) -> int:
        """Take an eager message that came from a global rank, before the channel looks for its receive: a
        `EagerHandler`."""
        source, tag, matches = self._channels.group_rank(rank), stream - 1, self._matches
        if source is None or self.dead or matches.find(source, tag, number) is not None:
            return _NO  # its receive is posted, and counts it
        receive = self.next_messages.get(tag)
        if receive is not None:
            mine = receive.source in (source, ANY) and number == matches.next(source, tag)
            if mine and receive.fits(signature, len(data), number):
                del self.next_messages[tag]
                matches.pass_over(source, tag)
                self._count(source)
                receive.receive(source, number, data)
                return _NOW
            self.post_waiting(tag)
            if self.dead or matches.find(source, tag, number) is not None:
                return _NO  # likewise, now
        arrivals = self.arrivals.setdefault(tag, {})
        if (source, number) in arrivals:
            raise WireError(f"a second message {number} of tag {tag} from rank {rank}")
        arrivals[source, number] = Arrival(
            next(self._came), source, number, signature, len(data), bytes(data)
        )
        self._count(source)
        if number == matches.next(source, tag):
            self._match(source, tag)
        return _KEPT

    def send(self, operation: Operation) -> None:
        """Start a send."""
        channels = self._channels
        peer, tag = operation.peer, operation.tag
        number = operation.call.seq
        source = operation.source
        assert isinstance(source, np.ndarray)
        self.sent[peer] += 1
        if peer in channels.shut:
            self._refuse(operation)
            return
        signature = message_signature(source.dtype, source.size, number)
        sealed = operation.sealed or source.dtype in self._seals

        def go(part: Array) -> None:
            if peer in channels.shut:  # since, while a thread staged it
                self._refuse(operation)
                return
            channel = channels.outgoing(peer)
            key = Key(channels.context, 1 + tag, number, 0)
            if channel.send(key, signature, as_bytes(part), partial(self._sent, operation, key), sealed):
                operation.succeed()
            else:
                self._sends.setdefault(peer, {})[key] = operation
                channels.drive(operation.work, channel)

        if source.flags.c_contiguous:
            go(flat(source))
            return
        made = buffers(operation, channels.rank, channels.size)
        (part,) = made.send
        # Staging a large strided tensor takes a thread; the number is taken, so order is kept.
        self._run(made.fill_ns(), made.fill, partial(go, part))

    def _sent(self, operation: Operation, key: Key) -> None:
        self._sends[operation.peer].pop(key, None)
        operation.succeed()

    def unasked(self) -> int:
        """The number of the user's sends that wait for their receives."""
        sends = (one for sends in self._sends.values() for one in sends.values())
        return sum(type(one) is Operation for one in sends)

    def end_sends(self, peer: int) -> None:
        """End the sends that a member has not asked for, now and from now on: it has closed the group. A
        message that is under way to it goes on until its channel ends."""
        channels, sends = self._channels, self._sends.get(peer)
        if sends:
            channel = channels.outgoing(peer)
            channel.poll()  # what it has taken is told there
            if channel.over:
                channels.take_nothing(peer)
                ended, self._sends[peer] = list(sends.values()), {}
            else:
                ended = [sends.pop(key) for key in channels.take_nothing(peer) if key in sends]
            for operation in ended:
                self._refuse(operation)
        else:
            channels.take_nothing(peer)

    def _refuse(self, operation: Operation) -> None:
        """End a send to a member that has closed the group. Nothing touches its buffers."""
        rank, whole = self._channels.ranks[operation.peer], operation.whole
        if whole is None:  # a part of another engine's, which may be under way
            why = "it closed its group without receiving what is sent here"
            self._channels.reports.broken(PeerLost([rank], why))
        elif not whole.work.done():
            whole.fail(PeerClosed([rank], sent=True))

    def recv(self, operation: Operation) -> None:
        """Post a receive."""
        self.post_waiting(operation.tag)
        if self._gaps:
            self._close_gaps()
        if type(operation) is Operation:  # a part of another engine's goes on with that
            operation.work._taken_back_by(self.given_up, operation)
        if self.nothing_waits(operation.tag) and operation.peer != ANY and operation.target is not None:
            self._claim(operation, operation.peer, None)  # as `_serve` would
        elif not self._serve(operation, blocked=operation.tag in self.queues):
            self.queues.setdefault(operation.tag, deque()).append(operation)
            if operation.peer != ANY:
                self._channels.drive(operation.work, self._channels.incoming(operation.peer))
            if self._channels.crowded:
                self._ask(operation.tag, {operation.peer})

    def arrived(self, source: int, tag: int, number: int, signature: bytes, nbytes: int) -> None:
        """Take a message that came in or was offered."""
        if self._gaps:
            self._close_gaps()
        self._count(source)
        self.post_waiting(tag)
        match = self._matches.find(source, tag, number)
        if match is not None:
            match.signature = signature
            other = match.place.nbytes != nbytes  # that of the first receiver
            if match.receiver is None:
                match.waits = nbytes if other else -1
                self._match(source, tag)
            elif not self._fits(match):
                if self._channel(match).park(self._key(match)) or other:
                    match.waits = nbytes
            elif other:
                self._post(match, again=True)
            return
        arrivals = self.arrivals.setdefault(tag, {})
        arrivals.setdefault((source, number), Arrival(next(self._came), source, number, signature, nbytes))
        if number == self._matches.next(source, tag):  # what overtook another waits for its turn
            self._match(source, tag)

    def missing(self, source: int) -> int:
        """The number of messages that a member had sent and that have not come; 0 where it is not known."""
        awaited = self.awaited.get(source)
        return 0 if awaited is None else awaited[0] - self.heard[source]

    def when_come(self, source: int, count: int, then: Callable[[], object]) -> None:
        """Call `then()` once so many messages of a member have come or were offered. The last of them may not
        be in its place yet."""
        self.awaited[source] = count, then
        self._compare(source)

    def _count(self, source: int) -> None:
        self.heard[source] += 1
        if self.awaited:
            self._compare(source)

    def _compare(self, source: int) -> None:
        count, then = self.awaited.get(source, (0, None))
        if then is not None and self.heard[source] >= count:
            del self.awaited[source]
            then()

    def halt(self) -> None:
        """Make no further progress."""
        self.dead = True
        self.awaited.clear()
        self.held_up.take()
        self._gaps.clear()

    def forget(self) -> None:
        """Let go of what waits: the group has broken, and no buffer is touched any more."""
        self._matches.forget()
        self.next_messages.clear()
        self._sends.clear()
        self.queues.clear()
        self.arrivals.clear()

    def waiting(self) -> list[Operation]:
        """The receives for which nothing has come."""
        self.post_waiting()
        self._close_gaps()
        queued = [operation for queue in self.queues.values() for operation in queue]
        return [*self._matches.waiting(), *queued]

    def unfinished(self, source: int) -> bool:
        """Whether receives wait for the rest of messages of a member."""
        self._close_gaps()
        return bool(self._matches.unfinished(source))

    # ── matching ─────────────────────────────────────────────────────────────────────────────────────

    # What is in a queue has been tried with all that has come, so a look at what is new is enough. That keeps
    # the cost of each receive and arrival the same, however many others wait.

    def _serve(self, operation: Operation, blocked: bool) -> bool:
        """Let a receive have what has come for it, or post it where only one source can serve it.

        Args:
            operation: the receive, which is in no queue.
            blocked: it comes behind another that only an arrival can serve.

        Returns:
            Whether that could be.
        """
        found = self._first(operation.peer, operation.tag)
        if type(found) is Match:
            if blocked and found.signature is None:
                return False  # when it comes, the receive before this one may have it
            self._adopt(found, operation)
            self._matches.count(found.source, found.tag)
            self._resume(found)
        elif type(found) is Arrival:
            self._drop_arrival(operation.tag, found)
            self._claim(operation, found.source, found)
        elif operation.peer != ANY and operation.target is not None and not blocked:
            self._claim(operation, operation.peer, None)
        else:
            return False
        return True

    def _match(self, source: int, tag: int) -> None:
        """Let receives have what has come from one source, in order."""
        # What is served may bring the next arrival right here, so nothing of the queues is kept over it.
        while not self.dead and (queue := self.queues.get(tag)) and self._next(source, tag) is not None:
            at = next((i for i, operation in enumerate(queue) if operation.peer in (ANY, source)), None)
            if at is None:
                break
            self._serve(self._take(tag, at), blocked=True)
            self._advance(tag)
        if self._channels.crowded and tag in self.queues:
            self._ask(tag, {operation.peer for operation in self.queues[tag]})

    def _advance(self, tag: int) -> None:
        """Serve the first ones of a queue. One that disagrees with its message has broken the group then."""
        while not self.dead and tag in self.queues:
            operation = self._take(tag, 0)
            if not self._serve(operation, blocked=False):
                self.queues.setdefault(tag, deque()).appendleft(operation)
                break

    def _take(self, tag: int, at: int) -> Operation:
        """Take a receive out of its queue, which goes with its last one: there may be any number of tags."""
        queue = self.queues[tag]
        operation = queue[at]
        del queue[at]
        if not queue:
            del self.queues[tag]
        return operation

    def ask(self) -> None:
        """Have what is waited for offered again: some peers offered more than is remembered."""
        self.post_waiting()
        for tag, queue in self.queues.items():
            self._ask(tag, {operation.peer for operation in queue})

    def _ask(self, tag: int, waiting: set[int]) -> None:
        channels = self._channels
        for source in channels.crowded if ANY in waiting else channels.crowded & waiting:
            number = self._matches.next(source, tag)
            channels.incoming(source).ask(Key(channels.context, 1 + tag, number, 0))

    def _next(self, source: int, tag: int) -> Arrival | Match | None:
        """The message from a source that a receive from anybody gets next; None where it is not here."""
        match = self._matches.unowned(source, tag)
        if match is not None:
            return match if match.signature is not None else None
        return self.arrivals.get(tag, _NOTHING).get((source, self._matches.next(source, tag)))

    def _first(self, peer: int, tag: int) -> Arrival | Match | None:
        """The message that a receive gets now.

        One that overtook another (which is being staged in the sender's thread) waits for its turn. However
        many a peer has sent, this takes a look at each source at most.
        """
        matches = self._matches
        if peer != ANY:
            return matches.unowned(peer, tag) or self._next(peer, tag)
        unowned = matches.unowned_sources(tag)
        arrivals = self.arrivals.get(tag, _NOTHING)
        if not unowned and len(arrivals) <= self._channels.size:
            return next((a for a in arrivals.values() if a.number == matches.next(a.source, tag)), None)
        heads = (self._next(source, tag) for source in range(self._channels.size))
        return min((head for head in heads if head is not None), key=_order, default=None)

    def _claim(self, operation: Operation, source: int, arrival: Arrival | None) -> None:
        """Match the next message of a source for a receive.

        Args:
            arrival: it, where it is here.
        """
        channels = self._channels
        tag = operation.tag
        number = self._matches.next(source, tag)
        if operation.target is None:  # of a size that the message tells: its bytes are the result
            assert arrival is not None
            try:
                operation.target = np.empty(arrival.nbytes, np.uint8)
            except MemoryError as error:  # so large a message was only offered: it may be a lie
                channels.failed(error)
                return
        place = _NO_PLACE if operation.senders else operation.target
        assert isinstance(place, np.ndarray)
        signature = None if arrival is None else arrival.signature
        match = Match(source, tag, number, None, place, False, None, signature)
        self._matches.enter(match)
        self._adopt(match, operation)
        if arrival is None:
            self._post(match)
        elif self._fits(match):
            self._post(match, data=arrival.data)
        elif arrival.data is None:
            match.waits = arrival.nbytes
        else:
            match.place, match.complete = np.frombuffer(arrival.data, np.uint8), True
            self._channel(match).let_go(channels.context, arrival.nbytes)

    # ── receiving ────────────────────────────────────────────────────────────────────────────────────

    def _adopt(self, match: Match, operation: Operation) -> None:
        """Note that a receive gets a message."""
        match.receiver = operation
        operation.noted = match
        if operation.senders:
            operation.result = operation.senders[match.source]
        else:  # of any size: the message's bytes are the result
            if match.waits >= 0:
                self._have_come(match)
            operation.target = match.place
            operation.result = (match.source, match.place)

    def _have_come(self, match: Match) -> None:
        """Have a message that waits come to memory of its own."""
        try:
            match.place = np.empty(match.waits, np.uint8)
        except MemoryError as error:  # it was only offered: it may be a lie
            self._channels.failed(error)
            return
        into, received = Into(as_bytes(match.place)), partial(self._received, match)
        match.complete = self._channel(match).post_again(self._key(match), match.waits, into, received)
        match.waits = -1

    def _resume(self, match: Match) -> None:
        """Go on with a message that has got another receiver."""
        receiver = match.receiver
        assert receiver is not None
        target = receiver.target
        assert isinstance(target, np.ndarray)
        if match.signature is not None and not self._fits(match):
            return
        if match.complete:
            self._deliver(match)
            return
        channel, key = self._channel(match), self._key(match)
        other = target.nbytes != match.place.nbytes
        if match.waits >= 0 or (other and (match.signature is not None or channel.withdraw(key))):
            self._post(match, again=True)
        else:
            self._channels.drive(receiver.work, channel)

    def _post(self, match: Match, again: bool = False, data: bytes | None = None) -> None:
        """Have a message received where its receiver wants it.

        Args:
            again: it is posted, perhaps, for a receiver of another size.
            data: its bytes, where they are here and not in the channel.
        """
        channels, receiver, channel = self._channels, match.receiver, self._channel(match)
        assert receiver is not None
        target = receiver.target
        assert isinstance(target, np.ndarray)
        if target.flags.c_contiguous:
            match.place, match.made = flat(target), None
        else:
            match.made = buffers(receiver, channels.rank, channels.size)
            (match.place,) = match.made.recv
        match.users, match.waits = bool(receiver.senders), -1  # else the place is the message's own
        place = as_bytes(match.place)
        if data is not None and len(data) == len(place):
            place[:] = data
            channel.let_go(channels.context, len(data))
            self._received(match)
            return
        signature = message_signature(target.dtype, target.size, match.number) if match.users else b""
        post = channel.post_again if again else channel.recv
        if post(self._key(match), len(place), Into(place), partial(self._received, match), signature):
            self._received(match)
        else:
            channels.drive(receiver.work, channel)

    def _received(self, match: Match) -> None:
        if match.signature is None:  # else it was counted when it was told
            self._count(match.source)
        match.complete = True
        if match.receiver is not None:
            self._deliver(match)

    def _deliver(self, match: Match) -> None:
        """Give a message that is here to its receiver."""
        receiver, made = match.receiver, match.made
        assert receiver is not None
        if match.unfit is receiver:
            return
        if made is not None:
            self._copy(match, made.after)
        elif isinstance(receiver.convert, Decoding):
            self._decode(match, receiver.convert)
        elif match.users or not receiver.senders:
            self._fulfil(match)
        else:
            target = receiver.target
            assert isinstance(target, np.ndarray)
            data = match.place.view(target.dtype).reshape(target.shape)
            self._copy(match, [(target, data)])

    def _copy(self, match: Match, pairs: Sequence[tuple[Array, Array]]) -> None:
        """Copy a message to its receiver's tensor, which has it then, unless it was taken back meanwhile."""
        match.copy = copy = TensorCopy(pairs)

        def over() -> None:
            if not copy.stopped:
                match.copy = None
                self._fulfil(match)

        self._run(copy.cost_ns, copy.run, over)

    def _decode(self, match: Match, decoding: Decoding) -> None:
        """Give a receive the object of its message: a thread decodes it where that is slow. What has begun
        for an earlier receive goes on for this one."""
        found = match.decoded
        if found is not None and found.how != decoding.how:
            found = match.decoded = None
        if found is None and not decoding.is_slow(match.place):
            self._fulfil(match)
        elif found is None:
            of = self._channels.loop.run_in_executor(None, decoding.decode, match.place)
            match.decoded = Decoded(decoding.how, of)
            of.add_done_callback(partial(self._has_decoded, match))
        elif found.object.done():
            self._give(match, found.object)

    def _has_decoded(self, match: Match, of: asyncio.Future[Any]) -> None:
        if of.cancelled():
            return  # no thread begins any more: the loop ends
        of.exception()  # asked for, whoever wants the object
        current = match.decoded is not None and match.decoded.object is of
        if current and match.receiver is not None and not self.dead:
            self._give(match, of)

    def _give(self, match: Match, of: asyncio.Future[Any]) -> None:
        """End a receive whose message is decoded."""
        receiver, match.receiver = (
            match.receiver,
            None,
        )  # it has it: the loop may hear later that it was decoded
        assert receiver is not None
        assert isinstance(receiver.convert, Decoding)
        self._matches.remove(match)
        error = of.exception()
        if error is not None:
            receiver.fail(error)
        else:
            receiver.ended(receiver)
            receiver.work._finish(receiver.convert.result(match.source, of.result()))

    def _fulfil(self, match: Match) -> None:
        """End a receive that has its message."""
        receiver = match.receiver
        assert receiver is not None
        self._matches.remove(match)
        receiver.succeed()

    # ── taking receives back ─────────────────────────────────────────────────────────────────────────

    def take_back(self, operation: Operation) -> None:
        """Take back a receive that nobody waits for any more. Its message goes to the next one."""
        match, tag = operation.noted, operation.tag
        self.post_waiting(tag)
        if operation.work.done():  # and nobody was given the result
            self._restore(match)
            return
        if match is not None:
            self._leave(match)  # also where no progress is made any more
        if self.dead:
            return
        if match is None:
            self._remove(operation)
            self._leave_gap(ANY, tag)
        else:
            match.receiver = None
            self._leave_gap(match.source, tag)

    def drop(self, operation: Operation) -> None:
        """Take back a receive for which nothing has come, since the group closes. Its message goes to no
        other one, and the others keep theirs."""
        match = operation.noted
        if match is None:
            self._remove(operation)
        else:
            self._leave(match)
            match.receiver = None

    def given_up(self, operation: Operation) -> None:
        """Take back a receive whose await was cancelled."""
        if not operation.work.done():
            operation.ended(operation)
        self._channels.guard(self.take_back, operation)

    def _remove(self, operation: Operation) -> None:
        """Take a receive out of its queue, or out of those that are posted later."""
        if self.held_up.remove(operation):
            return
        queue = self.queues[operation.tag]
        queue.remove(operation)
        if not queue:
            del self.queues[operation.tag]

    def _restore(self, match: Match) -> None:
        """Keep a message that was delivered, for the next receive."""
        self.post_waiting(match.tag)
        match.receiver = None
        if self.dead:
            return
        match.sever()
        self._matches.restore(match)
        self._leave_gap(match.source, match.tag)

    def _leave(self, match: Match) -> None:
        """Have a message go on in memory of its own, wherever it is: it does not go to its receiver, whose
        tensor is touched no more."""
        if match.waits >= 0:
            match.place, match.users, match.made = _NO_PLACE, False, None
        elif match.users or match.copy is not None:
            moves = match.users and match.made is None
            own = Into(match.sever())
            if not match.complete:
                self._channel(match).redirect(self._key(match), own, moves)

    def _leave_gap(self, source: int, tag: int) -> None:
        """Have the receives behind one that was given up move up in the next turn. Others may be given up in
        this step, too: a message must not go to one of them, which it may not fit."""
        if source != ANY:
            self._matches.count(source, tag)
        first = not self._gaps
        self._gaps[source, tag] = None
        if first:
            self._channels.loop.call_soon(self._close_gaps)

    def _close_gaps(self) -> None:
        while self._gaps and not self.dead:
            (source, tag), _ = self._gaps.popitem()
            if source == ANY:
                self._channels.guard(self._advance, tag)
            else:
                self._channels.guard(self._move_up, source, tag)

    def _move_up(self, source: int, tag: int) -> None:
        """Have the receives of a source and tag move up, now that one of them is gone."""
        matches = self._matches.of(source, tag)
        moved = move_up(matches)
        for match, _ in moved:
            self._leave(match)
        for match, receiver in moved:
            if receiver is None:
                match.receiver = None
            else:
                self._adopt(match, receiver)
        for match in reversed(matches):
            if match.receiver is not None or match.signature is not None:
                break
            if match.number + 1 != self._matches.next(source, tag):
                break  # a later message has overtaken it, and is gone
            if not self._channel(match).withdraw(self._key(match)):
                break  # the sender knows that there is a place
            self._matches.give_back(match)
        self._matches.count(source, tag)
        for match, receiver in moved:
            if receiver is not None and match.receiver is receiver and not self.dead:
                self._resume(match)
        if not self.dead:
            self._match(source, tag)

    def _channel(self, match: Match) -> Incoming:
        return self._channels.incoming(match.source)

    def _key(self, match: Match) -> Key:
        return Key(self._channels.context, 1 + match.tag, match.number, 0)

    def _fits(self, match: Match) -> bool:
        """Compare a message with its receiver. One that it does not fit breaks the group, some turns later:
        a cancel may be on its way to the receiver by now, through tasks inside each other, or the end of a
        block. Then the message is another's."""
        receiver, theirs = match.receiver, match.signature
        assert receiver is not None
        assert theirs is not None
        target = receiver.target
        assert isinstance(target, np.ndarray)
        mine = message_signature(target.dtype, target.size, match.number)
        if agree(mine, theirs):
            receiver.happened(FIRST)
            return True
        match.unfit = receiver
        self._break_later(
            match, receiver, partial(self._channels.unfit, match.source, match.number, mine, theirs)
        )
        return False

    def _break_later(
        self, match: Match, receiver: Operation, unfit: Callable[[Operation], None], turns: int = _SURE
    ) -> None:
        if self.dead or match.receiver is not receiver:
            return
        if turns:
            self._channels.loop.call_soon(self._break_later, match, receiver, unfit, turns - 1)
        else:
            self._channels.guard(unfit, receiver)

    def _run(self, cost: float, copies: Callable[[], None], then: Callable[[], None]) -> None:
        def done() -> None:
            if not self.dead:
                then()

        if not cost or self._channels.off_loop(cost, copies, done):
            done()


def _order(head: Arrival | Match) -> int:
    return head.order


def _match_of(receive: _engine.Receive) -> Match:
    """The message that a receive has got, as one that is here and belongs to nobody: the await of the receive
    was cancelled in the very turn of the loop in which it came."""
    got = receive.place
    place = np.frombuffer(got, np.uint8) if isinstance(got, bytes) else flat(got)
    signature = message_signature(place.dtype, place.size, receive.number)
    users = receive.target is not None
    return Match(receive.got, receive.tag, receive.number, None, place, users, None, signature, complete=True)
