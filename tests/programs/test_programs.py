"""Some of what `python -m tests.programs` runs by the thousand."""

from __future__ import annotations

import pytest

from aiodist.backends.host.local.hub import supported
from aiodist.transport.shm import available
from tests.levels import COSTLY, few
from tests.programs.__main__ import OF, main
from tests.programs.plan import LAYOUTS, LIMITS, WORLDS
from tests.programs.run import run

EACH = 10
"""Programs of each kind of job."""


@pytest.mark.slow(COSTLY)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("limits", few(range(len(LIMITS)), [1]))
@pytest.mark.parametrize(
    "layout", few(range(len(LAYOUTS)), [2, 6, 9]), ids=lambda layout: f"{layout}-{LAYOUTS[layout]}"
)
async def test_programs(layout: int, limits: int) -> None:
    if not (available() and supported()):
        pytest.skip("ranks of one process share memory on Linux, with the compiled engine")
    first = limits * len(LAYOUTS) + layout
    violations = await run(range(first, first + EACH * WORLDS, WORLDS))
    assert not violations, "\n".join(
        f"python -m tests.programs --seed {violation.seed} --verbose: {violation.words}"
        for violation in violations
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", few(OF, ["receives", "services"]))
def test_the_command(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--of", kind, "--programs", "1"]) == 0
    assert capsys.readouterr().out.startswith("1 programs, 0 wrong")
