"""Whether others took the processors while something was measured, and who. Pure, but for the samples.

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
from typing import NamedTuple

from aiodist.base.sanitize import one_line

_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _NICE, _SYSTEM, _STEAL = 0, 1, 2, 7  # columns of /proc/stat, behind the name
_ENOUGH = 0.1  # of the processors' time: with less the medians stay as they are
_STOLEN = 0.05
_SEEN = 0.05  # of one processor: less is not worth a name
_LONGEST = 40


class Taken(NamedTuple):
    """The processor time of a process up to now, in seconds.

    Attributes:
        name: of its program.
        seconds: its own, with all its threads.
        parent: id of the process that started it.
        of_ended: that of the processes that it started, and that have ended.
    """

    name: str
    seconds: float
    parent: int = 0
    of_ended: float = 0.0


@dataclass(frozen=True)
class Sample:
    """The time that processors and processes have worked up to now, in seconds.

    Attributes:
        at: monotonic time.
        worked: of the processors that this process may use, together: in programs and for them.
        stolen: time that a hypervisor gave to other machines instead.
        took: of each process that can be seen, by its id.
    """

    at: float
    worked: float
    stolen: float
    took: Mapping[int, Taken] = field(default_factory=dict)


@dataclass(frozen=True)
class Disturbance:
    """The time that others took between two samples.

    Attributes:
        cores: processors that this process may use.
        others: share of their time that other processes took, 0 to 1.
        stolen: share that the hypervisor gave away.
        load: processes that wanted to run, on average, over the last minute.
        worst: name of the other process that took most; '' where none can be seen.
    """

    cores: int
    others: float
    stolen: float
    load: float
    worst: str = ""


def sample() -> Sample | None:
    """A sample now; None where the system does not say."""
    try:
        worked, stolen = processor_time(Path("/proc/stat").read_text(), os.sched_getaffinity(0))
    except (OSError, ValueError, AttributeError):
        return None
    return Sample(time.monotonic(), worked, stolen, dict(_processes()))


def processor_time(text: str, processors: Collection[int]) -> tuple[float, float]:
    """(seconds of work, seconds stolen) of these processors, from /proc/stat."""
    worked = stolen = 0
    for line in text.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name != "cpu" and int(name[3:]) in processors:
            worked += sum(int(columns[column]) for column in (_USER, _NICE, _SYSTEM))
            stolen += int(columns[_STEAL]) if len(columns) > _STEAL else 0
    return worked / _TICKS, stolen / _TICKS


def process_time(text: str) -> Taken:
    """A process, from /proc/PID/stat. Its name stands in brackets, and may hold some."""
    begin, _, rest = text.rpartition(")")
    columns = rest.split()
    own, of_ended = (sum(map(int, columns[first : first + 2])) / _TICKS for first in (11, 13))
    return Taken(begin.partition("(")[2], own, int(columns[1]), of_ended)


def family(before: Sample, after: Sample, root: int) -> dict[int, float]:
    """Processor time that a process, and all that it started, took between two samples, by their ids.

    That of a process that has ended meanwhile is with the one that waited for it: the sum is right.
    """
    found: dict[int, float] = {}
    for took, sign in ((before.took, -1), (after.took, 1)):
        children: dict[int, list[int]] = {}
        for pid, taken in took.items():
            children.setdefault(taken.parent, []).append(pid)
        left = [root] if root in took else []
        while left:
            pid = left.pop()
            left += children.get(pid, ())
            found[pid] = found.get(pid, 0.0) + sign * (took[pid].seconds + took[pid].of_ended)
    return found


def disturbance(
    before: Sample, after: Sample, own: Mapping[int, float], *, cores: int, load: float
) -> Disturbance:
    """The time that others took, from two samples.

    Args:
        own: what the measured processes took meanwhile, in seconds, by their ids.
        cores: processors that both samples are about.
        load: of the last minute.
    """
    elapsed = max(after.at - before.at, 1e-9)
    whole = elapsed * cores
    others = max(0.0, after.worked - before.worked - sum(own.values())) / whole
    new = Taken("", 0.0)
    grown = {
        pid: (taken.seconds - before.took.get(pid, new).seconds, taken.name)
        for pid, taken in after.took.items()
        if pid not in own
    }
    most, worst = max(grown.values(), default=(0.0, ""))
    return Disturbance(
        cores,
        min(1.0, others),
        max(0.0, after.stolen - before.stolen) / whole,
        load,
        worst if most / elapsed >= _SEEN else "",
    )


def reasons(seen: Disturbance) -> str:
    """Why a machine counts as busy; '' where it does not."""
    found = []
    if seen.others >= _ENOUGH:
        who = f", most of it {one_line(seen.worst, _LONGEST)}" if seen.worst else ""
        found.append(f"other processes took {100 * seen.others:.0f} % of the processors' time{who}")
    if seen.stolen >= _STOLEN:
        found.append(f"the hypervisor gave {100 * seen.stolen:.0f} % of it to other machines")
    return ", and ".join(found)


def doubt(seen: Disturbance) -> str:
    """Why figures that were measured meanwhile are not to be trusted; '' where they are."""
    why = reasons(seen)
    if not why:
        return ""
    cores = "1 core" if seen.cores == 1 else f"{seen.cores} cores"
    return (
        f"this machine is busy (load {seen.load:.1f} on {cores}): {why}. "
        "Figures measured meanwhile are not to be trusted"
    )


def own_seconds() -> float:
    """Processor time that this process has taken, with all its threads."""
    spent = os.times()
    return spent.user + spent.system


def meanwhile(before: Sample | None, after: Sample | None, own: Mapping[int, float]) -> Disturbance | None:
    """The time that others of this machine took between two samples; None where the system does not say.

    Args:
        before: the first sample.
        after: the second.
        own: as for `disturbance`.
    """
    if before is None or after is None:
        return None
    return disturbance(before, after, own, cores=len(os.sched_getaffinity(0)), load=os.getloadavg()[0])


def disturbance_now(patience: float) -> Disturbance | None:
    """The time that others take at present; None where the system does not say.

    Args:
        patience: seconds between the two samples.
    """
    began = own_seconds()
    before = sample()
    if before is None:
        return None
    time.sleep(patience)
    return meanwhile(before, sample(), {os.getpid(): own_seconds() - began})


def _processes() -> Iterator[tuple[int, Taken]]:
    if sys.platform != "linux":
        return
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):  # it may end meanwhile
                yield int(name), process_time(Path("/proc", name, "stat").read_text(errors="replace"))
