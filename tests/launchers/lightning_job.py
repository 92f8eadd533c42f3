"""A trainer of Lightning's runs a script: `lightning_job.py [--environment] SCRIPT [WORD …]`."""

from __future__ import annotations

import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from tests.launchers.scripts import run_script

_words = sys.argv[1:]


class Model(LightningModule):  # type: ignore[misc]
    """One weight; at the start of training each rank runs the script."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def on_train_start(self) -> None:
        run_script(_words[_words[0] == "--environment" :])

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


if __name__ == "__main__":
    plugins = []
    if _words[0] == "--environment":
        from aiodist.integrations.lightning import AiodistEnvironment

        plugins.append(AiodistEnvironment())
    data = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, plugins=plugins or None, **quiet
    )
    trainer.fit(Model(), data)
