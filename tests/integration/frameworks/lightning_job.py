"""Lightning's Trainer: `lightning_job.py FOLDER [--backend NAME] [--environment] [--sharded] [--dies]`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from tests.integration.frameworks.common import DYING, STEP, data, die, model, tell, tell_error, words


class Model(LightningModule):  # type: ignore[misc]
    """The common model; it keeps its losses."""

    def __init__(self, sharded: bool) -> None:
        super().__init__()
        self.layers = model()
        self.losses: list[float] = []
        self.averages: list[float] = []
        self._sharded = sharded

    def configure_model(self) -> None:
        """Spread the weights over the ranks, where that is asked for."""
        if self._sharded:
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("validation", loss, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        self.averages.append(self.trainer.callback_metrics["validation"].item())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01, momentum=0.9)


class Watch(Callback):  # type: ignore[misc]
    """Kills a rank in the middle, if asked, and tells what the others hear; at the end, what was found."""

    def __init__(self, folder: Path, dies: bool) -> None:
        self._folder = folder
        self._dies = dies

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if self._dies and trainer.global_rank == DYING and trainer.global_step == STEP:
            die(self._folder)

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        tell_error(self._folder, exception)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        tell(self._folder, module.losses, module.averages, module.layers)


def main() -> None:
    """Train."""
    parser = words()
    parser.add_argument("--environment", action="store_true", help="aiodist's plugin says who is here")
    parser.add_argument("--sharded", action="store_true", help="the weights are spread over the ranks")
    asked = parser.parse_args()
    plugins = None
    if asked.environment:
        from aiodist.integrations.lightning import AiodistEnvironment

        plugins = [AiodistEnvironment()]
    strategy: Strategy = DDPStrategy(process_group_backend=asked.backend)
    if asked.sharded:
        strategy = ModelParallelStrategy(2, 1, process_group_backend=asked.backend)
    warnings.simplefilter("ignore")
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        plugins=plugins,
        max_epochs=3,
        callbacks=[Watch(asked.folder, asked.dies)],
        default_root_dir=asked.folder,
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(
        Model(asked.sharded), DataLoader(data(), batch_size=8, shuffle=True), DataLoader(data(), batch_size=8)
    )


if __name__ == "__main__":
    main()
