"""Files and folders that nobody else can have put in the way."""

from __future__ import annotations

import errno
import os
import stat
import struct
from pathlib import Path

import pytest

from aiodist.base.environment import files
from aiodist.base.environment.files import Folder, UntrustedError, check_own, open_file, others_may_write
from aiodist.base.environment.secret import given_secret
from aiodist.base.errors import UsageError
from aiodist.rendezvous.jobs import JobSecrets
from tests.conftest import HandOver


def content(handle: int) -> bytes:
    with os.fdopen(handle, "rb") as file:
        return file.read()


# Files by their path.


def test_a_plain_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    made = open_file(tmp_path / "sub" / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    assert stat.S_IMODE(os.fstat(made).st_mode) == 0o640
    assert not os.get_inheritable(made)
    os.write(made, b"text")
    os.close(made)
    monkeypatch.chdir(tmp_path)
    for path in ("sub/new", "./sub/../sub/new", tmp_path / "sub" / "new"):
        assert content(open_file(path)) == b"text"
    for path, wrong in (("no/new", FileNotFoundError), ("sub/none", FileNotFoundError)):
        with pytest.raises(wrong):
            open_file(path)
    with pytest.raises(NotADirectoryError):
        open_file("sub/new/more")


def test_folders_that_may_be_passed_but_not_listed(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "file").write_bytes(b"text")
    (tmp_path / "closed").chmod(0o100)
    assert content(open_file(tmp_path / "closed" / "file")) == b"text"
    (tmp_path / "closed").chmod(0o700)


def test_own_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "real" / "sub" / "file").write_bytes(b"text")
    links = {
        "absolute": tmp_path / "real",
        "relative": Path("real/sub/.."),
        "of a link": Path("relative"),
        "to the file": Path("of a link/sub/file"),
    }
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    for name in ("absolute/sub/file", "relative/sub/file", "of a link/sub/file", "to the file"):
        assert content(open_file(tmp_path / name)) == b"text"
    (tmp_path / "to nothing").symlink_to("real/new")
    os.close(open_file(tmp_path / "to nothing", os.O_WRONLY | os.O_CREAT))
    assert (tmp_path / "real" / "new").exists()
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        open_file(tmp_path / "circle")


@pytest.mark.parametrize("name", ["link/file", "file link"])
def test_links_of_others_are_not(name: str, tmp_path: Path, hand_over: HandOver) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").touch()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file link").symlink_to("real/file")
    hand_over(tmp_path / name.partition("/")[0])
    with pytest.raises(UntrustedError, match="on its path is a link that user") as caught:
        open_file(tmp_path / name)
    assert caught.value.strerror == str(caught.value)


@pytest.mark.parametrize("part", ["file", "folder"])
def test_a_link_that_is_made_after_the_look_is_not_followed(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is looked at, and opened a moment later; another user may be faster."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "file").write_bytes(b"keep")
    shared = tmp_path / "shared"
    shared.mkdir()
    look, path = files._trusted_link, shared / ("file" if part == "file" else "folder/file")

    def late(name: str, folder: int) -> Path | None:
        found = look(name, folder)
        if name == part:
            (shared / part).symlink_to(private / "file" if part == "file" else private)
        return found

    monkeypatch.setattr(files, "_trusted_link", late)
    for flags in (os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        (shared / part).unlink(missing_ok=True)
        with pytest.raises(OSError) as told:
            os.close(open_file(path, flags))
        assert told.value.errno in (errno.ELOOP, errno.ENOTDIR)
    assert (private / "file").read_bytes() == b"keep"


def test_users_whom_a_namespace_does_not_know_are_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a user namespace '/' may be such a one's, and so is every unknown user's link."""
    proc = Path("/proc/sys/kernel/overflowuid")
    unknown = int(proc.read_text()) if proc.exists() else 65534
    for owner, trusted in ((12345, True), (unknown, False)):
        with monkeypatch.context() as patched:
            patched.setattr(os, "stat", lambda path, owner=owner: facts(0o40755, owner, 0))
            found = [files._is_trusted(user) for user in (0, os.geteuid(), owner, 12346)]
        assert found == [True, True, trusted, False]


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    handle = open_file(tmp_path / "pipe")
    assert stat.S_ISFIFO(os.fstat(handle).st_mode)
    os.close(handle)


# Whose it is.


def facts(mode: int, user: int, group: int) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, user, group, 0, 0, 0, 0))


def test_own_and_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.geteuid()
    check_own(facts(0o100644, me, 12345), -1)
    with pytest.raises(
        UntrustedError, match=f"it belongs to user {me + 1}, and this process runs as user {me}"
    ):
        check_own(facts(0o100600, me + 1, 12345), -1)
    for mode in (0o100660, 0o100602, 0o040777, 0o041777):
        with pytest.raises(UntrustedError, match=r"others may write to it \(mode [01]\d{3}\)"):
            check_own(facts(mode, me, 12345), -1)
    monkeypatch.setattr(files, "_is_private_group", lambda group: group == 12345)
    check_own(facts(0o100660, me, 12345), -1)
    assert others_may_write(facts(0o100662, me, 12345), -1)
    assert others_may_write(facts(0o100660, me, 12346), -1)


def test_a_list_of_users_who_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the mode shows as the group's right is another user's then, be the group one of one."""
    monkeypatch.setattr(files, "_is_private_group", lambda group: True)
    file, folder = tmp_path / "secret", tmp_path / "d"
    file.write_bytes(b"s" * 32)
    folder.mkdir()
    folder.chmod(0o770)
    file.chmod(0o660)
    assert given_secret({"AIODIST_SECRET_FILE": str(file)}) == b"s" * 32
    Folder.open(folder).close()
    JobSecrets(folder)
    for path, right in ((file, 6), (folder, 7)):
        allow(path, 4711, right)
    with pytest.raises(UsageError, match="can be written by others"):
        given_secret({"AIODIST_SECRET_FILE": str(file)})
    with pytest.raises(UntrustedError, match=r"others may write to it \(mode 0770\)"):
        Folder.open(folder)
    with pytest.raises(UsageError, match="others may write to"):
        JobSecrets(folder)
    file.chmod(0o640)  # which bounds the list
    assert given_secret({"AIODIST_SECRET_FILE": str(file)}) == b"s" * 32


def allow(path: Path, user: int, right: int) -> None:
    """Give a user a right by a list (POSIX ACL); skips where the file system has none."""
    nobody = 0xFFFFFFFF
    entries = ((1, right, nobody), (2, right, user), (4, 0, nobody), (16, right, nobody), (32, 0, nobody))
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(path, "system.posix_acl_access", value)
    except (OSError, AttributeError) as error:
        pytest.skip(f"no lists of users here: {error}")


def test_a_group_of_one_is_known_by_name_and_members(monkeypatch: pytest.MonkeyPatch) -> None:
    import grp
    import pwd
    from types import SimpleNamespace as Entry

    groups = {
        1: Entry(gr_name="me", gr_mem=[]),
        2: Entry(gr_name="team", gr_mem=[]),
        3: Entry(gr_name="me", gr_mem=["other"]),
    }
    monkeypatch.setattr(grp, "getgrgid", lambda number: groups[number])
    for mine, expected in ((1, True), (2, False), (3, False), (4, False)):
        monkeypatch.setattr(pwd, "getpwuid", lambda user, mine=mine: Entry(pw_name="me", pw_gid=mine))
        assert files._is_private_group(mine) is expected
    assert not files._is_private_group(1), "it is not this user's"


# Folders.


def test_a_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    with Folder.open(tmp_path / "d", make=True) as folder, folder.folder("sub", make=True) as sub:
        assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "d" / "sub").stat().st_mode) == 0o700
        handle = sub.fresh("file")
        os.write(handle, b"text")
        assert stat.S_IMODE(os.fstat(handle).st_mode) == 0o600
        os.close(handle)
        assert sub.names() == ["file"]
        assert (sub.read("file"), sub.size("file")) == (b"text", 4)
        sub.rename("file", "other")
        assert (sub.has("file"), sub.has("other")) == (False, True)
        sub.sync()
        sub.remove("other")
        sub.remove("other")
        assert sub.names() == []
        assert (folder.path, sub.path) == (tmp_path / "d", tmp_path / "d" / "sub")
    folder.close()
    with pytest.raises(FileNotFoundError):
        Folder.open(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        Folder.open(tmp_path / "no" / "d", make=True)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        Folder.open(tmp_path / "file", make=True)


def test_an_entry_is_where_the_folder_was_found_and_not_where_its_path_leads_by_now(tmp_path: Path) -> None:
    with Folder.open(tmp_path / "d", make=True) as folder:
        (tmp_path / "d").rename(tmp_path / "moved")
        (tmp_path / "d").mkdir()
        os.close(folder.fresh("file"))
    assert (tmp_path / "moved" / "file").exists()
    assert not (tmp_path / "d" / "file").exists()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused(mode: int, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d").chmod(mode)
    if mode == 0o770 and files._is_private_group((tmp_path / "d").stat().st_gid):
        pytest.skip("this user's group is its own")
    with pytest.raises(UntrustedError, match="others may write to it"):
        Folder.open(tmp_path / "d")


def test_a_folder_of_another_user_is_refused(tmp_path: Path, hand_over: HandOver) -> None:
    (tmp_path / "d").mkdir()
    hand_over(tmp_path / "d")
    with pytest.raises(UntrustedError, match="it belongs to user"):
        Folder.open(tmp_path / "d", make=True)


def test_what_is_no_file_of_its_own_is_refused(tmp_path: Path, hand_over: HandOver) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"text")
    with Folder.open(tmp_path / "d", make=True) as folder:
        (tmp_path / "d" / "link").symlink_to(precious)
        os.link(precious, tmp_path / "d" / "hard")
        os.mkfifo(tmp_path / "d" / "pipe")
        for name, said in (
            ("link", "is a link"),
            ("pipe", "not a regular file"),
            ("hard", "has another name, too"),
        ):
            with pytest.raises(UntrustedError, match=f"^{name} in it .*{said}"):
                folder.file(name, os.O_RDWR | os.O_CREAT)
        assert folder.read("hard") == b"text"
        os.close(folder.fresh("link"))  # takes the link's place
        assert not (tmp_path / "d" / "link").is_symlink()
        hand_over(precious)
        with pytest.raises(UntrustedError, match=r"^hard in it belongs to user"):
            folder.read("hard")
    assert precious.read_bytes() == b"text"
