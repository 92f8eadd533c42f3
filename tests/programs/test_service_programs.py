"""Some of what `python -m tests.programs --of services` runs by the thousand."""

from __future__ import annotations

import pytest

from tests.levels import few
from tests.programs.service_run import run

EACH = 10


@pytest.mark.timeout(120)
@pytest.mark.parametrize("first", few(range(0, 100, EACH), [0]))
def test_programs(first: int) -> None:
    violations = run(range(first, first + EACH))
    assert not violations, "\n".join(
        f"python -m tests.programs --of services --seed {violation.seed}: {violation.words}"
        for violation in violations
    )
