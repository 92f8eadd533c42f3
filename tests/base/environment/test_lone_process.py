"""Who else was started with a process that would be a job of its own; and who was not."""

from __future__ import annotations

import pytest

from aiodist.base.environment.lone_process import (
    Company,
    chosen,
    company_of_agent,
    company_of_rank,
    company_of_script,
)
from aiodist.base.errors import UsageError

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}
STEP = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
HOROVOD = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"}
JAX = {"JAX_PROCESS_ID": "0", "JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "j:6666"}
POD = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "t"}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "1"}
NODES = {"SLURM_JOB_NUM_NODES": "2"}
INDEXED = {"JOB_COMPLETION_INDEX": "0"}
WORKER = {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "j", "AIODIST_STORE": "h:1"}
PTY = {**BATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}


def kind(company: Company | None) -> str:
    """'HOROVOD_SIZE=2', with a question mark where it may be innocent; '' for nobody."""
    return "" if company is None else company.said + ("" if company.certain else "?")


@pytest.mark.parametrize(
    ("environ", "script", "agent"),
    [
        ({}, "", ""),
        (OPEN_MPI, "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_SIZE=2"),
        (HYDRA, "PMI_SIZE=2", "PMI_SIZE=2"),
        (STEP, "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NUM_TASKS=2"),
        (HOROVOD, "HOROVOD_SIZE=2", "HOROVOD_SIZE=2"),
        (JAX, "JAX_NUM_PROCESSES=2", "JAX_NUM_PROCESSES=2"),
        # `aiodist run` reads these as its options.
        (POD, "PET_NNODES=2", ""),
        ({**POD, "PET_NNODES": "1:4"}, "PET_NNODES=1:4", ""),
        ({**POD, "PET_NNODES": "1"}, "", ""),
        ({**POD, "PET_NNODES": "1", "PET_NPROC_PER_NODE": "gpu"}, "PET_NPROC_PER_NODE=gpu?", ""),
        # They stand in the shell of a batch script, and of an allocation.
        (BATCH, "SLURM_NTASKS=4?", "SLURM_NTASKS=4?"),
        ({**BATCH, "SLURM_NTASKS": "3"}, "SLURM_NTASKS=3?", ""),
        ({**BATCH, "SLURM_NTASKS": "3", **NODES}, "SLURM_NTASKS=3?", "SLURM_JOB_NUM_NODES=2?"),
        (INDEXED, "JOB_COMPLETION_INDEX=0?", "JOB_COMPLETION_INDEX=0?"),
        # One task, which says so, whatever was asked for in all.
        (PTY, "", ""),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}, "", ""),
        ({**HYDRA, "PMI_SIZE": "1"}, "", ""),
        # Of mpirun's helpers, which srun has started.
        ({**STEP, **OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}, "", ""),
        ({**STEP, **HYDRA, "PMI_SIZE": "1"}, "", ""),
        # A worker that starts a job; also where its agent was started by srun.
        (WORKER, "", "RANK=1 WORLD_SIZE=2?"),
        ({**WORKER, **STEP}, "SLURM_STEP_NUM_TASKS=2", "RANK=1 WORLD_SIZE=2?"),
        ({**WORKER, "WORLD_SIZE": "1"}, "", ""),
        # Counts that do not say which process this is.
        ({"PMI_SIZE": "2"}, "PMI_SIZE=2?", "PMI_SIZE=2?"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_SIZE=2?", "OMPI_COMM_WORLD_SIZE=2?"),
        ({"SLURM_STEP_NUM_TASKS": "2"}, "SLURM_STEP_NUM_TASKS=2?", "SLURM_STEP_NUM_TASKS=2?"),
        # Ranks, of which nothing says how many there are.
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_RANK=1?", "OMPI_COMM_WORLD_RANK=1?"),
        ({"OMPI_COMM_WORLD_RANK": "0", "PMI_RANK": " "}, "", ""),
        ({"PMI_SIZE": " ", "HOROVOD_SIZE": "", "SLURM_NTASKS": "1"}, "", ""),
    ],
)  # fmt: skip
def test_company(environ: dict[str, str], script: str, agent: str) -> None:
    assert kind(company_of_script(environ)) == script
    assert kind(company_of_agent(environ, 3)) == agent


@pytest.mark.parametrize("environ", [OPEN_MPI, HYDRA, STEP, HOROVOD, JAX, POD, BATCH, INDEXED])
def test_what_to_do_is_said(environ: dict[str, str]) -> None:
    script = company_of_script(environ)
    assert script is not None and "AIODIST_ALONE=1" in script.hint
    if script.certain:
        assert "world_size=1" in script.hint
        assert (
            "aiodist run" if environ is POD else "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        ) in script.hint
    agent = company_of_agent(environ, 3)
    assert agent is None or ("--nnodes" in agent.hint and "AIODIST_ALONE=1" in agent.hint)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, ""),
        (OPEN_MPI, "OMPI_COMM_WORLD_SIZE=2?"),
        (STEP, "SLURM_STEP_NUM_TASKS=2?"),
        ({**STEP, **OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "1"}, ""),
        # What does not say which process this is may well have been left over itself.
        ({"OMPI_COMM_WORLD_SIZE": "2"}, ""),
        (BATCH, ""),
        (POD, ""),
    ],
)
def test_company_of_rank_0_of_1(environ: dict[str, str], said: str) -> None:
    company = company_of_rank({**environ, "RANK": "0", "WORLD_SIZE": "1"})
    assert kind(company) == said
    assert company is None or "AIODIST_ALONE=1" in company.hint


def test_alone_by_choice() -> None:
    assert chosen({}) == chosen({"AIODIST_ALONE": "0"}) == chosen({}, 2) == ""
    assert chosen({}, 1) == "world_size=1"
    assert chosen({"AIODIST_ALONE": "yes"}) == "AIODIST_ALONE=yes"
    with pytest.raises(UsageError):
        chosen({"AIODIST_ALONE": "2"})
