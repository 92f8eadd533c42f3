"""From a process to a member of a job, and a coroutine to its loop.

`init` meets a job's other processes, `joining` a job that runs already, `member` is what both make of a
meeting; `running` is `run`.
"""

from aiodist.runtime.init import (
    destroy_process_group,
    get_node_local_rank,
    init_process_group,
    is_available,
    is_backend_available,
    is_initialized,
    is_torchelastic_launched,
)
from aiodist.runtime.joining import join
from aiodist.runtime.running import loop_factory, run

__all__ = [
    "destroy_process_group",
    "get_node_local_rank",
    "init_process_group",
    "is_available",
    "is_backend_available",
    "is_initialized",
    "is_torchelastic_launched",
    "join",
    "loop_factory",
    "run",
]
