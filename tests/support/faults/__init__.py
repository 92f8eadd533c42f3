"""Faults for tests: processes that die and freeze, connections that break, networks that swallow.

    Victims, Round, Said, Stage     rank processes that are killed and stopped at chosen moments
    Steps                           a moment, counted in calls of aiodist's own functions
    FaultProxy, Direction, Fault    connections that are delayed, cut, corrupted, half closed, clogged
    Detours, DetourStore            all connections of a job through such proxies
    Partition                       black holes between `Hosts`

All is seeded or planned, so that a failure that was found once can be found again. Linux.
"""

from tests.support.faults.course import Fault
from tests.support.faults.detour import Detours, DetourStore
from tests.support.faults.partition import Partition
from tests.support.faults.proxy import Direction, FaultProxy
from tests.support.faults.rank import Stage
from tests.support.faults.steps import Steps
from tests.support.faults.victims import Round, RoundFailed, Said, Victims

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
