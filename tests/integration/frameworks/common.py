"""What the frameworks' jobs share: a model, data of which ranks get different parts, what a rank tells."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as c10d
from torch.distributed.tensor import DTensor

DYING = 1  # the rank that kills itself
STEP = 4  # after so many steps


def words() -> argparse.ArgumentParser:
    """The command line of a job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="where each rank leaves what it found")
    parser.add_argument("--backend", help="what the program asks for; without it, what the framework likes")
    parser.add_argument("--dies", action="store_true", help=f"rank {DYING} is killed after {STEP} steps")
    return parser


def model() -> torch.nn.Module:
    """A small model, the same on all ranks. Its buffers are broadcast before each step."""
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 1)
    )


def data(count: int = 96) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Examples, no two of which are alike."""
    random = torch.Generator().manual_seed(7)
    inputs = torch.randn(count, 8, generator=random)
    return list(zip(inputs, inputs.square().sum(1, keepdim=True), strict=True))


def tell(folder: Path, losses: list[float], averages: list[float], trained: torch.nn.Module) -> None:
    """Leave what this rank found: its own losses, those that the framework averaged, the weights."""
    world: Any = c10d.group.WORLD
    weights = hashlib.sha256()
    for parameter in trained.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        weights.update(whole.detach().numpy().tobytes())
    found = {
        "backend": c10d.get_backend(),
        "group": type(world).__name__,
        "size": c10d.get_world_size(),
        "losses": losses,
        "averages": averages,
        "weights": weights.hexdigest(),
    }
    (folder / f"{c10d.get_rank()}.json").write_text(json.dumps(found))


def tell_error(folder: Path, error: BaseException) -> None:
    """Leave what an error told this rank."""
    (folder / f"{c10d.get_rank()}.error").write_text(f"{type(error).__name__}: {error}")


def die(folder: Path) -> None:
    """End this process as a kernel does that lacks memory."""
    (folder / "died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
