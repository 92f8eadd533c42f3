"""A TorchTrainer of Ray Train's with two workers: `ray_job.py FOLDER [--backend NAME] [--dies]`."""

from __future__ import annotations

import tempfile
from typing import Any

import ray
import torch
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer, prepare_data_loader, prepare_model
from torch.utils.data import DataLoader

from tests.integration.frameworks.common import DYING, STEP, data, die, model, tell, tell_error, words


def loop(config: dict[str, Any]) -> None:
    """What each worker runs."""
    whole = model()
    spread = prepare_model(whole)
    torch.manual_seed(3)
    loader = prepare_data_loader(DataLoader(data(), batch_size=8, shuffle=True))
    step = torch.optim.SGD(spread.parameters(), 0.01, momentum=0.9)
    losses: list[float] = []
    try:
        for epoch in range(3):
            loader.sampler.set_epoch(epoch)
            for inputs, targets in loader:
                loss = torch.nn.functional.mse_loss(spread(inputs), targets)
                step.zero_grad()
                loss.backward()
                step.step()
                losses.append(loss.item())
                dying = train.get_context().get_world_rank() == DYING and len(losses) == STEP
                if config["dies"] and dying:
                    die(config["folder"])
            train.report({"loss": losses[-1]})
    except RuntimeError as error:
        tell_error(config["folder"], error)
        raise
    tell(config["folder"], losses, [], whole)


def main() -> None:
    """Train."""
    asked = words().parse_args()
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as place:
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=10**8, _temp_dir=place)
        try:
            TorchTrainer(
                loop,
                train_loop_config={"folder": asked.folder, "dies": asked.dies},
                torch_config=TorchConfig(backend=asked.backend),
                scaling_config=train.ScalingConfig(num_workers=2),
                run_config=train.RunConfig(storage_path=str(asked.folder)),
            ).fit()
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
