"""The algorithms, as data: how each one's ranks keep together. Pure.

docs/slow-networks-measured.md says how rates and arguments were chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Way:
    """One algorithm.

    Args:
        label: for people.
        rate: of AdamW, on each rank.
        codec: of what travels; None: float32.
        rare: arguments of `DiLoCo`, fragments as their number; empty: gradients travel in every step.
        look: steps between two looks at the time and the bytes; 0: one after each exchange.
    """

    label: str
    rate: float
    codec: str | None = None
    rare: Mapping[str, Any] = field(default_factory=dict)
    look: int = 0


WAYS = {
    "ddp": Way("DDP", 1e-3, look=2),
    "ddp-int8": Way("8-bit DDP", 1e-3, "int8", look=5),
    "diloco": Way("DiLoCo", 1e-3, rare={"sync_every": 20, "outer_lr": 0.8, "outer_momentum": 0.3}),
    "streaming": Way(
        "Streaming DiLoCo",
        1e-3,
        "int4",
        {"sync_every": 20, "fragments": 4, "delay": 2, "mix": 0.5, "outer_lr": 0.8, "outer_momentum": 0.3},
    ),
}
WARM_UP = 10
"""Steps in which the learning rate grows to its value, in all algorithms."""

BUCKET_MB = 2
"""MiB at which a bucket of gradients is closed: some six of them, so that the first leave early."""
