"""Functional collectives of groups that are not ours, in a process that has had one of ours."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import pytest

from tests.levels import COSTLY
from tests.processes import run_to_end

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

# When a collective has ended, gloo's thread lets go of its tensors, for which it needs the GIL, and keeps its
# queue locked meanwhile. The next call puts a collective into that queue. Where that call kept the GIL, the
# process stood still after 100 to 700 rounds.
BESIDE_GLOO = """
import torch, torch.distributed as c10d

c10d.init_process_group("aiodist", store=c10d.HashStore(), rank=0, world_size=1)
c10d.destroy_process_group()
c10d.init_process_group("gloo", store=c10d.HashStore(), rank=0, world_size=1)
ops, name = torch.ops._c10d_functional, c10d.group.WORLD.group_name
mine = torch.arange(6.0)
for turn in range(5000):
    for one in ops.all_reduce_coalesced_([mine.clone(), mine + 1], "sum", name):
        ops.wait_tensor(one)
    del one
    out = torch.zeros(6)
    ops.wait_tensor(ops.all_gather_into_tensor_out(mine + turn, 1, name, out=out))
    assert torch.equal(out, mine + turn)
c10d.destroy_process_group()
print("done")
"""


@pytest.mark.slow(COSTLY)
def test_gloos_threads_and_its_callers_do_not_wait_for_each_other() -> None:
    ended = run_to_end([sys.executable, "-c", BESIDE_GLOO], {**os.environ, "OMP_NUM_THREADS": "1"}, 100)
    assert ended.stdout == "done\n", ended.stdout + ended.stderr
