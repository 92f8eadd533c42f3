"""Folders of logs as ranks tell them: they may say anything."""

from __future__ import annotations

import pytest

from aiodist.observe.dashboard.logs import Logs
from tests.observe.made import a_rank


@pytest.mark.parametrize("folder", ["/logs\0", "/\ud800", "/" + "x" * 5000, "/\x1b[2J", "logs", 5])
def test_a_folder_that_can_be_none(folder: object) -> None:
    logs = Logs("host-a")
    logs.see([a_rank(about={"log_dir": folder, "output": "attempt_0/0"})])
    assert logs.to_json()["outputs"] == []
