"""The options of an optimiser's parameter groups as plain values, which travel and are saved as they are.

An option is None, a text, a number, or a list or tuple of such. A number may be a NumPy scalar, or an array
or tensor of no dimension: its value travels, and is given back in the form that the option has here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aiodist.backends.arrays.device import torch_of
from aiodist.base.errors import UsageError, shown


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


def given_back(value: Any, here: Any) -> Any:
    """An option with a plain value, in the form that it has here.

    Args:
        value: plain.
        here: the option so far. A tensor or an array is not written, but replaced: torch's optimisers give
            the same one to all groups that have no option of their own.
    """
    if isinstance(value, list):
        forms = here if isinstance(here, list | tuple) and len(here) == len(value) else [None] * len(value)
        found = [given_back(one, form) for one, form in zip(value, forms, strict=True)]
        return found if isinstance(here, list) else tuple(found)
    if getattr(here, "shape", None) != () or not _holds(here, value):
        return value
    if isinstance(here, np.generic):
        return type(here)(value)
    torch = torch_of(here)
    return np.array(value, here.dtype) if torch is None else torch.full_like(here, value)


def _holds(here: Any, value: Any) -> bool:
    """Whether a number of no dimension can have a value, but for rounding."""
    if value is None or isinstance(value, str):
        return False
    return isinstance(here.item(), float) or type(here.item()) is type(value)
