"""torch, where it is installed."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def distributed() -> Any:
    """torch's module. Its libuv opens one pipe for the process's life, with the first store."""
    module: Any = pytest.importorskip("torch.distributed", reason="torch is not installed")
    module.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return module
