"""Agents that srun or mpirun started: one a node is a job of several nodes, several a node are refused."""

from __future__ import annotations

import pytest

from aiodist.base.errors import UsageError
from aiodist.cli.commands.run import make_config
from aiodist.launch.under_srun import Inside, inside

MPICH = {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
}  # fmt: skip
SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_LOCALID": "0", "SLURM_GTIDS": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NODELIST": "n[1-3]",
}  # fmt: skip


@pytest.mark.parametrize(("environ", "name"), [(MPICH, "MPICH"), (OPEN_MPI, "Open MPI"), (SLURM, "Slurm")])
def test_one_agent_a_node(environ: dict[str, str], name: str) -> None:
    assert inside(environ) == Inside(name, 3, 1)
    # Variables of a worker, which an agent may be started in, say nothing of it.
    assert inside({**environ, "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "x"}) == Inside(
        name, 3, 1
    )


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "1", "WORLD_SIZE": "2"},
        {**MPICH, "PMI_SIZE": "1", "PMI_RANK": "0"},
        {**MPICH, "PMI_RANK": "x"},
        # A worker of such an agent: what it starts is a job of its own.
        {**SLURM, "RANK": "0", "WORLD_SIZE": "6", "AIODIST_STORE": "n1:1"},
    ],
)
def test_an_agent_that_is_alone(environ: dict[str, str]) -> None:
    assert inside(environ) is None


@pytest.mark.parametrize(
    ("environ", "how"),
    [
        ({**MPICH, "MPI_LOCALNRANKS": "3"}, "mpiexec -ppn 1"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "mpirun --map-by ppr:1:node"),
        ({**SLURM, "SLURM_GTIDS": "1,2", "SLURM_STEP_NUM_NODES": "2"}, "srun --ntasks-per-node=1"),
        # It is another node that has two.
        ({**SLURM, "SLURM_GTIDS": "1", "SLURM_STEP_NUM_NODES": "2"}, "srun --ntasks-per-node=1"),
    ],
)
def test_several_agents_on_a_node_are_refused(environ: dict[str, str], how: str) -> None:
    with pytest.raises(UsageError, match=f"one agent starts all workers of its node.*{how}"):
        inside(environ)


def test_what_the_agent_makes_of_it() -> None:
    script = __file__
    config = make_config([script], SLURM)
    assert (config.nnodes, config.node_rank, config.master_addr, config.told_by) == (3, 1, "n1", "")
    assert config.master_port is not None
    assert config.master_port == make_config([script], {**SLURM, "SLURM_NODEID": "2"}).master_port
    assert make_config(["--master-port", "4444", script], SLURM).master_port == 4444
    with pytest.raises(UsageError, match="Give --nnodes, --node-rank and --master-addr"):
        make_config([script], {**SLURM, "SLURM_DISTRIBUTION": "arbitrary"})
    config = make_config([script], MPICH)
    assert (config.nnodes, config.node_rank, config.told_by) == (3, 1, "MPICH")
    # What the command line says of nodes comes first.
    assert make_config(["--nnodes", "1", script], MPICH).nnodes == 1
    assert make_config(["--standalone", script], MPICH).nnodes == 1
    assert make_config([script], {**MPICH, "AIODIST_ALONE": "1"}).nnodes == 1
