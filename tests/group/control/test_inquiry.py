"""The leader's ledger: who is absent, and who disagrees."""

from __future__ import annotations

import numpy as np
import pytest

from aiodist.base.types import Call, Kind, ReduceOp
from aiodist.group.control.inquiry import SILENT, Absence, Disagreement, Inquiry


def said(count: int, offer: int = 0) -> tuple[bytes, str]:
    """Signature and words of an all_reduce."""
    call = Call(Kind.all_reduce, 4, np.dtype(np.float32), (count,), ReduceOp.SUM, offer=offer)
    return call.signature, call.describe()


def test_all_have_arrived_and_agree() -> None:
    inquiry = Inquiry([3, 1, 2], 4)
    assert inquiry.begin() == (1, 2, 3)
    for rank in (1, 2, 3):
        assert not inquiry.complete()
        inquiry.answer(rank, True, *said(5, offer=rank))  # offers may differ
    assert inquiry.complete()
    assert inquiry.verdict() == Absence(())


def test_absent_are_those_who_say_so_and_those_who_say_nothing() -> None:
    inquiry = Inquiry(range(4), 4)
    inquiry.begin()
    inquiry.answer(0, True, *said(5))
    inquiry.answer(2, False, b"", "")
    assert not inquiry.complete()
    assert inquiry.verdict() == Absence((2,), (1, 3))


def test_the_next_round_asks_all_who_had_not_arrived() -> None:
    inquiry = Inquiry(range(4), 4)
    inquiry.begin()
    inquiry.answer(0, True, *said(5))
    inquiry.answer(2, False, b"", "")
    assert inquiry.begin() == (1, 2, 3)
    assert inquiry.rounds == 2
    for rank in (1, 2, 3):
        inquiry.answer(rank, True, *said(5))
    assert inquiry.complete()
    assert inquiry.begin() == ()


def test_disagreement_names_what_each_said() -> None:
    inquiry = Inquiry(range(3), 4)
    inquiry.begin()
    for rank in range(3):
        inquiry.answer(rank, True, *said(6 if rank == 1 else 5))
    verdict = inquiry.verdict()
    assert verdict == Disagreement(
        {
            0: "all_reduce(float32[5], SUM)",
            1: "all_reduce(float32[6], SUM)",
            2: "all_reduce(float32[5], SUM)",
        },
        partial=False,
    )


@pytest.mark.parametrize("answered", [True, False])
def test_disagreement_without_everybody_is_partial(answered: bool) -> None:
    inquiry = Inquiry(range(3), 4)
    inquiry.begin()
    inquiry.answer(0, True, *said(5))
    inquiry.answer(1, True, *said(6))
    if answered:
        inquiry.answer(2, False, b"", "")
    verdict = inquiry.verdict()
    assert isinstance(verdict, Disagreement)
    assert verdict.partial
    assert verdict.said[2] == SILENT


def test_who_has_forgotten_is_there_and_disagrees_with_nobody() -> None:
    inquiry = Inquiry(range(3), 4)
    inquiry.begin()
    inquiry.answer(0, True, *said(5))
    inquiry.answer(1, True, b"", "")
    inquiry.answer(2, True, *said(5))
    assert inquiry.complete()
    assert inquiry.verdict() == Absence(())


def test_non_members_are_not_counted() -> None:
    inquiry = Inquiry([0, 1], 4)
    inquiry.begin()
    inquiry.answer(7, True, *said(6))
    inquiry.answer(0, True, *said(5))
    assert not inquiry.complete()
    assert inquiry.verdict() == Absence((), (1,))
