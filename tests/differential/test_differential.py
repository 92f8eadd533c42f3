"""Random programs on torch's gloo and on aiodist: the same calls, in the same processes, the same results.

Every outcome is compared with NumPy's, and with gloo's where gloo is right: `worker.not_comparable` and
`worker.is_partial` say where it is not, and why. Tensors lie in memory in many ways for aiodist; gloo gets
contiguous ones, since it reads and writes others as though they were. The full run is

    AIODIST_PROGRAMS=2000 pytest tests/differential
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aiodist.testing.outcome import check
from aiodist.testing.ranks import launch
from tests.levels import COSTLY, few

pytest.importorskip("torch")

PROGRAMS = int(os.environ.get("AIODIST_PROGRAMS", "60"))
SEED = int(os.environ.get("AIODIST_SEED", "1"))
SIZES = (2, 3, 4, 5)
ROOT = Path(__file__).parents[2]


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", few(SIZES, [2]))
async def test_the_same_programs_give_the_same_results(size: int, capfd: pytest.CaptureFixture[str]) -> None:
    share = -(-PROGRAMS // len(SIZES))
    outcomes = await launch(
        ["-W", "ignore", "-m", "tests.differential.worker", str(SEED * 10 + size), str(share)],
        size,
        timeout=550,
        env={"PYTHONPATH": str(ROOT), "AIODIST_TRANSPORT": ("tcp", "shm")[size % 2]},
    )
    check(outcomes, {})
    for outcome in outcomes:
        print(outcome.output.strip())
        assert f"{share} programs" in outcome.output
