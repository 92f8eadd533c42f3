"""Which connection between two ranks is much slower than the others. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from aiodist.observe.view import JobView

LEAST = 1 << 20  # bytes that have to have gone over a connection: its rate is a guess before
SLOWER = 3.0  # times slower than the others
BUSY = 0.3  # of the job's time in which it has to have been at work


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A connection that is slower than others.

    Args:
        rank, peer: from whom to whom.
        rate: bytes in a second in which it was at work, or as they were measured last, whichever is more;
            usual: of the others.
        busy: the part of the time in which it was at work.
        rtt: seconds there and back.
    """

    rank: int
    peer: int
    rate: float
    usual: float
    busy: float
    rtt: float


def find_slow_link(job: JobView) -> SlowLink | None:
    """The slowest connection, if it is far slower than most others, and much in use."""
    found = [
        SlowLink(
            # While a small message waits for its acknowledgement, nothing else being sent, the connection
            # counts as busy; so its average alone would accuse whoever sends to a rank that is late.
            *(view.rank, link.rank, max(link.rate, link.sent / max(link.busy, 1e-6)), 0.0),
            link.busy / max(view.now - view.recording.began, 1e-6),
            link.rtt,
        )
        for view in job.ranks
        for link in view.recording.links
        if link.sent >= LEAST
    ]
    if len(found) < 2:
        return None
    slowest = min(found, key=lambda link: link.rate)
    usual = statistics.median(link.rate for link in found if link is not slowest)
    if usual < SLOWER * slowest.rate or slowest.busy < BUSY:
        return None
    return SlowLink(*(slowest.rank, slowest.peer, slowest.rate, usual, min(1.0, slowest.busy), slowest.rtt))
