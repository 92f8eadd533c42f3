"""The model: a transformer that foretells the next character. The only module here that needs torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.training.language.text import ALPHABET, Tokens
from benchmarks.training.language.ways import WARM_UP


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, and of a rank's batch: `batch` pieces of `length` characters."""

    width: int = 256
    layers: int = 4
    heads: int = 4
    length: int = 128
    batch: int = 4


SHAPES = {"small": Shape(), "tiny": Shape(width=32, layers=4, heads=2, length=32, batch=2)}


class Block(nn.Module):  # type: ignore[misc]
    """Attention and a layer of four times the width, each with what came before added."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ask, self.answer = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """[batch, length, width] → the same."""
        rows, length, width = x.shape
        parts = self.ask(self.before(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.answer(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.narrow(functional.gelu(self.widen(self.between(x))))


class Model(nn.Module):  # type: ignore[misc]
    """Characters → scores of the character that follows each of them. Deterministic.

    Attributes:
        blocks: the layers.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.letters = nn.Embedding(len(ALPHABET), shape.width)
        self.places = nn.Parameter(torch.randn(shape.length, shape.width) * 0.02)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.last, self.scores = nn.LayerNorm(shape.width), nn.Linear(shape.width, len(ALPHABET))
        nn.init.normal_(self.letters.weight, std=0.02)

    def forward(self, letters: Any) -> Any:
        """[batch, length] → [batch, length, alphabet]."""
        return self.scores(self.last(self.blocks(self.letters(letters) + self.places)))

    def fragments(self, count: int) -> list[list[int]]:
        """The indices of the parameters of each of so many parts: layers that follow each other, with what is
        before them in the first part and what is behind them in the last."""
        layers = len(self.blocks)
        found: list[list[int]] = [[] for _ in range(count)]
        for index, (name, _) in enumerate(self.named_parameters()):
            kind, _, rest = name.partition(".")
            layer = int(rest.partition(".")[0]) if kind == "blocks" else 0
            if kind in ("last", "scores"):
                layer = layers - 1
            found[layer * count // layers].append(index)
        return found

    def digest(self) -> str:
        """Of all values."""
        values = b"".join(one.detach().numpy().tobytes() for one in self.parameters())
        return hashlib.blake2b(values, digest_size=8).hexdigest()


class Learner:
    """A model with its optimiser (AdamW; gradients are clipped to a norm of 1). Its calls block.

    Args:
        shape: of the model.
        rate: of learning.

    Attributes:
        model: the model; parameters: its parameters, in order.
        loss: of the last batch.
    """

    def __init__(self, shape: Shape, rate: float) -> None:
        self.model = Model(shape)
        self.parameters = list(self.model.parameters())
        self.loss = float("nan")
        self._rate, self._steps = rate, 0
        self._optimiser = torch.optim.AdamW(
            self.parameters, rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self._told: Callable[[int, Any], object] = lambda index, gradient: None
        for index, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(lambda one, index=index: self._told(index, one.grad))

    def backward(
        self, inputs: Tokens, targets: Tokens, told: Callable[[int, Any], object] | None = None
    ) -> None:
        """Compute the gradients of a batch; `told` gets each as soon as it is known, with its index."""
        self._told = told or (lambda index, gradient: None)
        self._optimiser.zero_grad()
        loss = self._loss(inputs, targets)
        loss.backward()
        self.loss = loss.item()

    def update(self, gradients: Sequence[Any] | None = None) -> None:
        """Do a step of the optimiser.

        Args:
            gradients: in the place of this rank's own; they are clipped in place.
        """
        if gradients is not None:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
        self._steps += 1
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate * min(1.0, self._steps / WARM_UP)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self._optimiser.step()

    def train(self, inputs: Tokens, targets: Tokens) -> None:
        """One step of this rank alone."""
        self.backward(inputs, targets)
        self.update()

    def values(self) -> list[Any]:
        """Copies of the parameters, as arrays."""
        return [one.detach().numpy().copy() for one in self.parameters]

    def held_out(self, values: Sequence[Any], inputs: Tokens, targets: Tokens, rows: int = 32) -> float:
        """The mean loss of other values of the parameters, in nats a character."""
        with torch.no_grad():
            for parameter, array in zip(self.parameters, values, strict=True):
                parameter.copy_(torch.from_numpy(np.ascontiguousarray(array)))
            losses = [
                self._loss(inputs[at : at + rows], targets[at : at + rows]).item()
                * len(inputs[at : at + rows])
                for at in range(0, len(inputs), rows)
            ]
        return float(sum(losses)) / len(inputs)

    def _loss(self, inputs: Tokens, targets: Tokens) -> Any:
        scores = self.model(torch.from_numpy(inputs))
        return functional.cross_entropy(scores.flatten(0, 1), torch.from_numpy(targets).flatten())
