"""Which job is meant: by the beginning of its key, or by its script's name. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aiodist.base.errors import UsageError
from aiodist.observe.view import JobView

SHORTEST = 4
"""Characters of a key that are shown, at least."""

_LISTED = 5  # jobs, in an error


def pick(jobs: Sequence[JobView], wanted: str | None = None) -> JobView:
    """The job that is meant.

    Args:
        jobs: all that there are, the newest first.
        wanted: the beginning of a key, or a script's name, with or without its '.py': of several jobs with
            that script the newest that lives. None: the only one that lives; where none does, the newest.

    Raises:
        UsageError: there is none, or several could be meant.
    """
    if wanted is None:
        found = jobs
        live = [job for job in jobs if any(rank.alive for rank in job.ranks)]
        if len(live) > 1:
            key = short_keys(jobs)[live[0].key]
            raise UsageError(
                f"{len(live)} jobs run here: {_listed(live, jobs)}",
                hint=f"Add which one is meant: {key}, for example",
            )
    else:
        found = [job for job in jobs if wanted in (job.name, job.name.removesuffix(".py"))]
        if not found:
            found = [job for job in jobs if wanted and job.key.startswith(wanted)]
            if len(found) > 1:
                several = _listed(found, jobs)
                raise UsageError(f"{wanted!r} may be one of several jobs: {several}", hint="Write more of it")
    if not found:
        there = f"There are: {_listed(jobs, jobs)}" if jobs else "No job of this user runs on this host"
        raise UsageError("there is no job" if wanted is None else f"there is no job {wanted!r}", hint=there)
    return next((job for job in found if any(rank.alive for rank in job.ranks)), found[0])


def short_keys(jobs: Iterable[JobView]) -> dict[str, str]:
    """The shortest beginning of each key that only it has, by the key."""
    keys = sorted(job.key for job in jobs)
    return {key: _shortest(key, keys) for key in keys}


def _shortest(key: str, keys: Sequence[str]) -> str:
    for length in range(SHORTEST, len(key)):
        if sum(other.startswith(key[:length]) for other in keys) == 1:
            return key[:length]
    return key


def _listed(jobs: Sequence[JobView], all: Iterable[JobView]) -> str:
    keys = short_keys(all)
    text = ", ".join(f"{keys[job.key]} ({job.name})" for job in jobs[:_LISTED])
    return f"{text} and {len(jobs) - _LISTED} more" if len(jobs) > _LISTED else text
