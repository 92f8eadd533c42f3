"""Another user of this host who has put links, files and folders where a store looks for its own.

What they lead to is never written, made or read, and one line says what is wrong.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from aiodist.base.errors import UsageError
from aiodist.cli.main import main
from aiodist.rendezvous import FileStore, StoreServer, TcpStore
from aiodist.rendezvous.durable import committer
from aiodist.rendezvous.durable.data_folder import DataFolder
from aiodist.rendezvous.jobs import JobSecrets
from aiodist.rendezvous.machine import StoreMachine
from tests.conftest import HandOver

TEXT = b"of root, and nobody else's business"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of this user's that nobody may touch."""
    path = tmp_path / "precious"
    path.write_bytes(TEXT)
    return path


def links_to(folder: Path, precious: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).symlink_to(precious)


# `aiodist store --data`


def test_a_folder_of_another_user_is_no_place_for_a_store(
    tmp_path: Path, precious: Path, hand_over: HandOver, capsys: pytest.CaptureFixture[str]
) -> None:
    """The audit's attack: the lock of the folder led to a file of root's, which was truncated."""
    links_to(tmp_path / "d", precious, "lock")
    hand_over(tmp_path / "d")
    assert main(["store", "--port", "0", "--data", str(tmp_path / "d")]) == 2
    said = capsys.readouterr().err
    assert f"the store's folder {tmp_path}/d is not safe (it belongs to user " in said
    assert precious.read_bytes() == TEXT


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_a_folder_that_others_may_write_to_is_none_either(mode: int, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d").chmod(mode)
    with pytest.raises(UsageError, match=r"is not safe \(others may write to it \(mode .*0700"):
        DataFolder.open(tmp_path / "d")
    assert list((tmp_path / "d").iterdir()) == []


@pytest.mark.parametrize("name", ["lock", "identity"])
def test_links_in_the_folder_are_not_followed(name: str, tmp_path: Path, precious: Path) -> None:
    """As where it was open to others once."""
    links_to(tmp_path / "d", precious, name)
    (tmp_path / "d").chmod(0o700)
    with pytest.raises(UsageError, match=rf"is not safe \({name} in it is a link"):
        DataFolder.open(tmp_path / "d")
    assert precious.read_bytes() == TEXT


def test_what_is_to_be_written_takes_the_place_of_a_link(tmp_path: Path, precious: Path) -> None:
    links_to(tmp_path / "d", precious, ".identity.new")
    (tmp_path / "d").chmod(0o700)
    DataFolder.open(tmp_path / "d").close()
    assert precious.read_bytes() == TEXT
    assert not (tmp_path / "d" / "identity").is_symlink()


def test_a_hard_link_is_not_written_to(tmp_path: Path, precious: Path) -> None:
    (tmp_path / "d").mkdir(mode=0o700)
    os.link(precious, tmp_path / "d" / "lock")
    with pytest.raises(UsageError, match=r"is not safe \(lock in it has another name, too"):
        DataFolder.open(tmp_path / "d")
    assert precious.read_bytes() == TEXT


@pytest.mark.parametrize("name", ["jobs", "jobs/job"])
def test_folders_in_it_are_folders_and_its_own(name: str, tmp_path: Path, hand_over: HandOver) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    DataFolder.open(tmp_path / "d").close()
    path = tmp_path / "d" / name
    if path.exists():
        path.rmdir()
    path.symlink_to(target)
    with pytest.raises(Exception, match=r"Not a directory|Too many levels"):
        recover(tmp_path / "d")
    path.unlink()
    path.mkdir()
    hand_over(path)
    with pytest.raises(Exception, match="it belongs to user"):
        recover(tmp_path / "d")
    assert list(target.iterdir()) == []


def recover(folder: Path) -> None:
    data = DataFolder.open(folder)
    try:
        data.recover("job", StoreMachine()).close()
    finally:
        data.close()


@pytest.mark.parametrize("name", ["log-000001", "snapshot-000002", ".log-000002.new"])
def test_files_of_a_store_are_no_links(name: str, tmp_path: Path, precious: Path) -> None:
    recover(tmp_path / "d")
    path = tmp_path / "d" / "jobs" / "job" / name
    path.unlink(missing_ok=True)
    path.symlink_to(precious)
    if name.endswith(".new"):
        recover(tmp_path / "d")  # removed, as what was never complete
        assert not path.is_symlink()
    else:
        with pytest.raises(Exception, match=f"{name} in it is a link|is missing"):
            recover(tmp_path / "d")
    assert precious.read_bytes() == TEXT


def test_the_way_to_the_folder_leads_over_no_other_users_link(tmp_path: Path, hand_over: HandOver) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "way").symlink_to("mine")
    DataFolder.open(tmp_path / "way" / "d").close()  # this user's own link is as good as the folder
    hand_over(tmp_path / "way")
    with pytest.raises(UsageError, match=r"is not safe \('way' on its path is a link that user \d+ made"):
        DataFolder.open(tmp_path / "way" / "e")
    assert not (tmp_path / "mine" / "e").exists()


async def test_a_folder_that_is_exchanged_under_a_running_store_gets_nothing(
    tmp_path: Path, precious: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may rename the folder above cannot make the store write elsewhere."""
    monkeypatch.setattr(committer, "LOG_BYTES", 0)  # each change is one too many for its log
    there = tmp_path / "moved" / "jobs" / "job"
    async with await StoreServer.start("127.0.0.1", 0, "job", b"s", data=tmp_path / "d") as server:
        (tmp_path / "d").rename(tmp_path / "moved")
        links_to(tmp_path / "d", precious, "jobs")
        before = set(there.glob("log-*"))
        async with await TcpStore.connect("127.0.0.1", server.port, "job", b"s", 60) as store:
            await store.set("k", b"v")
        assert len(set(there.glob("log-*")) - before) == 1
    assert precious.read_bytes() == TEXT
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["jobs"]


# `file://`


@pytest.mark.parametrize("exists", [True, False])
async def test_a_rendezvous_file_is_no_other_users_link(
    exists: bool, tmp_path: Path, hand_over: HandOver
) -> None:
    target = tmp_path / "target"
    if exists:
        target.touch()
    (tmp_path / "meet").symlink_to(target)
    hand_over(tmp_path / "meet")
    with pytest.raises(UsageError, match=r"meet is not safe \('meet' on its path is a link that user"):
        await FileStore.open(tmp_path / "meet", "job", b"s", 60)
    assert target.exists() is exists
    assert not exists or target.read_bytes() == b""


async def test_a_rendezvous_file_of_another_user_is_not_believed(tmp_path: Path, hand_over: HandOver) -> None:
    (tmp_path / "meet").write_text('{"host": "192.0.2.1", "port": 1, "store": "00", "on": "elsewhere"}')
    hand_over(tmp_path / "meet")
    with pytest.raises(UsageError, match=r"meet is not safe \(it belongs to user"):
        await FileStore.open(tmp_path / "meet", "job", b"s", 60)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.link(path.with_name("empty"), path)])
async def test_a_rendezvous_file_is_a_file_of_its_own(make: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    make(tmp_path / "meet")
    with pytest.raises(UsageError, match=r"meet is not safe \(it (is not a regular file|has another name)"):
        await FileStore.open(tmp_path / "meet", "job", b"s", 60)
    assert (tmp_path / "empty").read_bytes() == b""


# `--jobs`


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir(mode=0o700)
    (folder / "a").touch(mode=0o600)
    (folder / "a").write_bytes(b"secret of a")
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which needs root")
def test_a_job_that_another_user_has_added_is_none(secrets: Path, hand_over: HandOver) -> None:
    (secrets / "theirs").touch(mode=0o600)
    (secrets / "theirs").write_bytes(b"known to them")
    jobs = JobSecrets(secrets)
    assert jobs.secret_of("theirs") == b"known to them"
    hand_over(secrets / "theirs")
    assert jobs.secret_of("theirs") is None
    with pytest.raises(UsageError, match="theirs belongs to another user"):
        JobSecrets(secrets)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which needs root")
def test_a_job_that_is_another_users_link_is_none(secrets: Path, precious: Path, hand_over: HandOver) -> None:
    precious.chmod(0o600)
    (secrets / "theirs").symlink_to(precious)
    hand_over(secrets / "theirs")
    with pytest.raises(UsageError, match=r"cannot be read .*is a link that user"):
        JobSecrets(secrets)


def test_secrets_as_kubernetes_mounts_them_are_read(tmp_path: Path) -> None:
    """Links of one's own, in a folder where all may write and nobody may rename what is another's."""
    folder = tmp_path / "mounted"
    (folder / "..data-1").mkdir(parents=True)
    (folder / "..data-1" / "a").touch(mode=0o400)
    (folder / "..data-1" / "a").chmod(0o600)
    (folder / "..data-1" / "a").write_bytes(b"secret of a")
    (folder / "..data").symlink_to("..data-1")
    (folder / "a").symlink_to("..data/a")
    folder.chmod(0o1777)
    jobs = JobSecrets(folder)
    assert (jobs.names(), jobs.secret_of("a")) == (["a"], b"secret of a")


def test_a_folder_of_secrets_where_others_may_put_theirs_is_refused(secrets: Path) -> None:
    secrets.chmod(0o777)
    with pytest.raises(UsageError, match=f"others may write to {secrets}"):
        JobSecrets(secrets)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_as_another_user_in_earnest(precious: Path) -> None:
    """A folder in /tmp that user 4711 has made and filled; root starts a store on it."""
    with tempfile.TemporaryDirectory() as name:
        made = Path(name) / "theirs"
        made.mkdir()
        os.chown(made, 4711, 4711)
        made.parent.chmod(0o755)
        for link in ("lock", "identity", "jobs"):
            subprocess.run(["ln", "-s", precious, link], cwd=made, user=4711, group=4711, check=True)
        with pytest.raises(
            UsageError, match=r"is not safe \(it belongs to user 4711, and this process runs as"
        ):
            DataFolder.open(made)
    assert precious.read_bytes() == TEXT
