"""Facts about this process and machine, read from variables, files and the system.

    variables       every AIODIST_* variable by its name; unknown ones are reported
    placement       rank, world, node and master, from the variables of each launcher, as one table
    tuning          settings, and `thresholds`: the sizes at which one path gives way to another; a reduction
                    also leaves the loop by its estimated time (`backends/arrays/kernels/cost`)
    secret, tls     the job's secret and TLS files
    address, user   addresses as text; who this user is
    lone_process    whether a process that looks like a job of its own belongs to another one
    master_port     whether another library is going to listen on MASTER_PORT
    cores           how many processors there are; `processor_load`: whether other processes use them
    process, pids   this process and others, by their ids and start times
    files, mapping  files written whole or not at all; files mapped into memory
    clock, threads  which clock this host has; signals to one thread

Most are pure tables: variables in, facts out.
"""

from aiodist.base.environment.address import is_link_local, plain_host, split_address
from aiodist.base.environment.placement import Placement, placement
from aiodist.base.environment.secret import (
    check_open_port,
    given_secret,
    home_secret,
    is_loopback,
    secret,
    secret_origin,
)
from aiodist.base.environment.tls import Tls, tls
from aiodist.base.environment.tuning import (
    Tuning,
    job_id,
    job_name,
    own_host,
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
    "store_url",
    "switch",
    "tls",
    "tuning",
]
