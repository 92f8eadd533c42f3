"""What tests of observing share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def cut_name() -> Iterator[None]:
    """This process has the name of a script in Cyrillic, as the kernel cuts it: within a character."""
    comm = Path("/proc/self/comm")
    before = comm.read_bytes()
    comm.write_bytes("обучение".encode()[:15])
    yield
    comm.write_bytes(before.rstrip(b"\n"))
