"""Operations of few bytes, which every rank carries out alike: barrier, new_group, small all_reduces."""

from __future__ import annotations

from aiodist.backends.base import Array
from aiodist.backends.host.local.board import CODE, MASK, PAYLOAD, SLOTS, SOURCE, place_of, place_word, view
from aiodist.backends.host.local.exchange import Exchange
from aiodist.backends.host.local.plan import Plan, aligned


class Meet(Exchange):
    """barrier and new_group: everybody is here, and does the same."""

    __slots__ = ()

    def look(self) -> bool:
        """Everybody has published it."""
        plan = self.plan
        return bool(plan.ends or plan.found()) and self.arrived(plan.ends)


class _Layout:
    """What is worked out once.

    Attributes:
        count: elements.
        out: where the result is put together.
        inputs: for each slot, all ranks' payloads, in rank order; for payloads that fit a slot.
    """

    __slots__ = ("count", "inputs", "out")

    def __init__(self, plan: Plan) -> None:
        self.count = plan.call.count
        self.out = aligned(self.count, plan.dtype)
        self.inputs: list[list[Array] | None] = [None] * SLOTS


class ReduceEach(Exchange):
    """all_reduce: every rank gives all of it, and reduces everything, in rank order.

    Ranks compute the same from equal addresses within a page, so that they get the same bits, also where
    NumPy's choice between two NaNs depends on alignment (law 3).
    """

    __slots__ = ("_at",)

    def lay_out(self) -> int:
        self.plan.in_blocks = False
        if self.plan.layout is None:
            self.plan.layout = _Layout(self.plan)
            # Where torch is loaded it reduces halves, and gives NaNs other bits.
            self.plan.one_nan = self.plan.itemsize == 2
        nbytes = self.send[0].nbytes
        return 0 if nbytes <= PAYLOAD else nbytes

    def begin(self) -> None:
        if self.made is not None:
            self.made.fill()
        send, board, plan = self.send[0], self.plan.board, self.plan
        self._at = at = self.staging or board.payload_at(self.seq)
        if send.size:
            view(board.bytes, at, send.size, plan.dtype)[...] = send
        # Peers that find the code find all the rest: no other word of the slot is read.
        words, base = board.words, self.base
        words[base + SOURCE] = place_word(at, exposed=False)
        board.sign(self.seq, self.signature)
        words[base + CODE] = self.code
        self.moves += 1
        board.ring_all()

    def look(self) -> bool:
        """Everybody's payload is there: reduce."""
        plan = self.plan
        code, head = self.code, self.head
        ends = plan.ends
        if not ends:
            if not plan.found():
                return False
            ends = plan.ends
        for words, base in ends:
            if words[base + head] != code:
                return False
        layout = plan.layout
        assert isinstance(layout, _Layout)
        if layout.count:
            inputs = layout.inputs[self.seq & MASK] if not self.staging else self._staged()
            if inputs is None:
                inputs = self._in_slot(layout)
            out, combine_two = layout.out, plan.reduce
            assert combine_two is not None
            combine_two(inputs[0], inputs[1], out)
            if len(inputs) > 2:
                for part in inputs[2:]:
                    combine_two(out, part, out)
            if plan.divisor or plan.one_nan:
                plan.finish(out)
            self.recv[0][...] = out
        if self.made is not None:
            self.made.empty()
        return True

    def _in_slot(self, layout: _Layout) -> list[Array]:
        """All ranks' payloads in this slot; remembered for its next use."""
        board, plan = self.plan.board, self.plan
        offset = board.payload_at(self.seq) - board.base * 8
        inputs = [plan.theirs(peer, peer.base * 8 + offset, layout.count) for peer in board.peers]
        inputs.insert(board.rank, view(board.bytes, self._at, layout.count, plan.dtype))
        layout.inputs[self.seq & MASK] = inputs
        return inputs

    def _staged(self) -> list[Array]:
        """All ranks' payloads in staging."""
        board, count = self.plan.board, self.send[0].size
        inputs = [self.at(peer, place_of(self.word(peer, SOURCE))[0], count) for peer in board.peers]
        inputs.insert(board.rank, self.mine(self._at, count))
        return inputs
