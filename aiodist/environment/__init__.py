"""What the environment says about this process. Pure tables: variables in, facts out."""

from aiodist.environment.placement import LAUNCHERS, Launcher, Placement, placement
from aiodist.environment.tuning import Tuning, job_id, secret, split_address, store_address, tuning

__all__ = [
    "LAUNCHERS",
    "Launcher",
    "Placement",
    "Tuning",
    "job_id",
    "placement",
    "secret",
    "split_address",
    "store_address",
    "tuning",
]
