from __future__ import annotations

import numpy as np

from aiodist.backends.arrays.overlap import overlaps


def test_bounds_decide_the_usual_cases() -> None:
    memory = np.zeros(10)
    assert overlaps(memory, memory)
    assert overlaps(memory[:6], memory[5:])
    assert not overlaps(memory[:5], memory[5:])
    assert not overlaps(memory, np.zeros(10))


def test_interleaved_columns_do_not_overlap() -> None:
    matrix = np.zeros((50, 4))
    assert not overlaps(matrix[:, 0], matrix[:, 1])
    assert overlaps(matrix[:, :2], matrix[:, 1:])


def test_bytes_and_elements() -> None:
    memory = np.zeros(4, np.float32)
    assert overlaps(memory.view(np.uint8)[3:4], memory[:1])
    assert not overlaps(memory.view(np.uint8)[4:5], memory[:1])


def test_empty_arrays_overlap_nothing() -> None:
    memory = np.zeros(4)
    assert not overlaps(memory[:0], memory)


def test_a_question_that_is_too_hard_is_answered_with_yes() -> None:
    rng = np.random.default_rng(0)
    memory = np.zeros(10**6, np.int8)
    hard = [
        np.lib.stride_tricks.as_strided(memory[offset:], (9,) * 5, tuple(rng.integers(4001, 9001, 5) * 2))
        for offset in (0, 1)
    ]
    assert overlaps(*hard) in (True, False)  # whatever it is, it comes at once
