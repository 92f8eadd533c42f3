"""The files of --log-dir."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from aiodist.base.errors import UsageError
from aiodist.launch.config import LaunchConfig
from aiodist.launch.worker.logs import LogFiles
from tests.conftest import HandOver


@pytest.fixture
def logs(tmp_path: Path) -> LogFiles:
    files = LogFiles(LaunchConfig(("true",), log_dir=str(tmp_path), redirects={0: 3}), "a/b", "r", 0.0)
    files.prepare(1, 0)
    return files


def test_what_is_written_is_appended(logs: LogFiles) -> None:
    for text in (b"one", b"two"):
        handle = logs.open(1, 0, "stdout.log")
        assert not os.get_inheritable(handle)
        os.write(handle, text)
        os.close(handle)
    assert Path(logs.path(1, 0, "stdout.log")).read_bytes() == b"onetwo"


def test_another_users_link_is_not_followed(logs: LogFiles, tmp_path: Path, hand_over: HandOver) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    link = Path(logs.path(1, 0, "stdout.log"))
    link.symlink_to(precious)
    hand_over(link)
    with pytest.raises(UsageError, match=r"cannot write logs to .* is a link that user"):
        logs.open(1, 0, "stdout.log")


def test_want_of_descriptors_is_said(logs: LogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_args: object, **_more: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(UsageError, match=r"cannot write logs to .*no file descriptor left.* ulimit -n"):
        logs.open(1, 0, "stdout.log")
