"""The thresholds of the host engine, where one way of doing things gives way to another, in one table.

Each is measured (docs/performance.md says how) and can be set by its variable, on every rank alike: ranks
compare them when they meet, for they must choose the same path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from aiodist.base.errors import UsageError

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True)
class Thresholds:
    """Sizes in bytes of an operation's buffer on one rank, unless said otherwise.

    Attributes:
        local: AIODIST_LOCAL: 0 keeps ranks of one host from using each other's memory directly; messages
            over sockets carry all.
        poll: AIODIST_POLL: microseconds that an await polls in a turn of the loop before it sleeps.
        direct: AIODIST_DIRECT: up to here every rank reduces everything; above, each reduces its part.
        inline: AIODIST_INLINE: up to here the event loop does the work itself; above, a thread. A reduction
            goes to the thread from an estimated 200 µs on, too.
        block: AIODIST_BLOCK: what the thread handles at a time, of one rank's part.
        staging: AIODIST_STAGING: blocks that lie in staging side by side have at most so many together.
        depth: AIODIST_DEPTH: blocks that a rank may be ahead of its reader, where there are two ranks.
        hierarchy: AIODIST_HIERARCHY: from here on groups of several ranks on each of several hosts work on
            each host first, and then between hosts; below, all messages go from rank to rank.
    """

    local: int = 1
    poll: int = 50
    direct: int = 32 * KIB
    inline: int = 4 * MIB
    block: int = 256 * KIB
    staging: int = 4 * MIB
    depth: int = 3
    hierarchy: int = 256 * KIB

    @property
    def agreed(self) -> dict[str, str]:
        """The variables that every rank must set alike, by name."""
        return {_name(f.name): str(getattr(self, f.name)) for f in fields(self) if f.name != "poll"}


_LEAST = {"depth": 2, "block": 4096, "staging": 4096}


def thresholds(environ: Mapping[str, str]) -> Thresholds:
    """Read and check the variables; an empty one counts as absent.

    Raises:
        UsageError: a value that is no number, or too small.
    """
    values = {}
    for field in fields(Thresholds):
        name = _name(field.name)
        text = environ.get(name, "").strip()
        if not text:
            continue
        least = _LEAST.get(field.name, 0)
        if not text.isdecimal() or int(text) < least:
            raise UsageError(
                f"{name}={text!r} is not a whole number from {least} on",
                hint=f"{field.default} is the default",
            )
        values[field.name] = int(text)
    return Thresholds(**values)


def _name(field: str) -> str:
    return f"AIODIST_{field.upper()}"


DEFAULTS = Thresholds()
