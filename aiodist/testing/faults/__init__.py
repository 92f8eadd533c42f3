"""Faults for tests: processes that die and freeze, connections that break, networks that swallow.

    Victims, Round, Said, Stage     rank processes that are killed and stopped at chosen moments
    Steps                           a moment, counted in calls of aiodist's own functions
    FaultProxy, Direction, Fault    connections that are delayed, cut, corrupted, half closed, clogged
    Detours, DetourStore            all connections of a job through such proxies
    Partition                       black holes between `Hosts`

All is seeded or planned, so that a failure that was found once can be found again. Linux.
"""

from aiodist.testing.faults.course import Fault
from aiodist.testing.faults.detour import Detours, DetourStore
from aiodist.testing.faults.partition import Partition
from aiodist.testing.faults.proxy import Direction, FaultProxy
from aiodist.testing.faults.rank import Stage
from aiodist.testing.faults.steps import Steps
from aiodist.testing.faults.victims import Round, RoundFailed, Said, Victims

__all__ = [
    "DetourStore",
    "Detours",
    "Direction",
    "Fault",
    "FaultProxy",
    "Partition",
    "Round",
    "RoundFailed",
    "Said",
    "Stage",
    "Steps",
    "Victims",
]
