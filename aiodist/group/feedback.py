"""Error feedback: what rounding has left out of a tensor, kept until the next time."""

from __future__ import annotations

from typing import Any

import numpy as np

from aiodist.backends.base import Array
from aiodist.base.errors import UsageError, shown


class ErrorFeedback:
    """The error that quantisation has left in one tensor so far, on this rank. It is added the next time.

    One for each tensor that is reduced again and again (a bucket of gradients), not shared between tensors.
    It changes only when an operation has ended well. After a change of members go on with it, or `reset` it.

    Attributes:
        error: float32, shaped like the tensor; None before the first use. Part of a checkpoint: set it to a
            copy of what was saved.
        busy: an operation uses it.
    """

    def __init__(self) -> None:
        self.error: Array | None = None
        self.busy = False
        self._spare: Array | None = None
        self._turned = False

    def reset(self) -> None:
        """Forget what was left out."""
        self._check_free()
        self.error = self._spare = None
        self._turned = False

    @staticmethod
    def checked(feedback: object) -> ErrorFeedback | None:
        """A feedback that a caller passed, or None."""
        if feedback is None or isinstance(feedback, ErrorFeedback):
            return feedback
        raise UsageError(f"feedback must be an ErrorFeedback, got {shown(feedback)}")

    def prepare(self, shape: tuple[int, ...]) -> Array:
        """Memory for what the next operation leaves out.

        Raises:
            UsageError: an operation uses it, or it is of a tensor of another shape.
        """
        self._check_free()
        if self.error is not None and self.error.shape != shape:
            raise UsageError(
                f"feedback is of a tensor of shape {self.error.shape}, this one has {shape}",
                hint="Make an ErrorFeedback for each tensor",
            )
        if self._spare is None or self._spare.shape != shape:
            self._spare = np.zeros(shape, np.float32)
        return self._spare

    def turn(self) -> None:
        """Take what the operation has left out: it has ended well."""
        self.error, self._spare = self._spare, self.error
        self._turned = True

    def keep(self) -> None:
        """Keep what operations have left out so far: `undo` goes back to here."""
        self._turned = False

    def undo(self) -> None:
        """Go back before the last operation, unless `keep` was called since: its result does not count."""
        self._check_free()
        if self._turned:
            self.error, self._spare = self._spare, self.error
            self._turned = False

    def _check_free(self) -> None:
        if self.busy:
            raise UsageError("feedback is in use", hint="Await the operation before it first")

    def __repr__(self) -> str:
        shape: Any = None if self.error is None else self.error.shape
        return f"<ErrorFeedback {shape}>"
