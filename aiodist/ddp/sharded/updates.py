"""The optimisers that update a rank's pieces: one of torch's classes, or a plain function over arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy.typing as npt

from aiodist.backends.arrays import wrap
from aiodist.backends.arrays.device import torch_of
from aiodist.base.errors import UsageError, shown
from aiodist.ddp.sharded.options import give_back, plain

Array = npt.NDArray[Any]
Rule = Callable[[Array, Array, dict[str, Any]], None]
"""Updates values in place by a gradient; keeps what it likes in a dict, which is empty at first. It makes
each entry at its first call for a piece: all pieces of an array have the same ones."""


@dataclass
class HeldState:
    """A piece of an array whose optimiser state is held here.

    Attributes:
        index: of the array.
        start, stop: its elements of the array, flat.
        values: them; flat, or in the array's shape where it is whole.
        gradient: like `values`.
        state: the optimiser's.
    """

    index: int
    start: int
    stop: int
    values: Array
    gradient: Array
    state: dict[str, Any] = field(default_factory=dict)


class Update(Protocol):
    """An optimiser of pieces.

    Attributes:
        name: says which it is, in plans and checkpoints.
        optimizer: what users see of it.
        options: plain values that may change while training goes on, by parameter group.
        compared: names of those that say what an update does: they are the same on all ranks in each step.
        example: a tensor of the family that the state's arrays are of; None: NumPy's.
    """

    name: str
    optimizer: Any
    options: list[dict[str, Any]]
    compared: Collection[str]
    example: Any

    def place(self, pieces: Sequence[HeldState]) -> None:
        """Take other pieces, with the state that they have."""

    def __call__(self) -> None:
        """Update all pieces' values by their gradients."""


class RuleUpdate:
    """A plain function that updates each piece.

    Args:
        rule: the function.
    """

    def __init__(self, rule: Rule) -> None:
        self.optimizer = rule
        self.name = getattr(rule, "__qualname__", type(rule).__qualname__)
        self.options: list[dict[str, Any]] = []
        self.compared: Collection[str] = ()
        self.example = None
        self._pieces: Sequence[HeldState] = ()

    def place(self, pieces: Sequence[HeldState]) -> None:
        """Take other pieces, with the state that they have."""
        self._pieces = pieces

    def __call__(self) -> None:
        """Update all pieces' values by their gradients."""
        for one in self._pieces:
            self.optimizer(one.values, one.gradient, one.state)


class TorchUpdate:
    """An optimiser of torch's over tensors on the pieces' memory.

    Args:
        kind: the class.
        groups: of parameters: their options, and the indices of their arrays.
        defaults: the class's arguments.
        example: a tensor.
    """

    def __init__(
        self,
        kind: Any,
        groups: Sequence[tuple[dict[str, Any], Sequence[int]]],
        defaults: Mapping[str, Any],
        example: Any,
    ) -> None:
        self.name = kind.__qualname__
        self.example = example.detach()
        self.optimizer = kind([{**options, "params": []} for options, _ in groups], **defaults)
        self.compared: Collection[str] = tuple(
            self.optimizer.defaults
        )  # not what schedulers note for themselves
        self._group_of = {index: number for number, (_, chosen) in enumerate(groups) for index in chosen}

    @property
    def options(self) -> list[dict[str, Any]]:
        """The options of each group of parameters; see `Update`.

        Raises:
            UsageError: one is of a kind that cannot be carried.
        """
        return [
            {name: plain(name, option) for name, option in group.items() if name != "params"}
            for group in self.optimizer.param_groups
        ]

    @options.setter
    def options(self, found: list[dict[str, Any]]) -> None:
        give_back(self.optimizer.param_groups, found)

    def place(self, pieces: Sequence[HeldState]) -> None:
        """Take other pieces, with the state that they have."""
        tensors: list[list[Any]] = [[] for _ in self.optimizer.param_groups]
        self.optimizer.state.clear()
        for one in pieces:
            tensor = wrap(self.example, one.values)
            tensor.grad = wrap(self.example, one.gradient)
            tensors[self._group_of[one.index]].append(tensor)
            self.optimizer.state[tensor] = one.state
        for group, chosen in zip(self.optimizer.param_groups, tensors, strict=True):
            group["params"] = chosen

    def __call__(self) -> None:
        """Update all pieces' values by their gradients."""
        self.optimizer.step()


def parameter_groups(parameters: Any) -> tuple[list[Any], list[tuple[dict[str, Any], list[int]]]]:
    """All parameters in a row, and the groups: their options, and the places of their parameters in that row.

    Args:
        parameters: an iterable of tensors, or of dicts with 'params', as torch's optimisers take.
    """
    listed = list(parameters)
    if not any(isinstance(one, Mapping) for one in listed):
        return listed, [({}, list(range(len(listed))))]
    row: list[Any] = []
    groups = []
    for one in listed:
        if not isinstance(one, Mapping) or "params" not in one:
            raise UsageError(f"a parameter group must be a dict with 'params', got {shown(one)}")
        own = one["params"]
        own = [own] if hasattr(own, "shape") else list(own)
        groups.append(
            (
                {name: value for name, value in one.items() if name != "params"},
                list(range(len(row), len(row) + len(own))),
            )
        )
        row += own
    return row, groups


def update_of(
    optimizer: Any,
    arrays: Iterable[Any],
    groups: Sequence[tuple[dict[str, Any], Sequence[int]]],
    defaults: Mapping[str, Any],
    whole: bool,
) -> Update:
    """The optimiser of pieces that a user's argument names.

    Args:
        optimizer: a class of torch.optim's, or a function over arrays.
        arrays: whose pieces it updates.
        groups: of their indices.
        defaults: arguments of the class.
        whole: pieces are whole arrays.

    Raises:
        UsageError: it is neither, or cannot work on pieces.
    """
    example = next(iter(arrays), None)
    torch = torch_of(example)
    if torch is not None and isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer):
        _check_torch(torch, optimizer, defaults, whole)
        return TorchUpdate(optimizer, groups, defaults, example)
    if isinstance(optimizer, type) or not callable(optimizer):
        raise UsageError(
            f"optimizer must be a class of torch.optim, with torch parameters, or a function, got "
            f"{shown(optimizer)}",
            hint="A function takes (values, gradient, state) and changes values in place",
        )
    if defaults or any(options for options, _ in groups):
        raise UsageError(
            f"a function has no option {next(iter([*defaults, *groups[0][0]]), '')!r}",
            hint="Bind it: functools.partial(rule, rate=0.1)",
        )
    return RuleUpdate(optimizer)


def _check_torch(torch: Any, kind: Any, defaults: Mapping[str, Any], whole: bool) -> None:
    """Refuse classes that cannot update pieces: they are tried on a small matrix, and on its halves."""
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UsageError(
            f"{kind.__qualname__} cannot be sharded: its step needs a closure and all parameters"
        )
    matrix = torch.arange(1, 17, dtype=torch.float32).reshape(4, 4) / 8
    halves = [half.clone() for half in matrix.flatten().split(8)]
    whole_one = kind([{"params": [matrix]}], **defaults)  # wrong arguments raise here, as torch says it
    try:
        _steps(whole_one, [matrix])
    except RuntimeError as error:
        raise UsageError(f"{kind.__qualname__} cannot be sharded: {error}") from error
    if whole:
        return
    try:
        _steps(kind([{"params": halves}], **defaults), halves)
    except (RuntimeError, ValueError) as error:
        raise _needs_whole(kind) from error
    if not torch.allclose(matrix.flatten(), torch.cat(halves), rtol=1e-5):
        raise _needs_whole(kind)


def _steps(optimizer: Any, tensors: Sequence[Any]) -> None:
    for _ in range(2):
        for tensor in tensors:
            tensor.grad = tensor.sin()
        optimizer.step()


def _needs_whole(kind: Any) -> UsageError:
    return UsageError(
        f"{kind.__qualname__} looks at an array's shape, and here arrays are divided",
        hint="Pass whole=True: each array then belongs to one rank",
    )
