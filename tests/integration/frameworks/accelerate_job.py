"""A loop with an Accelerator of Hugging Face's: `accelerate_job.py FOLDER [--backend NAME] [--dies]`."""

from __future__ import annotations

import torch
import torch.distributed as c10d
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

from tests.integration.frameworks.common import DYING, STEP, data, die, model, tell, tell_error, words


def main() -> None:
    """Train."""
    asked = words().parse_args()
    if asked.backend:  # before the Accelerator, which takes a group that is there
        c10d.init_process_group(asked.backend)
    accelerator = Accelerator(cpu=True)
    set_seed(3)
    whole = model()
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    spread, step, loader = accelerator.prepare(
        whole, torch.optim.SGD(whole.parameters(), 0.01, momentum=0.9), loader
    )
    losses: list[float] = []
    averages: list[float] = []
    try:
        for _ in range(3):
            for inputs, targets in loader:
                loss = torch.nn.functional.mse_loss(spread(inputs), targets)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(spread.parameters(), 10.0)
                step.step()
                step.zero_grad()
                losses.append(loss.item())
                averages.append(accelerator.gather_for_metrics(loss.detach().reshape(1)).mean().item())
                averages.append(accelerator.reduce(loss.detach(), "mean").item())
                if asked.dies and accelerator.process_index == DYING and len(losses) == STEP:
                    die(asked.folder)
            accelerator.wait_for_everyone()
    except RuntimeError as error:
        tell_error(asked.folder, error)
        raise
    tell(asked.folder, losses, averages, accelerator.unwrap_model(spread))
    accelerator.end_training()


if __name__ == "__main__":
    main()
