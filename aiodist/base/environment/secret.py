"""The secret that a job's processes share, and where it comes from.

In order: AIODIST_SECRET; the file that AIODIST_SECRET_FILE names (our launcher sets one of them); else
`~/.aiodist/secret`, made on first use with mode 0600, so that a home which the hosts share gives them one
secret. Where there is no home to write to there is none: then nothing but loopback is served, to this user's
processes only. A home that is there and cannot be read is an error, not a job without a secret.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from aiodist.base.environment.files import Folder, read_private
from aiodist.base.errors import UsageError

_NAME = "secret"
_BYTES = 32  # of chance in a secret that is made here
_LONGEST = 4096  # of a file that is read as one
_SHORT = 16  # bytes, below which guessing is thinkable

_NO_HOME = (errno.ENOENT, errno.ENOTDIR, errno.EROFS, errno.EACCES, errno.EPERM)  # of making a folder there
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # a file system that cannot do what `_make` needs

_log = logging.getLogger("aiodist")
_warned = False


def secret(environ: Mapping[str, str]) -> bytes:
    """The secret that the processes of this job share; b'' where there is none.

    Raises:
        UsageError: a file that should hold it cannot be trusted, or holds none.
    """
    return given_secret(environ) or home_secret(environ)


def given_secret(environ: Mapping[str, str]) -> bytes:
    """AIODIST_SECRET, or the contents of the file that AIODIST_SECRET_FILE names; b'' where neither is set.

    Raises:
        UsageError: the file cannot be read, is empty, can be read by other users, or others than this user
            and root may have written it.
    """
    key, path = os.fsencode(environ.get("AIODIST_SECRET", "")), environ.get("AIODIST_SECRET_FILE", "")
    if key:
        warn_if_short(key, "AIODIST_SECRET", environ)
        return key
    if not path:
        return b""
    what = f"AIODIST_SECRET_FILE={path}"
    try:
        content = read_private(what, path, shared=True, most=_LONGEST).strip()
    except OSError as error:
        raise UsageError(f"{what} cannot be read ({error.strerror})") from None
    if not content:
        raise UsageError(f"{what} is empty", hint="Write a random line into it")
    check_secret(content, what)
    warn_if_short(content, what, environ)
    return content


def home_secret(environ: Mapping[str, str]) -> bytes:
    """The secret in this user's home, made now if there is none; b'' where there is no home to write to.

    Raises:
        UsageError: it is open to others, another user's, or empty; or there is one, or room for one, and the
            system does not let this process read or make it (permissions, descriptors, a full disk).
    """
    path = _home_path(environ)
    if path is None:
        return b""
    try:
        if (folder := _folder(path.parent)) is None:
            return b""
        with folder:
            key = _read(folder, path)
            if key is None and _make(folder):
                key = _read(folder, path)
    except OSError as error:
        raise UsageError(
            f"the secret in {path} cannot be read or made ({error.strerror})",
            hint="Repair that, or set AIODIST_SECRET to the same on every host",
        ) from None
    if key:
        warn_if_short(key, str(path), environ)
    return key or b""


def secret_origin(environ: Mapping[str, str]) -> str:
    """The origin of `secret`, for people. Never the secret; nothing is made or read.

    Returns:
        Words such as 'set (AIODIST_SECRET)', or 'none: loopback only'.
    """
    for name in ("AIODIST_SECRET", "AIODIST_SECRET_FILE"):
        if environ.get(name):
            return f"set ({name})"
    path = _home_path(environ)
    try:
        if path is not None and path.exists():
            return f"set ({path})"
        if path is not None and os.access(
            path.parent if path.parent.exists() else path.parent.parent, os.W_OK
        ):
            return f"none yet: {path} is made on first use"
    except OSError as error:
        return f"unusable: {path} cannot be read ({error.strerror})"
    return "none: loopback only"


def check_open_port(host: str, key: bytes, allow_insecure: bool) -> None:
    """Refuse to listen for other hosts without a secret, unless told to.

    Args:
        host: a numeric address, or a name, to listen on.
        key: the secret; b'' for none.
        allow_insecure: AIODIST_ALLOW_INSECURE.

    Raises:
        UsageError: whoever reaches the address could join.
    """
    if not (key or allow_insecure or is_loopback(host)):
        raise UsageError(
            f"refused to serve {host} without a secret: any process that reaches it could join",
            hint="Set AIODIST_SECRET (or AIODIST_SECRET_FILE) to the same on every host, or use "
            "MASTER_ADDR=127.0.0.1; AIODIST_ALLOW_INSECURE=1 allows it without",
        )


def is_loopback(host: str) -> bool:
    """Whether this name or address is this machine's own loopback, without asking any name server."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def _home_path(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("HOME", "")
    return Path(home) / ".aiodist" / _NAME if home.startswith("/") else None


def _folder(path: Path) -> Folder | None:
    """The folder that holds it, made if it is missing; None where there is no place for one."""
    try:
        # Whose home it is has the say in it (`sudo -E`). In a home such as /tmp nobody but root has.
        owner = path.parent.stat().st_uid
        with contextlib.suppress(FileNotFoundError):
            return Folder.open(path, owner=owner)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return Folder.open(path, make=True, owner=owner)
    except OSError as error:
        if error.errno in _NO_HOME:
            return None
        raise


def _make(folder: Folder) -> bool:
    """Make a secret, unless another process does it first; False where there is no place for one."""
    fresh = f".secret.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        handle = folder.fresh(fresh)
    except OSError as error:
        if error.errno == errno.EROFS:
            return False
        raise
    try:
        os.write(handle, secrets.token_hex(_BYTES).encode() + b"\n")
        os.fsync(handle)
        folder.link(fresh, _NAME)  # complete at once, and only one of several makers wins
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    finally:
        os.close(handle)
        folder.remove(fresh)
    return True


def _read(folder: Folder, path: Path) -> bytes | None:
    """The bytes of the file; None where there is none."""
    try:
        handle = folder.file(_NAME)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(file.fileno())
        content = file.read(_LONGEST).strip()
    if facts.st_mode & 0o077:
        raise UsageError(f"{path} is open to others", hint=f"chmod 600 {path}")
    if not content:
        raise UsageError(f"the secret in {path} is empty", hint="Remove it: a new one is made")
    check_secret(content, f"the secret in {path}", "Remove it: a new one is made")
    return content


def check_secret(key: bytes, what: str, hint: str = "Write a random line of text in its place") -> None:
    """Refuse a secret with a zero byte in it, as a crash may leave one: to HMAC zeros at its end are nothing.

    Args:
        key: the secret; it is not said.
        what: what errors call it.
        hint: what to do.

    Raises:
        UsageError: there is one.
    """
    if b"\0" in key:
        raise UsageError(f"{what} holds zero bytes", hint=hint)


def warn_if_short(key: bytes, origin: str, environ: Mapping[str, str] | None = None) -> None:
    """Say once in a process, and of several ranks by the first, that a secret can be guessed.

    Args:
        key: the secret; it is not said.
        origin: where it comes from.
        environ: of a process that may be a rank.
    """
    global _warned
    if len(key) < _SHORT and not _warned and (environ or {}).get("RANK", "0") == "0":
        _warned = True
        _log.warning(
            "%s is shorter than %d bytes: somebody who records a connection can try guesses on it. "
            "Better: a line of `openssl rand -hex 32`, the same on every host",
            origin,
            _SHORT,
        )
