"""The environment's facts about this process. Pure tables: variables in, facts out."""

from aiodist.environment.company import (
    Company,
    chosen,
    company_of_agent,
    company_of_rank,
    company_of_script,
)
from aiodist.environment.placement import LAUNCHERS, Launcher, Placement, placement
from aiodist.environment.secret import (
    check_open_port,
    check_secret,
    given_secret,
    home_secret,
    is_loopback,
    secret,
    secret_origin,
    warn_if_short,
)
from aiodist.environment.tls import Tls, tls
from aiodist.environment.tuning import (
    Tuning,
    job_id,
    job_name,
    split_address,
    store_address,
    store_url,
    switch,
    tuning,
)

__all__ = [
    "LAUNCHERS",
    "Company",
    "Launcher",
    "Placement",
    "Tls",
    "Tuning",
    "check_open_port",
    "check_secret",
    "chosen",
    "company_of_agent",
    "company_of_rank",
    "company_of_script",
    "given_secret",
    "home_secret",
    "is_loopback",
    "job_id",
    "job_name",
    "placement",
    "secret",
    "secret_origin",
    "split_address",
    "store_address",
    "store_url",
    "switch",
    "tls",
    "tuning",
    "warn_if_short",
]
