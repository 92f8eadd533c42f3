"""Initialises jax.distributed from JAX's variables, then runs a script: `jax_job.py SCRIPT [WORD …]`."""

from __future__ import annotations

import os
import sys

import jax

from tests.launchers.scripts import run_script

if __name__ == "__main__":
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"],
        int(os.environ["JAX_NUM_PROCESSES"]),
        int(os.environ["JAX_PROCESS_ID"]),
    )
    run_script(sys.argv[1:])
    assert jax.process_count() == int(os.environ["JAX_NUM_PROCESSES"])
    jax.distributed.shutdown()
