"""The secret that a job's processes share."""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from aiodist.environment import secret
from aiodist.errors import UsageError


def job_secret(environ: Mapping[str, str], nnodes: int, master_addr: str) -> str:
    """The secret of this job's agents and workers.

    In order: AIODIST_SECRET; the file that AIODIST_SECRET_FILE names; for one node a random one, made
    for this job; for several `~/.aiodist/secret` (mode 0600, made on first use: a home that the nodes
    share gives them one secret). With none, only loopback, unless AIODIST_ALLOW_INSECURE=1.

    Raises:
        UsageError: the file cannot be read, or is open to others; or there is no secret.
    """
    if given := secret(environ):
        return given.decode()
    if nnodes == 1:
        return secrets.token_hex(16)
    home = Path(environ.get("HOME") or "~").expanduser() / ".aiodist" / "secret"
    try:
        return _read_or_make(home)
    except OSError as error:
        if is_loopback(master_addr) or environ.get("AIODIST_ALLOW_INSECURE") == "1":
            return ""
        raise UsageError(
            f"the nodes have no common secret, and {home} cannot be made: {error.strerror}",
            hint="Set AIODIST_SECRET to the same value on every node, or AIODIST_ALLOW_INSECURE=1",
        ) from None


def is_loopback(host: str) -> bool:
    """Whether this name or address is this machine's own loopback, without asking any name server."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _read_or_make(path: Path) -> str:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = path.with_name(f".secret.{os.getpid()}.{secrets.token_hex(4)}")
    if not path.exists():
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(fd, secrets.token_hex(16).encode() + b"\n")
            os.close(fd)
            os.link(fresh, path)  # complete at once, and only one of several makers wins
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
    return _read(path)


def _read(path: Path) -> str:
    try:
        if path.stat().st_mode & 0o077:
            raise UsageError(f"{path} is open to others", hint=f"chmod 600 {path}")
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the secret in {path}: {error}") from None
    if not text:
        raise UsageError(f"the secret in {path} is empty")
    return text
