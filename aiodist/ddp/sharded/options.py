"""The options of an optimiser's parameter groups as plain values, which travel and are saved as they are.

An option is None, a text, a number, or a list or tuple of such. A number may be a NumPy scalar, or an array
or tensor of no dimension: its value travels, and is given back in the form that the option has here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from operator import is_
from typing import Any

import numpy as np

from aiodist.backends.arrays.device import torch_of
from aiodist.base.errors import UsageError, name_ranks, shown

Options = Sequence[Mapping[str, Any]]
"""Plain values, by name, of each parameter group."""


def plain(name: str, option: Any) -> Any:
    """An option's value.

    Raises:
        UsageError: it is none that could be given to newcomers and saved.
    """
    if isinstance(option, list | tuple):
        return [plain(name, one) for one in option]
    value = option.item() if getattr(option, "shape", None) == () else option
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UsageError(
        f"the option {name!r} of a parameter group is {shown(option)}, which can neither be "
        "saved nor given to newcomers",
        hint="Pass numbers, texts, tensors of no dimension, or lists of them",
    )


def give_back(groups: Sequence[dict[str, Any]], found: Sequence[Mapping[str, Any]]) -> None:
    """Give parameter groups their options from plain values, in the forms that these have here.

    What has its value already stays the object that it is. A tensor or an array is written in place: the
    program may keep it to change it. Not so where groups share it and are to have different values: torch's
    optimisers give one to all groups that have no option of their own.

    Args:
        groups: of the optimiser.
        found: each group's options.
    """
    wanted: dict[int, list[Any]] = {}
    for group, options in zip(groups, found, strict=True):
        for name, value in options.items():
            _note(value, group.get(name), wanted)
    for group, options in zip(groups, found, strict=True):
        for name, value in options.items():
            group[name] = _given_back(value, group.get(name), wanted)


def digest(found: Options, names: Collection[str]) -> int:
    """A digest of the options with these names, alike where their values are: 64 bits."""
    texts = [(name, _text(group[name])) for group in found for name in names if name in group]
    return int.from_bytes(hashlib.blake2b(repr(texts).encode(), digest_size=8).digest(), "little")


def differing(found: Mapping[int, Options], names: Collection[str]) -> UsageError | None:
    """The error that names the first option that is not the same on all ranks; None: all are.

    Args:
        found: the options of each rank.
        names: of those that are compared.
    """
    for number, groups in enumerate(zip(*found.values(), strict=True)):
        for name in names:
            by_value: dict[str, list[int]] = {}
            for rank, group in zip(found, groups, strict=True):
                by_value.setdefault(_text(group[name]) if name in group else "not there", []).append(rank)
            if len(by_value) > 1:
                told = ", ".join(f"{value} on {name_ranks(ranks)}" for value, ranks in by_value.items())
                return UsageError(
                    f"the option {name!r} of parameter group {number} is not the same on all ranks: {told}",
                    hint="Set it alike on all; where a scheduler does, set its last_epoch from "
                    "optimizer.steps before its step(), also in newcomers and after a load",
                )
    return None


def _text(value: Any) -> str:
    """A value as a text, alike for alike values: 1 is 1.0, which tensors make of it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53:
        return repr(float(value))
    return repr(value)


def _note(value: Any, here: Any, wanted: dict[int, list[Any]]) -> None:
    """Note what an option is to be, by the tensor or array that it is now."""
    if isinstance(value, list) and isinstance(here, list | tuple) and len(here) == len(value):
        for one, form in zip(value, here, strict=True):
            _note(one, form, wanted)
    elif _is_single(here):
        wanted.setdefault(id(here), []).append(value)


def _given_back(value: Any, here: Any, wanted: Mapping[int, list[Any]]) -> Any:
    if isinstance(value, list):
        forms = here if isinstance(here, list | tuple) and len(here) == len(value) else [None] * len(value)
        found = [_given_back(one, form, wanted) for one, form in zip(value, forms, strict=True)]
        if isinstance(here, list | tuple) and len(found) == len(here) and all(map(is_, found, here)):
            return here
        return found if isinstance(here, list) else tuple(found)
    if not _is_single(here):
        return here if type(here) is type(value) and here == value else value
    form = _in_form_of(here, value)
    if form is None:
        return value
    if isinstance(here, np.generic):
        return form
    if any(other != value for other in wanted[id(here)]):
        return form
    if here.item() != value:
        here[...] = form
    return here


def _is_single(here: Any) -> bool:
    """Whether it is a NumPy scalar, or an array or tensor of no dimension."""
    return getattr(here, "shape", None) == ()


def _in_form_of(here: Any, value: Any) -> Any:
    """A number in the form of another; None where that form cannot have exactly this value."""
    if value is None or isinstance(value, str):
        return None
    if not isinstance(here.item(), float) and type(here.item()) is not type(value):
        return None
    if isinstance(here, np.generic):
        made: Any = type(here)(value)
    else:
        torch = torch_of(here)
        made = np.array(value, here.dtype) if torch is None else torch.full_like(here, value)
    return made if made.item() == value else None
