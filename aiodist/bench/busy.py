"""Whether others took the processors while something was measured, and who. Pure, but for `look`.

Linux says it in /proc: what each processor did, and what each process took. Elsewhere nothing is said.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from aiodist.sanitize import one_line

_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _NICE, _SYSTEM, _STEAL = 0, 1, 2, 7  # columns of /proc/stat, behind the name
_ENOUGH = 0.1  # of the processors' time: with less the medians stay as they are
_STOLEN = 0.05
_SEEN = 0.05  # of one processor: less is not worth a name
_LONGEST = 40


@dataclass(frozen=True)
class Look:
    """The time that processors and processes have worked up to now, in seconds.

    Attributes:
        at: monotonic time.
        worked: of the processors that this process may use, together: in programs and for them.
        stolen: time that a hypervisor gave to other machines instead.
        took: of each process that can be seen, by its id: its name, and its processor time.
    """

    at: float
    worked: float
    stolen: float
    took: Mapping[int, tuple[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Disturbance:
    """The time that others took between two looks.

    Attributes:
        cores: processors that this process may use.
        others: share of their time that other processes took, 0 to 1.
        stolen: share that the hypervisor gave away.
        load: processes that wanted to run, on average, over the last minute.
        worst: name of the other process that took most; '' where none can be seen.
        worst_share: of one processor.
    """

    cores: int
    others: float
    stolen: float
    load: float
    worst: str = ""
    worst_share: float = 0.0


def look() -> Look | None:
    """Look now; None where the system does not say."""
    try:
        worked, stolen = processor_time(Path("/proc/stat").read_text(), os.sched_getaffinity(0))
    except (OSError, ValueError, AttributeError):
        return None
    return Look(time.monotonic(), worked, stolen, dict(_processes()))


def processor_time(text: str, processors: Collection[int]) -> tuple[float, float]:
    """(seconds of work, seconds stolen) of these processors, from /proc/stat."""
    worked = stolen = 0
    for line in text.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name != "cpu" and int(name[3:]) in processors:
            worked += sum(int(columns[column]) for column in (_USER, _NICE, _SYSTEM))
            stolen += int(columns[_STEAL]) if len(columns) > _STEAL else 0
    return worked / _TICKS, stolen / _TICKS


def process_time(text: str) -> tuple[str, float]:
    """(name, seconds) of a process, from /proc/PID/stat. The name stands in brackets, and may hold some."""
    begin, _, rest = text.rpartition(")")
    columns = rest.split()
    return begin.partition("(")[2], (int(columns[11]) + int(columns[12])) / _TICKS


def disturbance(
    before: Look, after: Look, own: Mapping[int, float], *, cores: int, load: float
) -> Disturbance:
    """The time that others took, from two looks.

    Args:
        own: what the measured processes took meanwhile, in seconds, by their ids.
        cores: processors that both looks are about.
        load: of the last minute.
    """
    elapsed = max(after.at - before.at, 1e-9)
    whole = elapsed * cores
    others = max(0.0, after.worked - before.worked - sum(own.values())) / whole
    grown = {
        pid: (taken - before.took.get(pid, ("", 0.0))[1], name)
        for pid, (name, taken) in after.took.items()
        if pid not in own
    }
    most, worst = max(grown.values(), default=(0.0, ""))
    return Disturbance(
        cores,
        min(1.0, others),
        max(0.0, after.stolen - before.stolen) / whole,
        load,
        worst if most / elapsed >= _SEEN else "",
        most / elapsed,
    )


def doubt(seen: Disturbance) -> str:
    """Why figures that were measured meanwhile are not to be trusted; '' where they are."""
    reasons = []
    if seen.others >= _ENOUGH:
        who = f", most of it {one_line(seen.worst, _LONGEST)}" if seen.worst else ""
        reasons.append(f"other processes took {100 * seen.others:.0f} % of the processors' time{who}")
    if seen.stolen >= _STOLEN:
        reasons.append(f"the hypervisor gave {100 * seen.stolen:.0f} % of it to other machines")
    if not reasons:
        return ""
    cores = "1 core" if seen.cores == 1 else f"{seen.cores} cores"
    return (
        f"this machine is busy (load {seen.load:.1f} on {cores}): {', and '.join(reasons)}. "
        "Figures measured meanwhile are not to be trusted"
    )


def own_seconds() -> float:
    """Processor time that this process has taken, with all its threads."""
    spent = os.times()
    return spent.user + spent.system


def doubt_now(patience: float) -> str:
    """`doubt` of this machine as it is now, before anything is measured.

    Args:
        patience: seconds between the two looks.
    """
    began = own_seconds()
    before = look()
    if before is None:
        return ""
    time.sleep(patience)
    after = look()
    if after is None:
        return ""
    own = {os.getpid(): own_seconds() - began}
    return doubt(disturbance(before, after, own, cores=len(os.sched_getaffinity(0)), load=os.getloadavg()[0]))


def _processes() -> Iterator[tuple[int, tuple[str, float]]]:
    if sys.platform != "linux":
        return
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):  # it may end meanwhile
                yield int(name), process_time(Path("/proc", name, "stat").read_text(errors="replace"))
