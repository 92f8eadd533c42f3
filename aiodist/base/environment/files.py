"""Files and folders that nobody else can have put in the way.

A path is followed folder by folder, each held open, so that what was looked at is what is opened. A link in
it counts where root or this user made it; another user's leads to what that one chooses, so it is refused.
All that is done in a `Folder` is done by its descriptor, never by its path, and along no link.

A folder that aiodist chooses is this user's own (`Folder.open`). One that the user has named may be
anybody's, and others may write to it: a project's, or /tmp (`Folder.named`). All that is written there is
made anew, under a name that is free, and then given its own name: so it is in no file that was there before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import sys
from pathlib import Path
from typing import Self

from aiodist.base.environment.user import is_known, is_me, overflow
from aiodist.base.errors import AiodistError, UsageError

_LINKS = 40  # on one path, as in Linux
_SEARCH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC  # no right to list it is needed
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SAFELY = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO would wait for whoever writes to it
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(OSError):
    """A file or folder is another user's, or under another user's control; `strerror` says how."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.strerror = words


def open_file(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """`os.open`, but along no other user's link → the descriptor, which is not inherited.

    Args:
        path: of the file. A FIFO is opened, too, and not waited for: look with `os.fstat` what it is.
        flags: as for `os.open`.
        mode: of a file that is made.

    Raises:
        UntrustedError: a part of the path is another user's link.
        OSError: as `os.open`.
    """
    folder, name = _folder_of(Path(path))
    try:
        return os.open(name, flags | _SAFELY, mode, dir_fd=folder)
    finally:
        os.close(folder)


def check_own(facts: os.stat_result, handle: int, owner: int | None = None) -> None:
    """Refuse what is not this user's alone; root's file is not the user's.

    Args:
        facts: of a file or folder.
        handle: its descriptor.
        owner: another user whose it may be.

    Raises:
        UntrustedError: it belongs to another user, or others may write to it.
    """
    if not _is_of(facts.st_uid, owner):
        raise UntrustedError(whose(facts.st_uid))
    if others_may_write(facts, handle):
        raise UntrustedError(f"others may write to it (mode {stat.S_IMODE(facts.st_mode):04o})")


def whose(user: int) -> str:
    """The reason, as text, why what belongs to a user is refused."""
    if not is_known(user):
        return f"it belongs to user {user}, who may be anybody: this user namespace does not know all users"
    return f"it belongs to user {user}, and this process runs as user {os.geteuid()}"


def read_private(what: str, path: str | os.PathLike[str], *, shared: bool, most: int = -1) -> bytes:
    """Read a file with a secret, if nobody else may have chosen it, may change it, or may read it.

    Args:
        what: what errors call it.
        path: of the file.
        shared: its group may read it.
        most: bytes to read; -1: all; 0: none, since a library reads it by its path.

    Raises:
        UsageError: it is not a regular file, is neither this user's nor root's, or is open to others.
        OSError: as of `open_file`.
    """
    handle = open_file(path)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise UsageError(f"{what} is not a file")
        if not _is_trusted(facts.st_uid):
            raise UsageError(f"{what} belongs to another user", hint="chown it, or remove it")
        if not shared and facts.st_mode & 0o077:
            raise UsageError(f"{what} is open to others", hint=f"chmod 600 {path}")
        if facts.st_mode & stat.S_IROTH:
            raise UsageError(f"{what} can be read by other users", hint=f"chmod 600 {path}")
        if others_may_write(facts, handle):
            raise UsageError(f"{what} can be written by others", hint=f"chmod 600 {path}")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(handle)


def read_file(what: str, path: str | os.PathLike[str], *, trusted: bool) -> bytes:
    """Read a file that everybody may read.

    Args:
        what: what errors call it.
        path: of the file.
        trusted: nobody but this user and root may have written it.

    Raises:
        UsageError: it is not a regular file; it is neither this user's nor root's; others may write to it.
        OSError: as of `open_file`.
    """
    handle = open_file(path)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise UsageError(f"{what} is not a file")
        if trusted and not _is_trusted(facts.st_uid):
            raise UsageError(f"{what} belongs to another user", hint="Name a file of yours, or of root")
        if trusted and others_may_write(facts, handle):
            raise UsageError(f"{what} can be written by others", hint=f"chmod go-w {path}")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(handle)


def others_may_write(facts: os.stat_result, at: int | Path) -> bool:
    """Whether another user may change a file, or what is in a folder; a group of one is no other user.

    Args:
        facts: of the file or folder.
        at: its descriptor, or its path.
    """
    mode = facts.st_mode & _OTHERS_WRITE
    return bool(mode & stat.S_IWOTH or (mode and (not _is_private_group(facts.st_gid) or _has_list(at))))


def write_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file that the user has named, in the place of the one of this user that was there, if any.

    Args:
        path: of the file; its folder must exist, and may be anybody's.
        content: of it; text is written as UTF-8.

    Raises:
        AiodistError: it cannot be written, or what is there is a link, no plain file, or another user's. What
            was there is as it was.
    """
    whole = Path(path).absolute()
    try:
        with Folder.named(whole.parent) as folder:
            folder.replace(whole.name, content)
    except OSError as error:
        raise AiodistError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from None


def make_folders(path: str | os.PathLike[str], mode: int = 0o777) -> None:
    """Make a folder and those above it, where they are missing, along no other user's link.

    Raises:
        OSError: as of `Folder.named`.
    """
    os.close(_reach(Path(path).absolute(), mode))


class Folder:
    """A folder, held open: this user's own (`Folder.open`), or one that the user has named (`Folder.named`).
    Close it.

    Names are those of its entries, never paths.

    Attributes:
        path: where it was found, for people: its entries are reached by the descriptor.
    """

    def __init__(self, path: Path, handle: int, owner: int | None = None, *, own: bool = True) -> None:
        self.path = path
        self._handle = handle
        self._owner = owner
        self._own = own

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, make: bool = False, owner: int | None = None) -> Folder:
        """Open a folder; with `make` it is made where it is missing, for this user alone.

        Args:
            path: of the folder.
            make: whether it is made.
            owner: another user who may own it, and what is in it.

        Raises:
            UntrustedError: it, or a link that leads to it, is another user's, or others may write to it.
            OSError: it cannot be opened or made; the folder above it must exist.
        """
        whole = Path(path).absolute()
        above, name = _folder_of(whole)
        try:
            return cls(whole, _open_own(name, above, make, owner), owner)
        finally:
            os.close(above)

    @classmethod
    def named(cls, path: str | os.PathLike[str], *, make: bool = False) -> Folder:
        """Open a folder that the user has named: whoever owns it, and whoever may write to it.

        Args:
            path: of the folder.
            make: whether it is made, with those above it, where they are missing.

        Raises:
            UntrustedError: a link that leads to it is another user's.
            OSError: it cannot be opened or made.
        """
        whole = Path(path).absolute()
        handle = _reach(whole, 0o777 if make else None)
        try:
            readable = os.open(".", _LIST, dir_fd=handle)
        except PermissionError:
            return cls(whole, handle, own=False)  # its names cannot be listed; files can be made
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
        return cls(whole, readable, own=False)

    def folder(self, name: str, *, make: bool = False) -> Folder:
        """A folder in this one; as in `open`, or in `named`, but along no link at all."""
        if self._own:
            return Folder(self.path / name, _open_own(name, self._handle, make, self._owner), self._owner)
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o777, dir_fd=self._handle)
        return Folder(self.path / name, os.open(name, _LIST, dir_fd=self._handle), own=False)

    def unique(self, prefix: str) -> Folder:
        """A new folder in this one, for this user alone, under a name that nobody could foresee."""
        while True:
            name = f"{prefix}{secrets.token_hex(4)}"
            try:
                os.mkdir(name, 0o700, dir_fd=self._handle)
            except FileExistsError:
                continue
            return Folder(self.path / name, os.open(name, _LIST, dir_fd=self._handle), own=False)

    def names(self) -> list[str]:
        """The names in it, sorted."""
        return sorted(os.listdir(self._handle))

    def has(self, name: str) -> bool:
        """Whether there is an entry of this name, be it what it may."""
        try:
            os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def file(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
        """Open a file → its descriptor.

        Args:
            name: of the file.
            flags: as for `os.open`.
            mode: of a file that is made; by default nobody else can read it.

        Raises:
            UntrustedError: it is a link, no plain file, not this user's (in a folder that the user has named
                all may be read), or, to be written, a hard link's.
            OSError: it cannot be opened.
        """
        try:
            handle = os.open(name, flags | _SAFELY, mode, dir_fd=self._handle)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                raise UntrustedError(f"{name} in it is a link") from None
            raise
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                raise UntrustedError(f"{name} in it is not a regular file")
            made, writes = flags & os.O_EXCL, flags & (os.O_WRONLY | os.O_RDWR)
            if facts.st_nlink != 1 and writes and not made:
                raise UntrustedError(f"{name} in it has another name, too (a hard link)")
            if not (made or _is_of(facts.st_uid, self._owner) or not (self._own or writes)):
                raise UntrustedError(f"{name} in it belongs to user {facts.st_uid}")
        except BaseException:
            os.close(handle)
            raise
        return handle

    def fresh(self, name: str) -> int:
        """Make a file for writing, in the place of what has this name → its descriptor."""
        self.remove(name)
        return self.made(name)

    def made(self, name: str, mode: int = 0o600) -> int:
        """Make a file for writing → its descriptor; `FileExistsError` where something has its name."""
        return self.file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)

    def replace(self, name: str, content: str | bytes, *, sync: bool = False) -> None:
        """Write a file, all at once, in the place of this user's file of that name.

        Args:
            name: of the file.
            content: of it.
            sync: return when it is on the disk, under its name.

        Raises:
            UntrustedError: what has the name is a link, no plain file, or another user's.
            OSError: it cannot be written. What was there is as it was.
        """
        data = content.encode() if isinstance(content, str) else content
        fresh = f".{name[:200]}.{secrets.token_hex(4)}"  # nobody can foresee it
        handle = self.made(fresh, 0o600 if self._own else 0o666)
        try:
            with os.fdopen(handle, "wb", buffering=0) as file:
                self._take_place(name, handle)
                write_all(handle, data)
                if sync:
                    os.fsync(handle)
                file.close()
            self.rename(fresh, name)
            if sync:
                self.sync()
        except BaseException:
            self.remove(fresh)
            raise

    def _take_place(self, name: str, handle: int) -> None:
        """Give a new file the mode of the one that it replaces, which has to be the same user's; in a folder
        of this user's alone it may be anything."""
        if self._own:
            return
        try:
            before = self.stat(name)
        except FileNotFoundError:
            return
        if stat.S_ISLNK(before.st_mode):
            raise UntrustedError(f"{name} is a link, which is not followed")
        if not stat.S_ISREG(before.st_mode):
            raise UntrustedError(f"{name} is not a regular file")
        if before.st_uid != os.fstat(handle).st_uid:  # as the file system says it, of both
            raise UntrustedError(whose(before.st_uid))
        os.fchmod(handle, stat.S_IMODE(before.st_mode))

    def read(self, name: str) -> bytes:
        """All that a file holds. Errors as in `file`."""
        with os.fdopen(self.file(name), "rb") as file:
            return file.read()

    def size(self, name: str) -> int:
        """Bytes in a file."""
        return self.stat(name).st_size

    def stat(self, name: str) -> os.stat_result:
        """The kernel's facts on an entry."""
        return os.stat(name, dir_fd=self._handle, follow_symlinks=False)

    def rename(self, name: str, to: str) -> None:
        """Give an entry another name, in the place of what has it."""
        os.rename(name, to, src_dir_fd=self._handle, dst_dir_fd=self._handle)

    def link(self, name: str, to: str) -> None:
        """Give an entry a second name; `FileExistsError` where something has it."""
        os.link(name, to, src_dir_fd=self._handle, dst_dir_fd=self._handle, follow_symlinks=False)

    def remove(self, name: str) -> None:
        """Remove a file, or a link, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle)

    def remove_folder(self, name: str) -> None:
        """Remove a folder in it that has nothing in it."""
        os.rmdir(name, dir_fd=self._handle)

    def remove_tree(self, name: str) -> None:
        """Remove a folder in it with all that is in it, if it is there; links in it are not followed."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(name, dir_fd=self._handle)

    def sync(self) -> None:
        """Return when its names are on the disk."""
        os.fsync(self._handle)

    def close(self) -> None:
        """Let go of it. May be called again."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_all(handle: int, data: bytes | memoryview) -> None:
    """Write all bytes to a descriptor."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _open_own(name: str, above: int, make: bool, owner: int | None) -> int:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=above)
    handle = os.open(name, _LIST, dir_fd=above)
    try:
        check_own(os.fstat(handle), handle, owner)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _reach(path: Path, make: int | None) -> int:
    """Follow a path to a folder → a descriptor, by which its entries are reached.

    Args:
        path: of the folder, absolute.
        make: the mode with which it and those above it are made where they are missing; None: they are not.
    """
    above, name = _folder_of(path, make)
    try:
        return _entered(name, above, make)
    finally:
        os.close(above)


def _entered(name: str, above: int, make: int | None) -> int:
    flags = _SEARCH | os.O_NOFOLLOW
    try:
        return os.open(name, flags, dir_fd=above)
    except FileNotFoundError:
        if make is None:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, make, dir_fd=above)
    return os.open(name, flags, dir_fd=above)


def _folder_of(path: Path, make: int | None = None) -> tuple[int, str]:
    """Follow a path to its end → a descriptor of the folder that holds the last entry, and that one's name.

    The last entry is no link, or is not there; whoever opens it says O_NOFOLLOW, since that may change.

    Args:
        make: as of `_reach`, for the folders above the last entry.
    """
    rest = list(reversed(path.absolute().parts))
    folder = os.open(rest.pop(), _SEARCH)
    links = 0
    try:
        while rest:
            name = rest.pop()
            if (target := _trusted_link(name, folder)) is not None:
                links += 1
                if links > _LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                rest += reversed(
                    target.parts
                )  # an absolute one begins with '/', which is no part of a folder
            elif rest:
                above, folder = folder, _entered(name, folder, make)
                os.close(above)
            else:
                return folder, name
        return folder, "."
    except BaseException:
        os.close(folder)
        raise


def _trusted_link(name: str, folder: int) -> Path | None:
    """The target of an entry if it is a link; None for another, and for one that is not there."""
    try:
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(facts.st_mode):
        return None
    if not _is_trusted(facts.st_uid):
        raise UntrustedError(f"'{name}' on its path is a link that user {facts.st_uid} made")
    return Path(os.readlink(name, dir_fd=folder))


def _is_trusted(user: int) -> bool:
    """Root, this user; and who owns '/', which is root by another number in a container.

    Unless that number is the one by which a user namespace shows whoever it does not know.
    """
    if user == 0 or is_me(user):
        return True
    return user == os.stat("/").st_uid and user != overflow()


def _is_of(user: int, owner: int | None) -> bool:
    return is_me(user) or (user == owner and is_known(user))


def _has_list(at: int | Path) -> bool:
    """Whether a list names users who may use a file (POSIX ACL); its mode then shows the list's bound as the
    group's right."""
    if sys.platform != "linux":
        return False
    try:
        os.getxattr(at, "system.posix_acl_access")
    except OSError:  # there is none, or the file system knows none
        return False
    return True


def _is_private_group(group: int) -> bool:
    """Whether a group is this user's alone, as many systems make one for each user."""
    import grp
    import pwd

    try:
        found, me = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return me.pw_gid == group and found.gr_name == me.pw_name and set(found.gr_mem) <= {me.pw_name}
