"""torch pickles objects into tensors of bytes, and an attacker on the path of plain TCP would choose them."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tests.levels import COSTLY, few
from tests.ports import free_port
from tests.processes import run_to_end

JOB = str(Path(__file__).with_name("torch_attacked_job.py"))
ROOT = Path(__file__).parents[2]
OBJECTS = ["all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"]
TENSORS = [
    "send_object_list",
    "all_gather",
    "all_gather_into_tensor",
    "all_to_all_single",
    "all_reduce",
    "coalesced",
    "sizes",
]
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform"),
]


@pytest.mark.parametrize("backend", few(["aiodist", "gloo"], ["aiodist"]))
def test_no_code_of_an_attacker_runs(backend: str, tmp_path: Path) -> None:
    """Each call ends by `Tampered` on both ranks, and is struck once: what was altered is not unpickled."""
    mark = tmp_path / "mark"
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node=2", JOB, backend, str(mark)]
    environ = os.environ | {"AIODIST_TRANSPORT": "tcp", "PYTHONPATH": str(ROOT), "AIODIST_TORCH": "1"}
    ended = run_to_end(command, environ, 280)
    said = [line.rpartition("│ ")[2] for line in ended.stdout.splitlines()]
    assert ended.returncode == 0 and said.count("done") == 2, ended.stdout + ended.stderr
    for name in OBJECTS + TENSORS:
        told = [line.removeprefix(f"{name} ") for line in said if line.startswith(f"{name} ")]
        assert len(told) == 2, (name, said)
        strikes = [int(line.rpartition(" ")[2]) for line in told]
        assert sum(strikes) >= 1, (name, told)
        assert all(re.match(r"Tampered: between rank [01]", line) for line in told), told
    assert not mark.exists()


EXPOSED = """
import sys, torch, torch.distributed as c10d
c10d.init_process_group(sys.argv[1])
rank, bytes_, room = c10d.get_rank(), torch.ones(5, dtype=torch.uint8), [None, None]
message = (lambda: c10d.recv_object_list(room[:1], 0)) if rank else (lambda: c10d.send_object_list([1], 1))
for call in (
    lambda: c10d.broadcast_object_list([{"a": 1}], 0),
    lambda: c10d.all_gather_object(room, rank),
    lambda: c10d.gather_object(rank, None if rank else room, 0),
    lambda: c10d.scatter_object_list([None], None if rank else [1, 2], 0),
    message,
    lambda: c10d.broadcast(bytes_, 0),
    lambda: c10d.all_reduce(bytes_.to(torch.int8)),
    lambda: c10d.all_to_all_single(torch.empty(2, dtype=torch.uint8), torch.ones(2, dtype=torch.uint8)),
):
    try:
        call()
    except ValueError as error:
        print(type(error).__name__, error)
one = torch.full((3,), rank + 1.0)
c10d.all_reduce(one)
print(one.tolist(), flush=True)
c10d.destroy_process_group()
"""


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("backend", ["aiodist", "gloo"])
def test_objects_are_refused_where_nobody_can_be_told_from_anybody(backend: str, tmp_path: Path) -> None:
    """Without a secret and TLS, in a job that other hosts can reach; tensors of numbers are not."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIODIST_")},
        "HOME": "/nowhere",
        "AIODIST_ALLOW_INSECURE": "1",
        "AIODIST_HOST": "0.0.0.0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "AIODIST_TORCH": "1",
    }
    (tmp_path / "job.py").write_text(EXPOSED)
    command = [sys.executable, str(tmp_path / "job.py"), backend]
    ranks = [
        Popen(command, env=environ | {"RANK": str(rank)}, stdout=PIPE, stderr=PIPE, text=True)
        for rank in range(2)
    ]
    try:
        ended = [rank.communicate(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for out, err in ended:
        said = out.splitlines()
        assert said[-1] == "[3.0, 3.0, 3.0]", (out, err)
        refusal = (
            r"UsageError tensors of bytes, .* are refused in a job without a secret .* Set AIODIST_SECRET"
        )
        assert [bool(re.match(refusal, line)) for line in said[:-1]] == [True] * 8, (out, err)
