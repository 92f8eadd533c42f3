"""Errors with the same text are shown once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from aiodist.launch.worker.alike import Alike, ranges
from aiodist.launch.worker.output import Console

TRACE = [b"Traceback (most recent call last):", b'  File "job.py", line 3, in main', b"ValueError: no"]


class Shown(Console):
    """What would be written."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.fresh = asyncio.Event()

    def line(self, prefix: bytes, *texts: bytes) -> None:
        self.lines += [prefix + text for text in texts]
        self.fresh.set()


def together(ranks: Sequence[int]) -> bytes:
    return f"ranks {ranges(ranks)}│ ".encode()


def mine(rank: int) -> bytes:
    return f"{rank}│ ".encode()


async def alike(moment: Shown) -> Alike:
    return Alike(asyncio.get_running_loop(), moment, together)


async def test_the_same_error_of_several_is_shown_once() -> None:
    shown = Shown()
    errors = await alike(shown)
    for rank in (2, 0, 1):
        errors.write(rank, mine(rank), [b"before", *TRACE[:1]])
        errors.write(rank, mine(rank), TRACE[1:])
    assert shown.lines == ["2│ before".encode(), "0│ before".encode(), "1│ before".encode()]
    errors.flush()
    assert shown.lines[3:] == ["ranks 0–2│ ".encode() + line for line in TRACE]
    errors.flush()
    assert len(shown.lines) == 6


async def test_what_torch_puts_before_it_is_no_difference() -> None:
    shown = Shown()
    errors = await alike(shown)
    for rank in range(2):
        errors.write(rank, mine(rank), [f"[rank{rank}]: ".encode() + line for line in TRACE])
    errors.write(2, mine(2), [b"[rank2]: " + TRACE[0], b"[rank2]: KeyError: 1"])
    errors.flush()
    assert shown.lines[:3] == ["ranks 0, 1│ ".encode() + line for line in TRACE]
    assert shown.lines[3:] == [mine(2) + b"[rank2]: " + TRACE[0], mine(2) + b"[rank2]: KeyError: 1"]


async def test_other_output_is_shown_at_once_and_errors_after_a_moment() -> None:
    shown = Shown()
    errors = await alike(shown)
    errors.write(0, mine(0), [b"a warning"])
    assert shown.lines == [mine(0) + b"a warning"]
    shown.fresh.clear()
    errors.write(0, mine(0), TRACE)
    await shown.fresh.wait()
    assert len(shown.lines) == 4
    errors.write(0, mine(0), [b"and goes on"])
    assert shown.lines[4:] == [mine(0) + b"and goes on"]


async def test_little_is_held_back() -> None:
    shown = Shown()
    errors = await alike(shown)
    errors.write(0, mine(0), TRACE[:1])
    errors.write(0, mine(0), [b"more"] * 500)
    assert len(shown.lines) == 501
    errors.flush()


@given(st.sets(st.integers(0, 40), min_size=1))
def test_ranges_say_which_numbers(ranks: set[int]) -> None:
    text = ranges(sorted(ranks))
    said: set[int] = set()
    for part in text.split(", "):
        first, _, last = part.partition("–")
        said |= set(range(int(first), int(last or first) + 1))
    assert said == ranks
    assert len(text.split(", ")) == 1 or "–" in text or len(ranks) == len(text.split(", "))


def test_two_in_a_row_are_named() -> None:
    assert (ranges([0, 1]), ranges([0, 1, 2]), ranges([3])) == ("0, 1", "0–2", "3")
