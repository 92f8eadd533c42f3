"""The environment's facts about this process. Pure tables: variables in, facts out."""

from aiodist.environment.address import is_link_local, plain_host, split_address
from aiodist.environment.placement import Placement, placement
from aiodist.environment.secret import (
    check_open_port,
    given_secret,
    home_secret,
    is_loopback,
    secret,
    secret_origin,
)
from aiodist.environment.tls import Tls, tls
from aiodist.environment.tuning import (
    Tuning,
    job_id,
    job_name,
    own_host,
    store_address,
    store_url,
    switch,
    tuning,
)

__all__ = [
    "Placement",
    "Tls",
    "Tuning",
    "check_open_port",
    "given_secret",
    "home_secret",
    "is_link_local",
    "is_loopback",
    "job_id",
    "job_name",
    "own_host",
    "placement",
    "plain_host",
    "secret",
    "secret_origin",
    "split_address",
    "store_address",
    "store_url",
    "switch",
    "tls",
    "tuning",
]
