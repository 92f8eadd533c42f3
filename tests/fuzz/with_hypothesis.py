"""The engine Hypothesis: it draws the edits, and shrinks what fails to the fewest."""

from __future__ import annotations

import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from tests.fuzz.engine import Outcome, judging
from tests.fuzz.target import Target

Edit = tuple[int, int, bytes]
"""(where, how many bytes go, what comes in their place)."""


def edited(data: bytes, edits: list[Edit]) -> bytes:
    """The bytes with the edits made, one after the other."""
    for at, gone, new in edits:
        at %= len(data) + 1
        data = data[:at] + new + data[at + gone :]
    return data


def edits_of(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """A valid input with a few edits."""
    edit = st.tuples(st.integers(0, 1 << 16), st.integers(0, 9), st.binary(max_size=9))
    return st.builds(edited, st.sampled_from(seeds), st.lists(edit, max_size=4))


def fuzz(target: Target, inputs: int, seed: int, *, say: Callable[[Outcome], None] | None = None) -> Outcome:
    """As `engine.fuzz`, with at most `inputs` examples (fewer where it runs out of different ones)."""
    outcome = Outcome(target.name)
    start = time.monotonic()
    with judging(target, outcome) as judge:

        @seeded(seed)
        @settings(
            max_examples=inputs,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        @given(edits_of(target.seeds()))
        def check(data: bytes) -> None:
            wrong = judge(data)
            if wrong is not None:
                raise wrong

        try:
            check()
        except Exception:
            if not outcome.crashes:
                raise
    outcome.seconds = time.monotonic() - start
    return outcome
