"""Some of what `python -m tests.programs --of receives` runs, and that it finds what it is for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import aiodist as dist
from aiodist.backends.host.backend import HostBackend
from aiodist.backends.host.copies import TensorCopy
from aiodist.backends.host.messages import Messages
from aiodist.backends.inner import InnerOperation
from aiodist.base.types import Kind
from aiodist.group.batch import Batch
from aiodist.transport import Incoming
from aiodist.transport.base import Handled
from tests.levels import COSTLY, few
from tests.programs.receives import PLACES, jobs, place_of
from tests.programs.run_receives import run

MOST = 2000
"""Programs among which one has to go wrong."""

EACH = 5
"""Programs of each job."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("job", few(range(len(PLACES)), [0, 2]), ids=lambda job: f"{job}-{PLACES[job]}")
def test_programs(job: int) -> None:
    _, violations = run(range(job, job + EACH * len(PLACES), len(PLACES)))
    assert not violations, "\n".join(
        f"python -m tests.programs --of receives --seed {violation.seed} --verbose: {violation.words}"
        for violation in violations
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", [119_920, few([122_120], [])[0]])
def test_programs_that_went_wrong_once(first: int) -> None:
    """A receive whose message had begun to come got an earlier one when its group was closed."""
    _, violations = run(next(jobs(first, 10 * len(PLACES))))
    assert not violations


Mutation = Callable[[pytest.MonkeyPatch], None]


def claims_that_end_before_the_copy(patch: pytest.MonkeyPatch) -> None:
    """A message that a thread copies is matched no more."""

    def copy(self: Any, claim: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        receiver, made = claim.receiver, TensorCopy(pairs)
        self._matches.remove(claim)

        def over() -> None:
            if claim.receiver is receiver:
                receiver.succeed()
            else:
                self._restore(claim)

        self._run(made.cost_ns, made.run, over)

    take_back = Messages.take_back

    def takes_back(self: Any, operation: Any) -> None:
        claim = operation.noted
        matched = claim is None or self._matches.find(claim.source, claim.tag, claim.number) is claim
        if operation.work.done() or matched:
            take_back(self, operation)
        else:
            claim.receiver = None

    patch.setattr(Messages, "_copy", copy)
    patch.setattr(Messages, "take_back", takes_back)


def copies_that_go_on(patch: pytest.MonkeyPatch) -> None:
    """A thread goes on with its copy when its receive was taken back."""

    def runs(self: TensorCopy) -> None:
        for to, source in self._pairs:
            to[...] = source

    patch.setattr(TensorCopy, "run", runs)


def fragments_that_come_all_the_same(patch: pytest.MonkeyPatch) -> None:
    """What is on its way goes on into the tensor of a receive that was taken back."""
    patch.setattr(Incoming, "redirect", lambda self, key, into, moves: None)


def awaits_that_never_begin(patch: pytest.MonkeyPatch) -> None:
    """A task that is cancelled before its first step leaves the receive where it is."""

    def ends(self: dist.Work[Any]) -> None:
        self._awaited = True

    patch.setattr(dist.Work, "_ends_unbegun", ends)


def awaits_that_are_closed(patch: pytest.MonkeyPatch) -> None:
    """A coroutine that is closed leaves the receive for which it waits where it is."""
    give_up = dist.Work._give_up

    def gives_up(self: dist.Work[Any]) -> None:
        if not isinstance(sys.exception(), GeneratorExit):
            give_up(self)

    patch.setattr(dist.Work, "_give_up", gives_up)


def objects_that_go_with_their_receive(patch: pytest.MonkeyPatch) -> None:
    """A message that a thread decodes is matched no more."""

    def decode(self: Any, claim: Any, decoding: Any) -> None:
        receiver = claim.receiver
        self._matches.remove(claim)

        def over(of: Any) -> None:
            if claim.receiver is receiver:
                receiver.ended(receiver)
                receiver.work._finish(decoding.result(claim.source, of.result()))

        self._channels.loop.run_in_executor(None, decoding.decode, claim.place).add_done_callback(over)

    take_back = Messages.take_back

    def takes_back(self: Any, operation: Any) -> None:
        claim = operation.noted
        matched = claim is None or self._matches.find(claim.source, claim.tag, claim.number) is claim
        if operation.work.done() or matched:
            take_back(self, operation)
        else:
            claim.receiver = None

    patch.setattr(Messages, "_decode", decode)
    patch.setattr(Messages, "take_back", takes_back)


def sends_that_wait_for_who_has_left(patch: pytest.MonkeyPatch) -> None:
    """A send to a rank that has closed waits for its receive."""
    patch.setattr(Messages, "end_sends", lambda self, peer: None)


def parts_that_overtake(patch: pytest.MonkeyPatch) -> None:
    """A part of another engine's receive is posted at once, also behind one of the user's that waits."""
    begin = HostBackend._begin

    def begins(self: Any, operation: Any) -> None:
        if type(operation) is InnerOperation and operation.call.kind is Kind.recv:
            self._receive(operation)
        else:
            begin(self, operation)

    patch.setattr(HostBackend, "_begin", begins)


def blocks_whose_other_receives_go_on(patch: pytest.MonkeyPatch) -> None:
    """A block whose end fails takes none of its receives back."""

    async def waits(self: Batch, works: list[dist.Work[Any]]) -> None:
        try:
            for work in works:
                await work
        finally:
            for work in works:
                work._let_be_dropped()

    patch.setattr(Batch, "_all", waits)


def messages_that_count_twice(patch: pytest.MonkeyPatch) -> None:
    """A message is counted before it is looked at, and again where its channel takes it."""
    take = Messages.take

    def takes(self: Any, rank: int, stream: int, number: int, *arrived: Any) -> int:
        source = self._channels.group_rank(rank)
        known = source is None or self._matches.find(source, stream - 1, number) is not None
        taken = take(self, rank, stream, number, *arrived)
        if not known and taken == Handled.NO:
            self._count(source)
        return taken

    patch.setattr(Messages, "take", takes)


MUTATIONS: dict[Mutation, int] = {
    claims_that_end_before_the_copy: 0,
    copies_that_go_on: 0,
    fragments_that_come_all_the_same: 0,
    awaits_that_never_begin: 0,
    awaits_that_are_closed: 0,
    objects_that_go_with_their_receive: 0,
    sends_that_wait_for_who_has_left: 0,
    parts_that_overtake: 2,
    blocks_whose_other_receives_go_on: 0,
    messages_that_count_twice: 0,
}
"""Each with the seed to begin with, which says the place."""


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mend_taken_back_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of(MUTATIONS[mutation])
    for seeds in jobs(MUTATIONS[mutation], MOST):
        if place_of(seeds[0]) != place:  # in virtual time all is the same each time
            continue
        for seed in seeds:
            with monkeypatch.context() as patch:
                mutation(patch)
                _, violations = run([seed])
            if violations:
                _, still = run([seed])
                assert not still, "with the mend it is right"
                return
    raise AssertionError(f"none of {MOST} programs went wrong")
