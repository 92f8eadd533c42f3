"""A communication hook for torch's `DistributedDataParallel` over aiodist: gradients with 8 or 4 bits each.

model = torch.nn.parallel.DistributedDataParallel(module)
model.register_comm_hook(QuantizedState("int8"), quantized_hook)
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any

import torch
import torch.distributed as c10d

from aiodist.base.errors import UsageError
from aiodist.group import ErrorFeedback
from aiodist.group.quantized import codec_named
from aiodist.integrations.torch.group import AiodistProcessGroup
from aiodist.integrations.torch.work import AiodistWork


class QuantizedState:
    """The state of `quantized_hook`: what rounding has left out of each bucket so far, on this rank.

    A bucket with other parameters than before, as after torch's rebuilding of buckets in the second step,
    begins without. A step whose backward pass has raised leaves it as it was.

    Args:
        codec: 'int8' or 'int4', or with the elements of a block, 'int8/256'.
        process_group: torch's group, made by aiodist; None: the default group.
        non_finite: 'keep': a block with a value that is infinite or NaN is NaN on all ranks, as a program
            with a `GradScaler` expects; 'raise': the backward pass raises on all ranks, and names the rank.

    Raises:
        UsageError: there is no such codec, or the group is not aiodist's.
    """

    def __init__(self, codec: str = "int8", process_group: Any = None, *, non_finite: str = "keep") -> None:
        self.codec = codec_named(codec).name
        group = c10d.distributed_c10d._get_default_group() if process_group is None else process_group
        if not isinstance(group, AiodistProcessGroup):
            raise UsageError(
                f"the group is of backend {c10d.get_backend(group)!r}, which sends no quantised values",
                hint='Write torch.distributed.init_process_group("aiodist")',
            )
        self.process_group = group
        self.non_finite = non_finite
        self._feedback: dict[int, tuple[tuple[int, ...], ErrorFeedback]] = {}
        self._step: list[tuple[AiodistWork, ErrorFeedback]] = []  # what the step has issued so far
        self._whole = False  # it has issued its last bucket, too

    def reduce(self, bucket: Any) -> Any:
        """Issue the average of a bucket; the first one of a step ends the step before."""
        if not bucket.index():
            self.end_step()
        self._whole = bucket.is_last()
        if not bucket.buffer().is_floating_point():
            return self.process_group.allreduce([bucket.buffer()], c10d.ReduceOp.AVG)
        shapes = f"{[tuple(one.shape) for one in bucket.gradients()]} {bucket.is_last()}"
        plan = hashlib.blake2b(shapes.encode(), digest_size=8).hexdigest()
        feedback = self._feedback_of(bucket)
        work = self.process_group.all_reduce_quantized(
            bucket.buffer(),
            codec=self.codec,
            feedback=feedback,
            non_finite=self.non_finite,
            agree_on=f"bucket {bucket.index()} {plan}",
        )
        self._step.append((work, feedback))
        return work

    def end_step(self) -> None:
        """Keep what the last step has left out; where one of its buckets failed, or its backward pass raised
        before the last one, forget that.

        All of them have ended then: torch raises the error of one without waiting for those behind it.
        """
        for work, _ in self._step:
            with contextlib.suppress(Exception):
                work.wait()
        failed = not self._whole or any(work.exception() is not None for work, _ in self._step)
        for _, feedback in self._step:
            if failed:
                feedback.undo()
            else:
                feedback.keep()
        self._step.clear()

    def _feedback_of(self, bucket: Any) -> ErrorFeedback:
        """The error feedback of a bucket: of its number, and of these parameters."""
        held = tuple(map(id, bucket.parameters()))
        before, kept = self._feedback.get(bucket.index(), ((), ErrorFeedback()))
        if before != held:
            kept = ErrorFeedback()
            self._feedback[bucket.index()] = held, kept
        return kept


def quantized_hook(state: QuantizedState, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over all ranks, quantised, with error feedback.

    All ranks get the same bits: those of `ProcessGroup.all_reduce_quantized` of the bucket, and so those of
    `GradientSync(codec=…)` with the same buckets. Complex gradients travel as they are.

    Args:
        state: of this model; one for each.
        bucket: torch's `GradBucket`, on the host.

    Returns:
        the average, in the bucket's buffer, when it is there.
    """
    return state.reduce(bucket).get_future().then(lambda done: done.value()[0])


# torch compares these, and takes no text for them.
quantized_hook.__annotations__ |= {"bucket": c10d.GradBucket, "return": torch.futures.Future[torch.Tensor]}
