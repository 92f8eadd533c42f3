"""The programs find each fault that they were widened for: a mend is taken back, and a program goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

import pytest

from aiodist.backends.host.local.group import LocalGroup
from aiodist.backends.host.local.hub import supported
from aiodist.group import batch
from aiodist.transport.shm import available
from tests.levels import COSTLY
from tests.programs.plan import jobs
from tests.programs.run import run

MOST = 2000
"""Programs among which one has to go wrong."""

Mutation = Callable[[pytest.MonkeyPatch], None]


def old_words(patch: pytest.MonkeyPatch) -> None:
    """A skipped number leaves in its slot what was there."""

    def finish(self: LocalGroup, seq: int) -> bool:
        free = self.board.free(seq)
        if free:
            self.reuse(seq)
            self.board.slots.finished(seq)
            self.hub.end_of_turn_soon()
        return free

    patch.setattr(LocalGroup, "_passes_over", finish)


def words_that_stay(patch: pytest.MonkeyPatch) -> None:
    """A rank whose operation fails leaves its word to its peers."""
    patch.setattr(LocalGroup, "_withdraw", lambda self: None)


def inherited_blocks(patch: pytest.MonkeyPatch) -> None:
    """Tasks, timers and callbacks that are born in a block are in it."""
    issuers: ContextVar[object] = ContextVar("issuers", default=None)

    def issuer() -> object:
        if issuers.get() is None:
            issuers.set(object())
        return issuers.get()

    patch.setattr(batch, "issuer", issuer)


MUTATIONS: dict[Mutation, int] = {words_that_stay: 21, old_words: 0, inherited_blocks: 0}
"""Each with the seed to begin with: while programs are drawn as they are, those of the first job from there
on find it; else later ones do."""


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
async def test_a_mend_taken_back_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (available() and supported()):
        pytest.skip("ranks of one process share memory on Linux, with the compiled engine")
    for seeds in jobs(MUTATIONS[mutation], MOST):
        with monkeypatch.context() as patch:
            mutation(patch)
            violations = await run(seeds)
        if violations:
            wrong = [violation.seed for violation in violations]
            still = [violation.words for violation in await run(wrong)]
            assert not still, "with the mend they are right"
            return
    raise AssertionError(f"none of {MOST} programs went wrong")
