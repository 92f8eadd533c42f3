"""The parameters that a backward pass will reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch


def reached_from(outputs: Any) -> set[int]:
    """The ids of the leaves that take part in making some outputs.

    Args:
        outputs: tensors, in any nesting of lists, tuples, dicts and dataclasses.
    """
    waiting = [tensor.grad_fn for tensor in _tensors(outputs) if tensor.grad_fn is not None]
    leaves = {id(tensor) for tensor in _tensors(outputs) if tensor.grad_fn is None}
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)  # of the node that accumulates a leaf's gradient
        if leaf is not None:
            leaves.add(id(leaf))
        for follower, _ in node.next_functions:
            if follower is not None and follower not in seen:
                seen.add(follower)
                waiting.append(follower)
    return leaves


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    parts: Iterable[Any] = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    for part in parts:
        yield from _tensors(part)
