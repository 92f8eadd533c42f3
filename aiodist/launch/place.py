"""A node's place in a job, and what its workers are told of it by their environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiodist.launch.config import LaunchConfig
from aiodist.observe.leaving import RUN

ABOUT_A_WORKER = (
    *("AIODIST_STORE", "AIODIST_RANK", "AIODIST_LOCAL_RANK", "AIODIST_WORLD_SIZE"),
    *("AIODIST_NEWCOMER", "AIODIST_RESTART_COUNT", RUN),
)
"""Variables that say which worker a process is, and so are nothing for another one's environment."""


@dataclass(frozen=True)
class Place:
    """The place of this node's workers in the job; known once all nodes have met.

    Args:
        node_rank: this node.
        nnodes: all nodes.
        first_rank: global rank of local rank 0.
        nproc: workers here.
        world_size: workers everywhere.
        master_addr: MASTER_ADDR of the workers.
        master_port: MASTER_PORT of the workers; bound by nobody once they start.
        store: 'host:port' of the job's store.
        job: the job's name.
        secret: shared by the job.
        host: this node's short name, for prefixes and reports.
        newcomer: the job ran already when this node came; its workers join the running group.
        run: what tells this run of the launcher from all others, also of a job of the same name; the same on
            all nodes.
    """

    node_rank: int
    nnodes: int
    first_rank: int
    nproc: int
    world_size: int
    master_addr: str
    master_port: int
    store: str
    job: str
    secret: str
    host: str
    newcomer: bool = False
    run: str = ""


def worker_environment(
    base: Mapping[str, str], config: LaunchConfig, place: Place, local_rank: int, restarts: int = 0
) -> dict[str, str]:
    """The environment of one worker: torchrun's names, NODE_RANK, and how to reach our store.

    `base` is the agent's own environment; what a user may want to tune there is left as it is.
    `restarts`: how many the job had used when this worker was started.
    """
    rank = place.first_rank + local_rank
    env = dict(base)
    env.pop("TORCHELASTIC_ERROR_FILE", None)  # an outer launcher's file is not ours to write
    env.pop("AIODIST_NEWCOMER", None)
    if place.newcomer:
        env["AIODIST_NEWCOMER"] = "1"
    env.pop("AIODIST_SECRET_FILE", None)  # AIODIST_SECRET below says it already
    env.update(
        RANK=str(rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(place.world_size),
        LOCAL_WORLD_SIZE=str(place.nproc),
        NODE_RANK=str(place.node_rank),
        GROUP_RANK=str(place.node_rank),
        GROUP_WORLD_SIZE=str(place.nnodes),
        ROLE_NAME=config.role,
        ROLE_RANK=str(rank),
        ROLE_WORLD_SIZE=str(place.world_size),
        MASTER_ADDR=place.master_addr,
        MASTER_PORT=str(place.master_port),
        TORCHELASTIC_RUN_ID=place.job,
        TORCHELASTIC_USE_AGENT_STORE="False",
        TORCHELASTIC_RESTART_COUNT=str(restarts),
        TORCHELASTIC_MAX_RESTARTS=str(config.max_restarts),
        AIODIST_RESTART_COUNT=str(restarts),
        AIODIST_JOB=place.job,
        AIODIST_STORE=place.store,
        AIODIST_SECRET=place.secret,
    )
    env[RUN] = place.run
    if config.local_addr:
        env["AIODIST_HOST"] = config.local_addr
        env.pop("AIODIST_SOCKET_IFNAME", None)  # which says the same, or less
    if config.torch:
        env["AIODIST_TORCH"] = "1"
    if place.nproc > 1:
        env.setdefault("OMP_NUM_THREADS", "1")  # as torchrun: n workers with n × cores threads crawl
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault("PYTHONFAULTHANDLER", "1")  # so that a segmentation fault leaves a traceback too
    return env
