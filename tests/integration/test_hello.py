"""examples/hello.py, unchanged, under each launcher's variables: right ranks, local ranks and nodes."""

from __future__ import annotations

import http.server
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))  # `benchmarks` is not part of the wheel

from benchmarks import mpi
from tests.levels import COSTLY, MORE
from tests.processes import run_to_end

ROOT = Path(__file__).parents[2]
HELLO = str(ROOT / "examples" / "hello.py")
BOTH = str(Path(__file__).parent / "both_libraries.py")
LINE = re.compile(
    r"rank (\d+) of (\d+): local rank (\d+) of (\d+), node (\d+) of (\d+), host \S+, pid \d+, sum (\d+)"
)
PATIENCE = 120.0
SLOW = pytest.mark.slow(MORE)
TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
pytestmark = pytest.mark.timeout(200)

Environ = dict[str, str]
# What this test's own surroundings may have set.
FOREIGN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "AIODIST_",
    "OMPI_",
    "PMI",
    "SLURM_",
    "PET_",
    "HOROVOD_",
    "JAX_",
)


def run(command: list[str], environ: Environ) -> str:
    """What a command that ends well prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    ended = run_to_end(command, {**kept, "OMP_NUM_THREADS": "1", **environ}, PATIENCE)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def each(environs: list[Environ], script: str = HELLO, *words: str) -> str:
    """Run the script once with each of these environments, all at the same time."""
    with ThreadPoolExecutor(len(environs)) as pool:
        started = [pool.submit(run, [sys.executable, script, *words], environ) for environ in environs]
        return "".join(one.result() for one in started)


def check(out: str, places: list[tuple[int, int, int, int]]) -> None:
    """All ranks said hello, at these places: local rank and size, node and count."""
    size = len(places)
    found = [tuple(map(int, match.groups())) for match in LINE.finditer(out)]
    assert found == [(rank, size, *place, size * (size + 1) // 2) for rank, place in enumerate(places)], out


ONE_NODE = [(0, 2, 0, 1), (1, 2, 0, 1)]
TWO_NODES = [(0, 1, 0, 2), (0, 1, 1, 2)]


def test_aiodist_run() -> None:
    agent = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node", "3"]
    check(run([*agent, HELLO], {}), [(local, 3, 0, 1) for local in range(3)])


@pytest.mark.slow(COSTLY)
@TORCH
@pytest.mark.parametrize(
    "words",
    [["torch.distributed.run", "--standalone"], pytest.param(["torch.distributed.launch"], marks=SLOW)],
)
def test_torchrun_and_launch_that_adds_a_word(words: list[str], port: int) -> None:
    place = [] if "--standalone" in words else ["--master-port", str(port)]
    check(run([sys.executable, "-m", *words, *place, "--nproc-per-node", "2", HELLO], {}), ONE_NODE)


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize("flavour", mpi.FLAVOURS, ids=lambda flavour: flavour.name)
def test_mpirun_says_no_node_and_it_is_known(flavour: mpi.Flavour) -> None:
    found = mpi.find(flavour, None, mpi.search_path(), mpi.own_prefix())
    if isinstance(found, str):
        pytest.skip(f"{flavour.name}: {found}")
    crowded = ["--oversubscribe"] if flavour.name == "openmpi" else []
    check(run([found.launcher, *crowded, "-n", "2", sys.executable, HELLO], found.env), ONE_NODE)


def by_hand(port: int) -> list[Environ]:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{"RANK": str(rank), **place} for rank in range(2)]


def deepspeed(port: int) -> list[Environ]:
    """What its launcher of one node sets."""
    node = {"LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
    return [{**environ, **node, "LOCAL_RANK": environ["RANK"]} for environ in by_hand(port)]


def pytorch_job(port: int) -> list[Environ]:
    """A pod of one process each, on one machine here: what says that these are two nodes is GROUP_RANK."""
    return [{**environ, "PET_NNODES": "2", "GROUP_RANK": environ["RANK"]} for environ in by_hand(port)]


def pods(port: int) -> list[Environ]:
    place = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port), "PET_NNODES": "2"}
    return [{"PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": "1", **place} for rank in range(2)]


def indexed_job(port: int) -> list[Environ]:
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [{"JOB_COMPLETION_INDEX": str(rank), **place} for rank in range(2)]


def jax(port: int) -> list[Environ]:
    place = {"JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}"}
    return [{"JAX_PROCESS_ID": str(rank), **place} for rank in range(2)]


def slurm(port: int) -> list[Environ]:
    """Two tasks of a step on one node, where MASTER_PORT replaces the step's."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_GTIDS": "0,1"}
    node = {"SLURM_NODEID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1"}
    return [
        {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "MASTER_PORT": str(port), **step, **node}
        for rank in range(2)
    ]


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    ("launcher", "places"),
    [
        (by_hand, ONE_NODE),
        pytest.param(deepspeed, ONE_NODE, marks=SLOW),
        (pytorch_job, TWO_NODES),
        pytest.param(pods, TWO_NODES, marks=SLOW),
        pytest.param(indexed_job, ONE_NODE, marks=SLOW),
        pytest.param(jax, ONE_NODE, marks=SLOW),
        (slurm, ONE_NODE),
    ],
)
def test_variables_of(
    launcher: Callable[[int], list[Environ]], places: list[tuple[int, int, int, int]], port: int
) -> None:
    check(each(launcher(port)), places)


@pytest.fixture
def horovodrun() -> Iterator[int]:
    """The port of a store such as horovodrun serves."""
    texts: dict[str, bytes] = {}

    class KeyValues(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            _, _, _ = self.path.split("/")  # a scope and a key
            texts[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200, b"")

        def do_GET(self) -> None:
            self.answer(200 if self.path in texts else 404, texts.get(self.path, b""))

        def answer(self, status: int, text: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), KeyValues) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.slow(COSTLY)
def test_horovodrun(horovodrun: int) -> None:
    """horovodrun itself is not here; its store is one of two requests."""
    store = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(horovodrun)}
    node = {"HOROVOD_LOCAL_SIZE": "2", "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1"}
    ranks = [{"HOROVOD_RANK": str(r), "HOROVOD_LOCAL_RANK": str(r), "HOROVOD_SIZE": "2"} for r in range(2)]
    check(each([{**rank, **store, **node} for rank in ranks]), ONE_NODE)


@pytest.mark.slow(COSTLY)
@TORCH
@pytest.mark.parametrize(
    ("order", "more"),
    [
        ("torch aiodist torch", {}),
        pytest.param("aiodist torch", {"AIODIST_SHARE_PORT": "1"}, marks=SLOW),
        pytest.param("aiodist torch", {"ACCELERATE_MIXED_PRECISION": "no"}, marks=SLOW),
        pytest.param("torch aiodist", {"AIODIST_SHARE_PORT": "1"}, marks=SLOW),
    ],
)
def test_torch_in_the_same_process(order: str, more: Environ, port: int) -> None:
    out = each([{**environ, **more} for environ in by_hand(port)], BOTH, *order.split())
    assert sorted(re.findall(r"<(.*?)>", out)) == sorted(
        f"{step}: {rank} of 2, 111" for step in order.split() for rank in range(2)
    )


@pytest.mark.slow(COSTLY)
@TORCH
def test_ranks_that_only_torch_was_told(port: int) -> None:
    """As Lightning and others have it: no RANK, no WORLD_SIZE."""
    where = f"tcp://127.0.0.1:{port}"
    with ThreadPoolExecutor(2) as pool:
        started = [
            pool.submit(
                run, [sys.executable, BOTH, f"{where}?{rank}", "torch", "aiodist"], {"LOCAL_RANK": str(rank)}
            )
            for rank in range(2)
        ]
        out = "".join(one.result() for one in started)
    assert sorted(re.findall(r"<(aiodist.*?)>", out)) == ["aiodist: 0 of 2, 111", "aiodist: 1 of 2, 111"]
