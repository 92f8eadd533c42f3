"""A Trainer of Hugging Face's with a small BERT: `trainer_job.py FOLDER [--backend NAME] [--dies]`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as c10d
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tests.integration.frameworks.common import DYING, STEP, die, tell, tell_error, words


class Keeping(Trainer):  # type: ignore[misc]
    """A Trainer that keeps the losses of its rank."""

    losses: list[float]

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        found = super().compute_loss(model, inputs, return_outputs, **more)
        self.losses.append((found[0] if return_outputs else found).item())
        return found


class Dies(TrainerCallback):  # type: ignore[misc]
    """Kills a rank in the middle."""

    def __init__(self, folder: Any) -> None:
        self._folder = folder

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if args.process_index == DYING and state.global_step == STEP:
            die(self._folder)


def examples(count: int = 64) -> list[dict[str, Any]]:
    """Sentences of tokens, no two of which are alike."""
    random = torch.Generator().manual_seed(7)
    tokens = torch.randint(5, 50, (count, 12), generator=random)
    return [{"input_ids": row, "labels": int(row.sum()) % 2} for row in tokens]


def main() -> None:
    """Train."""
    asked = words().parse_args()
    if asked.backend:  # before the arguments: they make a group where there is none, of a few backends
        c10d.init_process_group(asked.backend)
    arguments = TrainingArguments(
        output_dir=str(asked.folder / "trainer"),
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
        seed=3,
    )
    torch.manual_seed(5)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=50, max_position_embeddings=16, **sizes))
    trainer = Keeping(
        model,
        arguments,
        train_dataset=examples(),
        eval_dataset=examples(30),
        callbacks=[Dies(asked.folder)] if asked.dies else [],
    )
    trainer.losses = []
    try:
        trainer.train()
    except RuntimeError as error:
        tell_error(asked.folder, error)
        raise
    logged = [line[key] for line in trainer.state.log_history for key in ("loss", "eval_loss") if key in line]
    tell(asked.folder, trainer.losses, logged, model)
    c10d.destroy_process_group()


if __name__ == "__main__":
    main()
