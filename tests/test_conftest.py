"""What watches every test sees what it is there for."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from tests.conftest import watched

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.parametrize("loop", LOOPS)
def test_an_error_that_a_loop_swallowed(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ValueError("unseen")

    async def main() -> None:
        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0)

    with (
        pytest.raises(AssertionError, match=r"errors that the loop swallowed: .*unseen"),
        watched(monkeypatch),
        asyncio.Runner(loop_factory=LOOPS[loop]) as runner,
    ):
        runner.run(main())
