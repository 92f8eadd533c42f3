"""Operations of few bytes, which every rank carries out alike: barrier, new_group, small all_reduces."""

from __future__ import annotations

from aiodist import _engine
from aiodist.backends.base import Array
from aiodist.backends.host.local.board import HEADER, PAYLOAD, SOURCE, place_of, place_word
from aiodist.backends.host.local.exchange import Exchange
from aiodist.backends.host.local.plan import Plan, aligned


class Meet(Exchange):
    """barrier and new_group: all ranks are here, and do the same."""

    __slots__ = ()
    alike = True

    def begin(self) -> None:
        self.publish_code()

    def advance(self) -> bool:
        """Whether all ranks have published the operation."""
        return self.arrived()


class ReduceEach(Exchange):
    """all_reduce: every rank gives all of it, and reduces everything, in rank order.

    Ranks compute the same from equal addresses within a page, so that they get the same bits, also where
    NumPy's choice between two NaNs depends on alignment (law 3). So the result is put together apart, in the
    plan's `layout`, and copied.
    """

    __slots__ = ("_inputs", "_own")
    alike = True

    def __init__(self, plan: Plan, seq: int) -> None:
        super().__init__(plan, seq)
        self.needs = 0 if plan.nbytes <= PAYLOAD else plan.nbytes
        if plan.layout is None:
            plan.layout = aligned(plan.call.count, plan.dtype)
            # NumPy widens halves in a thread's scratch, whose address may decide which NaN comes out.
            plan.one_nan = plan.itemsize == 2 and _engine.compiled is None
            plan.finishes = bool(plan.divisor or plan.one_nan)
        self._own: Array | None = None  # this rank's payload, in the slot or in staging
        self._inputs: list[Array] | None = None  # all ranks', in order

    def begin(self) -> None:
        if self.made is not None:
            self.made.fill()
        board = self.board
        words, base, own, send = board.words, self.base, self._own, self.send[0]
        if own is None or self.needs:
            at = self.staging or board.payload_at(self.seq)
            self._own = own = self.plan.mine(at, send.size)
            self._inputs = None
            words[base + SOURCE] = place_word(at, exposed=False)
        own[...] = send
        self.publish_code()

    def advance(self) -> bool:
        """Reduce when all ranks' payloads are there → whether they are."""
        plan, board = self.plan, self.board
        ends = board.ends or board.complete()
        if ends is None:
            return False
        code, head = self.code, self.head
        for words, base in ends:  # as `arrived`, written out
            if words[base + head] != code:
                return False
        inputs = self._inputs or self._find()
        out, combine_two = plan.layout, plan.reduce
        combine_two(inputs[0], inputs[1], out)
        if plan.several:
            for part in inputs[2:]:
                combine_two(out, part, out)
        if plan.finishes:
            plan.finish(out)
        self.recv[0][...] = out
        if self.made is not None:
            self.made.empty()
        return True

    def _find(self) -> list[Array]:
        """All ranks' payloads, in rank order. Where they lie in slots they do so next time."""
        board, plan = self.board, self.plan
        peers, count = board.peers, plan.call.count
        assert self._own is not None
        if self.staging:
            inputs = [plan.theirs(peer, place_of(self.word(peer, SOURCE))[0], count) for peer in peers]
        else:
            offset = self.head * 8 + HEADER
            inputs = [plan.theirs(peer, peer.base * 8 + offset, count) for peer in peers]
        inputs.insert(board.rank, self._own)
        self._inputs = inputs
        return inputs
