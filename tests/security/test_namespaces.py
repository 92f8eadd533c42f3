"""Users whom a user namespace does not know, where a process runs under the number that stands for them.

To that process it looks as if it were they; so it trusts nobody by that number, itself included.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from aiodist.base.environment import user
from aiodist.base.environment.files import Folder, UntrustedError, open_file
from aiodist.base.errors import UsageError
from aiodist.net.local_socket import connect_to_store, is_other_user, listen_local
from aiodist.net.users import why_not
from aiodist.rendezvous import FileStore
from aiodist.rendezvous.jobs import JobSecrets

HOST = "127.0.0.1"
ANYBODY = "who may be anybody: this user namespace does not know all users"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="user namespaces are Linux's")


@pytest.fixture
def as_unknown_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of this process's user is that of unknown users, and there are some."""
    monkeypatch.setattr(user, "overflow", os.geteuid)
    monkeypatch.setattr(user, "_knows_all", lambda: False)


@pytest.mark.usefixtures("as_unknown_users")
async def test_they_do_not_join_and_are_not_believed() -> None:
    """Whose end of a connection it is decides where a job has no secret."""
    with (
        socket.create_server((HOST, 0)) as listener,
        socket.create_connection(listener.getsockname()) as dialed,
    ):
        accepted, _ = listener.accept()
        with accepted:
            for one in (dialed, accepted):
                assert "it runs under another user, and this job has no secret" in why_not(one, False)
                assert why_not(one, True) == ""
        port = listener.getsockname()[1]
        short = listen_local(HOST, port)
        assert short is not None
        with short:
            reached, _ = await connect_to_store(HOST, port)
            assert reached.family == socket.AF_INET, "not by the local socket"
            reached.close()
    one, other = socket.socketpair()
    with one, other:
        assert is_other_user(one)


@pytest.mark.usefixtures("as_unknown_users")
async def test_their_files_are_not_one_s_own(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    (tmp_path / "plain").touch()
    with pytest.raises(UntrustedError, match=ANYBODY):
        Folder.open(tmp_path / "d")
    with pytest.raises(UntrustedError, match=ANYBODY):
        Folder.open(tmp_path / "d", owner=os.geteuid())  # the owner of a home may be anybody, too
    with pytest.raises(UsageError, match=ANYBODY):
        await FileStore.open(tmp_path / "plain", "job", b"", 10)
    if os.geteuid():  # root's links and secrets are good for everybody
        (tmp_path / "link").symlink_to("d")
        with pytest.raises(UntrustedError, match="on its path is a link"):
            open_file(tmp_path / "link")
        with pytest.raises(UsageError, match="belongs to another user"):
            JobSecrets(tmp_path / "d")
