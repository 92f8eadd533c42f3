"""The launchers: what each needs, its command, and where its ranks sit. One module a family."""

from __future__ import annotations

from tests.launchers.cases import mpi, ours, pods, services, slurm, torch

CASES = (*ours.CASES, *torch.CASES, *mpi.CASES, *slurm.CASES, *services.CASES, *pods.CASES)
