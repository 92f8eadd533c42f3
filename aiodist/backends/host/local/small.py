"""Everything in one phase whose data fits the slots: whoever gets something takes it from there.

A rank that gives copies all that it gives into its slot, one part after the other, and publishes. Who gets
waits for those that give to it, and copies, or combines in rank order, its part of each. Nobody waits until
it was taken, since a slot is not written again before all have finished with it.

Bytes: every byte is copied twice.
"""

from __future__ import annotations

from itertools import pairwise

from aiodist.backends.arrays.kernels import reduce_in_order
from aiodist.backends.base import Array
from aiodist.backends.buffers import bounds_of
from aiodist.backends.host.local.exchange import Exchange
from aiodist.backends.host.local.plan import Plan
from aiodist.base.operations import ROLES


class _Layout:
    """The sizes and places that all uses of one plan share.

    Attributes:
        spans: where each member's part begins and ends, in elements: in what is given, where that is cut,
            else in what is got.
        given: elements that this rank gives.
        inputs: what this rank takes, in rank order: from which member, where it begins in that member's slot,
            and its elements. What a rank gives itself is among them: `recv` may lie where `send` does.
    """

    __slots__ = ("given", "inputs", "spans")

    def __init__(self, plan: Plan) -> None:
        call, board = plan.call, plan.board
        roles, rank = ROLES[call.kind], board.rank
        total = call.count * board.size if roles.agrees_on_part or not roles.cut else call.count
        self.spans = spans = list(pairwise(bounds_of(total, plan.sizes, board.size)))
        sizes = [high - low for low, high in spans]
        self.given = sizes[rank] if plan.alike else spans[-1][1]
        gets = roles.gets(rank, call.root)
        members = [member for member in range(board.size) if gets and roles.gives(member, call.root)]
        self.inputs = [
            (member, 0, sizes[member]) if plan.alike else (member, spans[rank][0], sizes[rank])
            for member in members
        ]


class Small(Exchange):
    """The exchange in the slots; see the module.

    `send` and `recv` may be one array in which the parts of all members lie side by side.
    """

    __slots__ = ("_inputs", "_own")
    alike = True

    def __init__(self, plan: Plan, seq: int) -> None:
        super().__init__(plan, seq)
        if plan.layout is None:
            plan.layout = _Layout(plan)
            plan.sees_all = len(plan.sources) == len(self.board.peers)
        self._own: Array | None = None  # this rank's payload
        self._inputs: list[Array] | None = None

    def begin(self) -> None:
        if self.made is not None:
            self.made.fill()
        send = self.send
        if send:
            own = self._own
            if own is None:
                at = self.board.payload_at(self.seq)
                self._own = own = self.plan.mine(at, self.plan.layout.given)
            if len(send) == 1:
                own[...] = send[0]
            else:
                for part, (low, high) in zip(send, self.plan.layout.spans, strict=True):
                    own[low:high] = part
        self.publish_code()

    def advance(self) -> bool:
        """Take everything when all that give are here → whether they are."""
        plan, board = self.plan, self.board
        if plan.sees_all:
            ends = board.ends  # as `arrived`, written out
            if ends is None:
                if not self.arrived():
                    return False
            else:
                code, head = self.code, self.head
                for words, base in ends:
                    if words[base + head] != code:
                        return False
        else:
            code, head = self.code, self.head
            for peer in plan.sources:
                if not (peer.base or board.found(peer)) or peer.words[peer.base + head] != code:
                    return False
        recv = self.recv
        if recv:
            inputs = self._inputs or self._find()
            if plan.reduce is not None:
                reduce_in_order(inputs, recv[0], plan.reduce)
                if plan.finishes:
                    plan.finish(recv[0])
            elif not plan.sorts:
                recv[0][...] = inputs[0]
            elif len(recv) == 1:
                whole = recv[0]
                for part, (low, high) in zip(inputs, plan.layout.spans, strict=True):
                    whole[low:high] = part
            else:
                for into, part in zip(recv, inputs, strict=True):
                    into[...] = part
        if self.made is not None:
            self.made.empty()
        return True

    def _find(self) -> list[Array]:
        """The inputs of this rank, where they lie; there they lie the next time, too."""
        board, plan = self.board, self.plan
        at = board.payload_at(self.seq) - board.base * 8  # from the start of a region
        inputs = []
        for member, first, count in plan.layout.inputs:
            offset = at + first * plan.itemsize
            if member == board.rank:
                inputs.append(plan.mine(board.base * 8 + offset, count))
            else:
                peer = board.by_member[member]
                inputs.append(plan.theirs(peer, peer.base * 8 + offset, count))
        self._inputs = inputs
        return inputs
