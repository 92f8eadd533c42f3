"""A Lightning script in which aiodist is used, too: the trainer's own launcher starts the second process."""

from __future__ import annotations

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

import aiodist as dist
from aiodist import portal


class Model(LightningModule):  # type: ignore[misc]
    """One weight; at the start of training its ranks say hello."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def on_train_start(self) -> None:
        with portal.init_process_group() as pg:
            total = np.array([pg.rank + 1.0])
            pg.all_reduce(total)
            print(
                f"rank {pg.rank} of {pg.size}: local rank {pg.local_rank} of {pg.local_size}, "
                f"node {pg.node_rank} of {pg.node_count}, sum {total[0]:g}",
                flush=True,
            )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    data = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, **quiet)
    trainer.fit(Model(), data)
    assert dist.is_available()
