"""Jobs that have failed a moment ago: for ten minutes their launcher's word on that is with the records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from aiodist.base.errors import UsageError, WireError
from aiodist.observe.choice import pick
from aiodist.observe.dumps import read_dump
from aiodist.observe.host import read_jobs
from aiodist.observe.outcome import LARGEST, Outcome
from aiodist.observe.recorder.records import leave_note, notes
from aiodist.observe.view import JobView

_ENDING = ".outcome"


def tell_end(outcome: Outcome) -> None:
    """Leave the word on a run that has failed, for who looks in the next ten minutes.

    Raises:
        OSError: it cannot be written.
    """
    leave_note(f"{outcome.run}{_ENDING}", json.dumps(outcome.to_json()).encode())


def outcomes() -> dict[str, Outcome]:
    """The runs of this host and user that have failed in the last ten minutes, by their numbers."""
    found = {}
    for text in notes(_ENDING, LARGEST + 1):
        with suppress(WireError):
            outcome = Outcome.parse(text)
            found[outcome.run] = outcome
    return found


def ended_jobs(live: Sequence[JobView]) -> list[tuple[JobView, Outcome]]:
    """The jobs of runs that have failed in the last ten minutes, from what their ranks have left; the one
    that ended last first.

    Args:
        live: jobs whose ranks are seen themselves: these are not among them.
    """
    seen = {job.key for job in live}
    found = []
    for outcome in sorted(outcomes().values(), key=lambda one: -one.ended):
        if not outcome.folder:
            continue
        with suppress(UsageError, WireError):  # it was removed, or is not readable
            dump = read_dump(outcome.folder)
            if dump.job is not None and dump.job.key not in seen:
                ranks = tuple(replace(rank, alive=False) for rank in dump.job.ranks)
                found.append((replace(dump.job, ranks=ranks), outcome))
    return found


def ended_job(wanted: str | None) -> str | None:
    """The folder of what the job has left that is meant, if that is one that has failed; else None.

    Args:
        wanted: as of `choice.pick`; a job that runs comes first.
    """
    live = read_jobs()
    ended = ended_jobs(live)
    with suppress(UsageError):
        found = pick([*live, *(job for job, _ in ended)], wanted)
        return next((outcome.folder for job, outcome in ended if job.key == found.key), None)
    return None
