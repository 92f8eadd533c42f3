"""A training script as users of torch write it, whatever the backend: nothing in it is aiodist's.

`aiodist run --nproc-per-node 2 torch_training_job.py --backend aiodist --checkpoint FILE`. Every rank prints
its losses by `float.hex`, so that two runs can be compared bit by bit, and at the end a digest of
its parameters.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES = 4
FEATURES = 12
SAMPLES = 96


class Network(nn.Module):  # type: ignore[misc]
    """A small network with a BatchNorm, whose buffers DDP broadcasts, and a part that not all steps use.

    Args:
        skips: every second forward leaves the second branch out.
    """

    def __init__(self, skips: bool) -> None:
        super().__init__()
        self.skips = skips
        self.turn = 0
        self.body = nn.Sequential(nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.branch = nn.Linear(32, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        """Logits."""
        hidden = self.body(given)
        if not (self.skips and self.turn % 2):
            hidden = hidden + self.branch(hidden)
        self.turn += 1
        return self.head(hidden)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--stop-after", type=int, help="epochs, as if the job had been ended there")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--workers", choices=["fork", "spawn"], default="fork")
    parser.add_argument("--find-unused", action="store_true")
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--bucket-view", action="store_true")
    parser.add_argument("--mixed", action="store_true")
    return parser.parse_args()


def data(seed: int) -> TensorDataset:
    """Points of a few clouds, and which cloud each is of."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    points = torch.randn(SAMPLES, FEATURES, generator=generator)
    points[torch.arange(SAMPLES), labels] += 2.0
    return TensorDataset(points, labels)


def say(*words: object) -> None:
    """Print a line at once: under torchrun all ranks write to one pipe."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def digest(model: nn.Module) -> str:
    """A digest of all parameters and buffers, bit by bit."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def save(path: Path, epoch: int, parts: dict[str, Any]) -> None:
    """Write a checkpoint, on rank 0; the others wait."""
    if dist.get_rank() == 0:
        torch.save({"epoch": epoch, **{name: part.state_dict() for name, part in parts.items()}}, path)
    dist.barrier()


def load(path: Path, parts: dict[str, Any]) -> int:
    """Take over a checkpoint → the epoch to begin with. Rank 0 says where it lies; all read it."""
    where: list[Any] = [str(path) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(where, src=0)
    found = torch.load(where[0], map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(found[name])
    epoch = torch.tensor([found["epoch"] if dist.get_rank() == 0 else -1])
    dist.broadcast(epoch, src=0)
    assert epoch.item() == found["epoch"]
    return int(epoch.item()) + 1


def evaluate(model: nn.Module, seen: float) -> None:
    """Print what all ranks agree on: accuracy, by a sum, and each rank's mean loss, by objects."""
    model.eval()
    points, labels = data(99).tensors
    rank, size = dist.get_rank(), dist.get_world_size()
    with torch.no_grad():
        right = (model(points[rank::size]).argmax(1) == labels[rank::size]).sum()
    counts = torch.stack([right, torch.tensor(len(labels[rank::size]))])
    dist.all_reduce(counts, op=dist.ReduceOp.SUM)
    losses: list[Any] = [None] * size
    dist.all_gather_object(losses, {"rank": rank, "loss": seen})
    assert [one["rank"] for one in losses] == list(range(size))
    if rank == 0:
        say("metrics", counts.tolist(), *(float.hex(float(one["loss"])) for one in losses))
    model.train()


def train(options: argparse.Namespace) -> None:
    """Train, between `init_process_group` and `destroy_process_group`."""
    rank = dist.get_rank()
    torch.manual_seed(7 + rank)  # DDP makes the parameters those of rank 0
    dataset = data(1)
    sampler: DistributedSampler[Any] = DistributedSampler(dataset, shuffle=True, seed=5)
    loader = DataLoader(
        dataset,
        batch_size=6,
        sampler=sampler,
        num_workers=2,
        multiprocessing_context=None if options.workers == "fork" else options.workers,
        persistent_workers=options.workers == "spawn",
    )
    network = Network(options.find_unused)
    model = DistributedDataParallel(
        network,
        find_unused_parameters=options.find_unused,
        static_graph=options.static_graph,
        gradient_as_bucket_view=options.bucket_view,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=128.0, enabled=options.mixed)
    parts = {"model": network, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    first = load(options.checkpoint, parts) if options.resume else 0
    every = 2  # batches a step
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        total = 0.0
        for number, (points, labels) in enumerate(loader):
            last = number % every == every - 1 or number == len(loader) - 1
            # torch takes no other graph than that of the first step from a static one
            apart = contextlib.nullcontext() if last or options.static_graph else model.no_sync()
            with apart:
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.mixed):
                    loss = nn.functional.cross_entropy(model(points), labels)
                scaler.scale(loss / every).backward()
            say(f"loss {rank} {epoch} {number} {loss.item().hex()}")
            total += loss.item()
            if last:
                scaler.unscale_(optimizer)
                norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                say(f"norm {rank} {epoch} {number} {norm.item().hex()}")
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        schedule.step()
        evaluate(model, total / len(loader))
        save(options.checkpoint, epoch, parts)
        if options.stop_after == epoch + 1:
            return
    say("digest", rank, digest(network))
    flat = torch.cat([parameter.detach().flatten() for parameter in network.parameters()])
    if rank == 0:
        say("parameters", *map(float.hex, flat.tolist()))


def main() -> None:
    """Train as the command line says."""
    options = arguments()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group(options.backend)
    say("group", dist.get_backend(), type(dist.group.WORLD).__name__)
    train(options)
    dist.destroy_process_group()
    say("ended")


if __name__ == "__main__":
    main()
