"""Where a job's secret comes from, and who is let in without one."""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aiodist.base.environment import (
    check_open_port,
    files,
    given_secret,
    home_secret,
    is_loopback,
    secret,
    secret_origin,
)
from aiodist.base.errors import UsageError
from tests.conftest import HandOver


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), **more}


def test_what_is_given_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("from a file\n")
    path.chmod(0o600)
    from_file = environ(tmp_path, AIODIST_SECRET_FILE=str(path))
    assert secret(from_file | {"AIODIST_SECRET": "given"}) == b"given"
    assert secret(from_file) == given_secret(from_file) == b"from a file"
    assert not (tmp_path / ".aiodist").exists()


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        (None, 0o600, "cannot be read"),
        ("\n", 0o600, "is empty"),
        ("\0", 0o600, "holds zero bytes"),
        ("a secret of which a part is lost\0\0\n", 0o600, "holds zero bytes"),
        ("x", 0o604, "can be read by other users"),
        ("x", 0o602, "can be written by others"),
        ("x", 0o660, "can be written by others"),
    ],
)
def test_a_file_that_cannot_be_trusted(
    tmp_path: Path, content: str | None, mode: int, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_is_private_group", lambda group: False)
    path = tmp_path / "secret"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(UsageError, match=problem):
        secret(environ(tmp_path, AIODIST_SECRET_FILE=str(path)))


def test_a_file_that_another_user_has_put_there(tmp_path: Path, hand_over: HandOver) -> None:
    (tmp_path / "secret").write_text("known to them")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "link").symlink_to("secret")
    (tmp_path / "their link").symlink_to("secret")
    assert given_secret({"AIODIST_SECRET_FILE": str(tmp_path / "link")}) == b"known to them"
    hand_over(tmp_path / "their link")
    with pytest.raises(UsageError, match=r"cannot be read \('their link' on its path is a link that user"):
        given_secret({"AIODIST_SECRET_FILE": str(tmp_path / "their link")})
    hand_over(tmp_path / "secret")
    with pytest.raises(UsageError, match="secret belongs to another user"):
        given_secret({"AIODIST_SECRET_FILE": str(tmp_path / "secret")})


def test_a_fifo_is_no_file_and_nobody_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / ".aiodist").mkdir(mode=0o700)
    os.mkfifo(tmp_path / ".aiodist" / "secret", 0o600)
    with pytest.raises(UsageError, match="is not a regular file"):
        home_secret(environ(tmp_path))
    with pytest.raises(UsageError, match="is not a file"):
        given_secret({"AIODIST_SECRET_FILE": str(tmp_path / ".aiodist" / "secret")})


def test_bytes_that_are_no_text() -> None:
    assert given_secret({"AIODIST_SECRET": os.fsdecode(b"caf\xe9")}) == b"caf\xe9"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which needs root")
def test_a_folder_in_a_home_of_all_is_not_another_users(tmp_path: Path, hand_over: HandOver) -> None:
    """As in /tmp: who made ~/.aiodist could have it lead to what everybody knows."""
    (tmp_path / "known").write_text("known to all")
    (tmp_path / "known").chmod(0o600)
    folder = tmp_path / ".aiodist"
    folder.mkdir(mode=0o700)
    (folder / "secret").symlink_to(tmp_path / "known")
    with pytest.raises(UsageError, match="secret in it is a link"):
        home_secret(environ(tmp_path))
    hand_over(folder)
    with pytest.raises(UsageError, match="it belongs to user"):
        home_secret(environ(tmp_path))


def test_the_home_s_is_made_once_and_kept(tmp_path: Path) -> None:
    first = secret(environ(tmp_path))
    assert len(first) == 64 and secret(environ(tmp_path)) == first
    [path] = (tmp_path / ".aiodist").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_ranks_that_start_together_make_one(tmp_path: Path) -> None:
    code = "import os\nfrom aiodist.base.environment import secret\nprint(secret(os.environ).decode())"
    env = {key: value for key, value in os.environ.items() if not key.startswith("AIODIST")}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=env | environ(tmp_path),
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = {one.communicate(timeout=60)[0] for one in started}
    assert len(said) == 1 and len(said.pop().strip()) == 64
    assert [path.name for path in (tmp_path / ".aiodist").iterdir()] == ["secret"]


@pytest.mark.parametrize(
    ("mode", "content", "problem"),
    [(0o640, "x", "open to others"), (0o600, "\n", "empty"), (0o600, "\0", "holds zero bytes")],
)
def test_the_home_s_is_not_believed_blindly(tmp_path: Path, mode: int, content: str, problem: str) -> None:
    path = tmp_path / ".aiodist" / "secret"
    path.parent.mkdir()
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(UsageError, match=problem):
        secret(environ(tmp_path))


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which needs root")
def test_another_user_s_secret_in_a_home_of_all(tmp_path: Path) -> None:
    path = tmp_path / ".aiodist" / "secret"
    path.parent.mkdir()
    path.write_text("planted")
    path.chmod(0o600)
    os.chown(path, 12345, 12345)
    with pytest.raises(UsageError, match="secret in it belongs to user 12345"):
        secret(environ(tmp_path))
    os.chown(tmp_path, 12345, 12345)  # their own home, as under sudo -E
    assert secret(environ(tmp_path)) == b"planted"


def test_no_home_no_secret(tmp_path: Path) -> None:
    """There is none where there is no home, where it cannot be written to, or where that is a file."""
    (tmp_path / "file").write_text("")
    for home in ("", "relative", str(tmp_path / "nowhere"), str(tmp_path / "file"), "/proc"):
        assert secret({"HOME": home}) == home_secret({"HOME": home}) == b""
    assert secret({}) == b""


def test_a_home_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(code: int) -> None:
        def failing(*args: object, **more: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "mkdir", failing)

    for code in (errno.EACCES, errno.EROFS, errno.EPERM):
        refuse(code)
        assert secret(environ(tmp_path)) == b""


@pytest.mark.parametrize(
    "code", [errno.EMFILE, errno.ENFILE, errno.EIO, errno.EACCES, errno.ENOSPC, errno.ESTALE, errno.ENOMEM]
)
def test_trouble_is_no_absence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A job must not go on without a secret because a descriptor, a right or a disk was missing."""

    plainly = os.open

    def failing(path: str, flags: int, *args: int, **more: int) -> int:
        if path == "secret" or flags & os.O_CREAT:
            raise OSError(code, os.strerror(code))
        return plainly(path, flags, *args, **more)

    with monkeypatch.context() as patched:  # there is none, and it cannot be made
        patched.setattr(os, "open", failing)
        with pytest.raises(UsageError, match=re.escape(os.strerror(code))):
            secret(environ(tmp_path))
    assert list((tmp_path / ".aiodist").iterdir()) == []
    assert secret(environ(tmp_path))
    with monkeypatch.context() as patched:  # there is one, and it cannot be read
        patched.setattr(os, "open", failing)
        with pytest.raises(UsageError, match=r"cannot be read or made .*AIODIST_SECRET"):
            secret(environ(tmp_path))


def test_a_home_without_links_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*args: object, **more: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", link)
    assert secret(environ(tmp_path)) == b""
    assert list((tmp_path / ".aiodist").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which needs root")
def test_a_home_of_another_user_that_is_closed(tmp_path: Path) -> None:
    """HOME of root in a process of nobody: its secret is there, and is not for us."""
    code = (
        "import os; from aiodist.base.environment import secret\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(secret(os.environ))"
    )
    (tmp_path / ".aiodist").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    env = os.environ | {"HOME": str(tmp_path), "AIODIST_SECRET": ""}
    result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "cannot be read or made (Permission denied)" in result.stderr


def test_where_it_comes_from_in_words(tmp_path: Path) -> None:
    assert secret_origin(environ(tmp_path, AIODIST_SECRET="hush")) == "set (AIODIST_SECRET)"
    assert secret_origin(environ(tmp_path, AIODIST_SECRET_FILE="/f")) == "set (AIODIST_SECRET_FILE)"
    path = tmp_path / ".aiodist" / "secret"
    assert secret_origin(environ(tmp_path)) == f"none yet: {path} is made on first use"
    assert not path.exists()
    key = secret(environ(tmp_path)).decode()
    assert secret_origin(environ(tmp_path)) == f"set ({path})"
    assert key not in secret_origin(environ(tmp_path))
    for home in ({}, {"HOME": str(tmp_path / "nowhere")}):
        assert secret_origin(home) == "none: loopback only"


def test_the_open_port() -> None:
    check_open_port("10.0.0.1", b"secret", False)
    check_open_port("10.0.0.1", b"", True)
    check_open_port("127.0.0.1", b"", False)
    with pytest.raises(UsageError, match=r"refused to serve 10\.0\.0\.1 without a secret.*AIODIST_SECRET"):
        check_open_port("10.0.0.1", b"", False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "[::1]", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "0.0.0.0", "box", "", "fe80::1%eth0"])
def test_no_loopback(host: str) -> None:
    assert not is_loopback(host)
