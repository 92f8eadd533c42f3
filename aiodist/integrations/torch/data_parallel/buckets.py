"""The buckets in which the gradients of torch parameters travel, in memory that peers read where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from aiodist.backends.arrays import view, wrap
from aiodist.base.errors import UsageError
from aiodist.ddp.buckets import Bucket, plan
from aiodist.group import ProcessGroup


class GradBucket:
    """Gradients of one dtype that travel together. Comm hooks are given one; the names are torch's.

    Args:
        number: its place in the order of the buckets, of `count`.
        slots: which parameters lie where.
        parameters: of the module, all of them.
        memory: of the gradients, one after the other; and, behind them, `tail` elements for the wrapper.
        tail: elements.
    """

    def __init__(
        self,
        number: int,
        count: int,
        slots: Bucket,
        parameters: Sequence[torch.nn.Parameter],
        memory: torch.Tensor,
        tail: int,
    ) -> None:
        self._number, self._count = number, count
        self.memory = memory
        self._buffer = memory[: slots.count]
        self.tail = memory[slots.count : slots.count + tail]
        self.indices = [slot.index for slot in slots.slots]
        self._parameters = [parameters[index] for index in self.indices]
        self._places = [(slot.start, parameters[slot.index]) for slot in slots.slots]
        self.views = self.views_of(self._buffer)

    def views_of(self, buffer: torch.Tensor) -> dict[int, torch.Tensor]:
        """The parts of a flat tensor like `buffer()`, by parameter, in the parameters' shapes and strides."""
        return {
            index: buffer.as_strided(parameter.shape, _strides(parameter), buffer.storage_offset() + start)
            for index, (start, parameter) in zip(self.indices, self._places, strict=True)
        }

    def index(self) -> int:
        """The bucket's number; buckets start in this order on all ranks."""
        return self._number

    def is_last(self) -> bool:
        """Whether no other follows."""
        return self._number == self._count - 1

    def buffer(self) -> torch.Tensor:
        """All its gradients as one flat tensor, this rank's, not divided."""
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        """The bucket's gradients one by one, on the same memory."""
        return list(self.views.values())

    def parameters(self) -> list[torch.nn.Parameter]:
        """Whose gradients they are."""
        return list(self._parameters)


def buckets_of(
    pg: ProcessGroup, names: Sequence[str], parameters: Sequence[torch.nn.Parameter], cap: int, tail: int
) -> list[GradBucket]:
    """Divide the gradients of parameters into buckets, and take memory for them.

    Args:
        pg: where the buckets travel.
        names: of the parameters, for errors.
        parameters: all on one device.
        cap: bytes at which a bucket is closed.
        tail: elements behind the last one's gradients.

    Raises:
        UsageError: a parameter cannot be communicated, is no number that can be averaged, or lies on another
            device than the first.
    """
    home = parameters[0].device
    seen = []
    for name, parameter in zip(names, parameters, strict=True):
        if parameter.device != home:
            raise UsageError(
                f"parameter {name} lies on {parameter.device}, and {names[0]} on {home}",
                hint="A module whose parts lie on several devices is not served: wrap each part",
            )
        array = view(parameter, writable=True, what=f"parameter {name}", device=True)
        seen.append((array.dtype, array.size))
    plans = plan(seen, cap)
    made = []
    for number, slots in enumerate(plans):
        extra = tail if number == len(plans) - 1 else 0
        example = parameters[slots.slots[0].index].detach()
        if home.type == "cpu":
            memory = wrap(example, pg.empty(slots.count + extra, slots.dtype))
        else:
            memory = torch.empty(slots.count + extra, dtype=example.dtype, device=home)
        made.append(GradBucket(number, len(plans), slots, parameters, memory, extra))
    return made


def _strides(parameter: Any) -> Any:
    """Strides of a dense tensor in the order of a parameter's: channels_last stays channels_last."""
    return torch.empty_like(parameter, device="meta").stride()
