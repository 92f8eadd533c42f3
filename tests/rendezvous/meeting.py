"""Meetings as `init_process_group` has them, from a URL and variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aiodist.base.environment import tuning
from aiodist.rendezvous import Invitation, Meeting, meet


async def rendezvous(
    url: str,
    rank: int = -1,
    world_size: int = -1,
    timeout: float | None = None,
    environ: Mapping[str, str] | None = None,
    secret: bytes = b"",
) -> Meeting:
    """Meet where a URL leads to."""
    environ = {} if environ is None else environ
    limit = tuning(environ).timeout if timeout is None else float(timeout)
    return await meet(replace(Invitation.of(url, rank, world_size, limit, environ), secret=secret))
