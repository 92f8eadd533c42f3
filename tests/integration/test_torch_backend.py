"""`torch.distributed.init_process_group("aiodist")`: the same as gloo, call by call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from aiodist.backends.host.local.hub import supported
from aiodist.transport.shm import available
from tests.levels import COSTLY, MORE
from tests.processes import run_to_end

JOB = Path(__file__).parent / "torch_calls_job.py"
CALLBACKS = JOB.with_name("torch_callbacks_job.py")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
    pytest.mark.skipif(sys.platform != "linux", reason="Linux is the full platform"),
]


GLOO = """
import torch, torch.distributed as c10d
c10d.init_process_group("gloo")
one = torch.ones(3)
c10d.all_reduce(one)
assert c10d.group.WORLD.name() == "gloo"
print(c10d.get_backend(), type(c10d.group.WORLD).__name__, one.tolist(), flush=True)
c10d.monitored_barrier()
c10d.destroy_process_group()
"""
MIXED = """
import torch, torch.distributed as c10d
import torch.testing._internal.distributed.fake_pg
c10d.init_process_group("cpu:gloo,cuda:fake")
one = torch.full((3,), c10d.get_rank() + 1.0)
c10d.all_reduce(one)
print(type(c10d.group.WORLD._get_backend(one.device)).__name__, one.tolist(), flush=True)
c10d.destroy_process_group()
"""
PLAIN = """
import torch, torch.distributed as c10d
c10d.init_process_group()
one = torch.full((3,), 3.0)
c10d.all_reduce(one)
print(type(c10d.group.WORLD).__name__, one.tolist(), flush=True)
c10d.destroy_process_group()
"""
DIES = """
import os, signal, sys
import torch, torch.distributed as c10d
c10d.init_process_group("aiodist")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
c10d.barrier()
if c10d.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        model(torch.ones(2, 4)).sum().backward()
except RuntimeError as error:
    print("told:", error, flush=True)
try:
    c10d.all_reduce(torch.ones(1))
except c10d.DistBackendError as error:
    print("cause:", type(error.__cause__).__name__, flush=True)
"""
RAISES = (
    DIES.replace("os.kill(os.getpid(), signal.SIGKILL)", 'raise ValueError("no such file")')
    .replace("try:\n    while", "if True:\n    while")
    .partition("except RuntimeError")[0]
)
BAD = """
import torch, torch.distributed as c10d
c10d.init_process_group("aiodist")
bad = {
    "meta": torch.ones(2, device="meta"),
    "layout": torch.ones(2, 2).to_sparse_csr(),
    "strides": torch.ones(1).expand(3),
    "quantised": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
}
for name, tensor in bad.items():
    try:
        c10d.all_reduce(tensor)
        print(name, "passed")
    except (ValueError, RuntimeError, TypeError) as error:
        print(name, len(str(error).splitlines()), error)
leaf = torch.ones(2, requires_grad=True)
c10d.all_reduce(leaf)
one = torch.ones(1)
c10d.all_reduce(one)
print("then", one.item(), leaf.tolist(), flush=True)
c10d.destroy_process_group()
try:
    c10d.all_reduce(one)
except ValueError as error:
    print("after", error, flush=True)
"""

PENDING = """
import torch, torch.distributed as c10d
c10d.init_process_group("aiodist")
works = [c10d.irecv(torch.zeros(3), 1 - c10d.get_rank(), tag=tag) for tag in range(3)]
c10d.destroy_process_group()
for work in works:
    try:
        work.wait()
    except c10d.DistBackendError as error:
        print("closed:", error, flush=True)
"""


BUCKETS = """
import torch, torch.distributed as c10d
from torch.nn.parallel import DistributedDataParallel
c10d.init_process_group("aiodist")
rank = c10d.get_rank()

def shared(tensor):
    rows = [line.split() for line in open("/proc/self/maps") if "memfd" in line]
    spans = [[int(end, 16) for end in row[0].split("-")] for row in rows]
    return any(start <= tensor.data_ptr() < end for start, end in spans)

def hook(state, bucket):
    seen.append(shared(bucket.buffer()))
    work = c10d.all_reduce(bucket.buffer().div_(2), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])

for dtype in (torch.float32, torch.bfloat16):
    seen = []
    torch.manual_seed(0)
    layers = [torch.nn.Linear(300, 300) for _ in range(6)]
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers, torch.nn.Linear(300, 1)).to(dtype), gradient_as_bucket_view=True
    )
    model.register_comm_hook(None, hook)
    for _ in range(3):  # torch lays the buckets out anew behind the first one
        model.zero_grad()
        model(torch.full((2, 300), rank + 1.0, dtype=dtype)).sum().backward()
    print(sorted(set(seen)), len(seen), flush=True)
small = DistributedDataParallel(torch.nn.Linear(4, 4), gradient_as_bucket_view=True)
small(torch.ones(2, 4)).sum().backward()
print("small", shared(small.module.weight.grad), shared(model.module[0].weight.grad), flush=True)
before = [parameter.grad.clone() for parameter in model.parameters()]
c10d.destroy_process_group()
after = [parameter.grad for parameter in model.parameters()]
print("kept", all(map(torch.equal, before, after)), before[0].any().item(), flush=True)
"""


UNEVEN = """
import torch, torch.distributed as c10d
from torch.distributed._functional_collectives import wait_tensor
from torch.nn.parallel import DistributedDataParallel
c10d.init_process_group("aiodist")
rank = c10d.get_rank()
found = []
for group in (None, c10d.new_group(backend="gloo")):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group)
    with model.join(divide_by_initial_world_size=False):
        for turn in range(1 + 2 * rank):
            model(torch.full((2, 3), turn + 2.0 * rank)).sum().backward()
    found.append(model.module.weight.grad)
    model(torch.ones(2, 3))
print("same", torch.equal(*found), flush=True)
one = torch.ones(300_000)
torch._C._distributed_c10d._register_work(one, c10d.group.WORLD.allreduce([one]))
print("registered", wait_tensor(one).sum().item(), flush=True)
c10d.destroy_process_group()
"""


TOGETHER = """
import contextlib, gc, io, json, sys, time
import torch.distributed as c10d
gate = c10d.FileStore(sys.argv[2], 2)
for name, code in json.loads(sys.argv[1]).items():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
    print(json.dumps([name, out.getvalue()]), flush=True)
    gc.collect()  # with the group goes the store that rank 0 serves: else rank 1 meets the next time there
    gate.add(name, 1)
    while gate.add(name, 0) < 2:
        time.sleep(0.01)
"""


def run(
    script: str, tmp_path: Path, size: int, *options: str, words: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    job = tmp_path / "job.py"
    job.write_text(script)
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", str(size), *options, str(job)]
    return run_to_end([*command, *words], {**os.environ, "OMP_NUM_THREADS": "1"}, 250)


def run_together(scripts: dict[str, str], tmp_path: Path, *options: str) -> tuple[dict[str, str], str]:
    """Run programs one after the other in one job of two ranks: torch's import takes longest.

    Returns:
        What each has printed, both ranks together, and what came on stderr.
    """
    ended = run(
        TOGETHER,
        tmp_path,
        2,
        *options,
        "--line-prefix-template",
        "",
        words=[json.dumps(scripts), str(tmp_path / "gate")],
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = dict.fromkeys(scripts, "")
    for line in filter(None, ended.stdout.splitlines()):
        name, out = json.loads(line)
        said[name] += out
    return said, ended.stderr


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What programs have printed that end well on two ranks, by name."""
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    norm = page.partition("```python batchnorm\n")[2].partition("```")[0] + BATCH_NORM
    scripts = {"pending": PENDING, "bad": BAD, "buckets": BUCKETS, "uneven": UNEVEN, "norm": norm}
    return run_together(scripts, tmp_path_factory.mktemp("torch"))[0]


@pytest.mark.slow(COSTLY)
def test_programs_that_say_gloo_and_one_that_gloo_itself_serves_with_a_warning(tmp_path: Path) -> None:
    told, errors = run_together({"gloo": GLOO, "mixed": MIXED, "plain": PLAIN}, tmp_path, "--torch")
    assert told["gloo"].count("gloo GlooStandIn [2.0, 2.0, 2.0]") == 2
    assert errors.count("where a program asks torch for gloo, its groups are aiodist's") == 1
    assert told["mixed"].count("ProcessGroupGloo [3.0, 3.0, 3.0]") == 2, told["mixed"]
    assert told["plain"].count("GlooStandIn [6.0, 6.0, 6.0]") == 2, told["plain"]
    assert errors.count("gloo itself serves a group of cpu:gloo,cuda:fake, not aiodist") == 1, errors


def test_who_dies_in_backward_is_named_in_every_survivor(tmp_path: Path) -> None:
    ended = run(DIES, tmp_path, 3, "--on-failure", "continue")
    told = [line for line in ended.stdout.splitlines() if "told:" in line]
    assert len(told) == 2, ended.stdout + ended.stderr
    assert all("PeerLost: lost rank 1" in line for line in told)
    assert ended.stdout.count("cause: PeerLost") == 2


@pytest.mark.slow(MORE)
def test_who_raises_is_named_in_every_survivor_and_failed_first(tmp_path: Path) -> None:
    ended = run(RAISES, tmp_path, 2)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "rank 1 failed first" in ended.stderr
    assert "ValueError: no such file" in ended.stderr.partition("rank 1 failed first")[2]
    assert "GroupAborted: rank 1 aborted the group: ValueError: no such file" in ended.stdout + ended.stderr


def test_destroy_waits_for_no_receive_of_what_nobody_sends(said: dict[str, str]) -> None:
    found = said["pending"]  # the other rank may have closed first, and has sent nothing
    assert found.count("closed: GroupClosed: ") + found.count("closed: PeerClosed: ") == 6, found


def test_what_cannot_be_sent_is_refused_and_nothing_lost(said: dict[str, str]) -> None:
    found = said["bad"]
    assert "passed" not in found, found
    assert found.count("then 2.0 [2.0, 2.0]") == 2, found
    assert found.count("after ") == 2
    assert found.count("meta 1 ") == 2


def test_large_buckets_of_torchs_wrapper_lie_where_peers_read_them(said: dict[str, str]) -> None:
    if not (available() and supported()):
        pytest.skip("ranks of one host share memory on Linux, with the compiled engine")
    found = said["buckets"]
    assert found.count("[True] 5") == 2, found  # one bucket, and then two
    assert found.count("[True] 3") == 2, found
    assert found.count("small False True") == 2, found
    assert found.count("kept True True") == 2, found


def test_works_that_only_cpp_keeps_are_waited_for(said: dict[str, str]) -> None:
    assert said["uneven"].count("same True") == 2, said["uneven"]
    assert said["uneven"].count("registered 600000.0") == 2, said["uneven"]


@pytest.mark.slow(COSTLY)
def test_import_of_torch_loads_nothing_of_ours_but_the_entry() -> None:
    code = "import sys, torch; print(sorted(name for name in sys.modules if name.startswith('aiodist')))"
    ended = run_to_end([sys.executable, "-c", code], dict(os.environ), 100)
    assert ended.returncode == 0, ended.stderr
    loaded = [
        "aiodist",
        "aiodist.integrations",
        "aiodist.integrations.torch",
        "aiodist.integrations.torch.entry",
    ]
    assert ended.stdout.startswith(str(loaded)), ended.stdout


BROKEN = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("numpy", "msgpack", "uvloop", "ml_dtypes") or (
            name.startswith("aiodist.") and not "aiodist.integrations.torch.entry".startswith(name)
        ):
            raise ModuleNotFoundError(f"{name} is broken")

sys.meta_path.insert(0, Missing())
"""
ALONE = """
import warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as c10d
for name in ("aiodist", "gloo"):
    try:
        c10d.init_process_group(name, store=c10d.HashStore(), rank=0, world_size=1)
        one = torch.ones(1)
        c10d.all_reduce(one)
        print(name, one.item())
    except Exception as error:
        print(name, type(error).__name__, error)
"""


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    ("broken", "environ", "said"),
    [
        (BROKEN, {}, "aiodist ModuleNotFoundError aiodist.integrations.torch.meeting is broken\ngloo 1.0"),
        ("", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "aiodist AssertionError Unknown backend type aiodist"),
    ],
    ids=["install", "switched-off"],
)
def test_torch_is_as_without_us_where_ours_is_broken(
    broken: str, environ: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(broken)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    ended = run_to_end(
        [sys.executable, "-c", ALONE],
        {**os.environ, **environ, "PYTHONPATH": os.pathsep.join(paths)},
        100,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(said), ended.stdout + ended.stderr
    assert ended.stdout.endswith("gloo 1.0\n"), ended.stdout + ended.stderr


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow(MORE))])
def test_every_call_gives_what_gloo_gives(size: int) -> None:
    command = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", str(size), str(JOB)]
    ended = run_to_end(command, {**os.environ, "OMP_NUM_THREADS": "1"}, 250)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("same") == size


BATCH_NORM = """
import torch.distributed as c10d
c10d.init_process_group("aiodist")
rank, size = c10d.get_rank(), c10d.get_world_size()
whole, factors = torch.randn(2, 4 * size, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
expected, seen = torch.nn.BatchNorm1d(5).double(), whole.clone().requires_grad_()
(expected(seen) * factors).square().sum().backward()
ours, mine = SyncBatchNorm(5).double(), whole.chunk(size)[rank].clone().requires_grad_()
(ours(mine) * factors.chunk(size)[rank]).square().sum().backward()
assert torch.allclose(mine.grad, seen.grad.chunk(size)[rank])
for here, there in zip(ours.parameters(), expected.parameters()):
    c10d.all_reduce(here.grad)
    assert torch.allclose(here.grad, there.grad)
assert torch.allclose(ours.running_mean, expected.running_mean)
assert torch.allclose(ours.running_var, expected.running_var)
print("same", flush=True)
c10d.destroy_process_group()
"""


def test_the_batch_norm_of_the_docs_is_that_of_the_whole_batch(said: dict[str, str]) -> None:
    assert said["norm"].count("same") == 2, said["norm"]


@pytest.mark.parametrize(
    ("size", "backend"),
    [
        (2, "aiodist"),
        *(pytest.param(*case, marks=pytest.mark.slow(MORE)) for case in ((3, "aiodist"), (2, "gloo"))),
    ],
)
def test_what_callbacks_issue_has_one_order(size: int, backend: str) -> None:
    job = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", str(size), "--torch", str(CALLBACKS)]
    ended = run_to_end([*job, backend], {**os.environ, "OMP_NUM_THREADS": "1"}, 250)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("in order") == size


@pytest.mark.slow(MORE)
def test_who_dies_is_named_where_a_hook_averages() -> None:
    job = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", "3", "--on-failure", "continue"]
    ended = run_to_end([*job, str(CALLBACKS), "aiodist", "1"], {**os.environ, "OMP_NUM_THREADS": "1"}, 250)
    told = [line for line in ended.stdout.splitlines() if "told:" in line]
    assert len(told) == 2, ended.stdout + ended.stderr
    assert all("PeerLost: lost rank 1" in line for line in told), told
