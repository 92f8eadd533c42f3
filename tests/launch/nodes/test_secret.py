"""Where the job's secret comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiodist.base.errors import UsageError
from aiodist.launch.nodes.secret import job_secret


def test_given(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("from a file\n")
    path.chmod(0o600)
    assert job_secret({"AIODIST_SECRET": "x", "AIODIST_SECRET_FILE": str(path)}, 2, "h") == "x"
    assert job_secret({"AIODIST_SECRET_FILE": str(path)}, 2, "h") == "from a file"


def test_one_node_gets_a_new_one_each_time() -> None:
    assert job_secret({}, 1, "127.0.0.1") != job_secret({}, 1, "127.0.0.1")


def test_several_nodes_share_the_homes(tmp_path: Path) -> None:
    first = job_secret({"HOME": str(tmp_path)}, 2, "10.0.0.1")
    assert len(first) == 64
    assert job_secret({"HOME": str(tmp_path)}, 2, "10.0.0.1") == first
    [path] = (tmp_path / ".aiodist").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_open_or_empty_secret_in_the_home_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ".aiodist" / "secret"
    path.parent.mkdir()
    path.write_text("x")
    path.chmod(0o640)
    with pytest.raises(UsageError, match="open to others"):
        job_secret({"HOME": str(tmp_path)}, 2, "h")
    path.write_text("\n")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="is empty"):
        job_secret({"HOME": str(tmp_path)}, 2, "h")
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not text"):
        job_secret({"HOME": str(tmp_path)}, 2, "h")


def test_without_a_home_only_loopback(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path / "no" / "home")}
    assert job_secret(environ, 2, "127.0.0.1") == ""
    for yes in ("1", "true"):  # the words that workers take for yes, too
        assert job_secret({**environ, "AIODIST_ALLOW_INSECURE": yes}, 2, "10.0.0.1") == ""
    for no in ({}, {"AIODIST_ALLOW_INSECURE": "0"}):
        with pytest.raises(UsageError, match="no common secret"):
            job_secret({**environ, **no}, 2, "10.0.0.1")
