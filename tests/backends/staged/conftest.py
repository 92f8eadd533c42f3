"""A stand-in for CuPy in its place."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.backends.cuda.stand_in import Devices


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[Devices]:
    """What `import cupy` finds."""
    made = Devices()
    for name, module in made.modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    yield made
    made.close()
