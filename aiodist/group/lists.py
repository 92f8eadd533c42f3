"""Hints on lists of tensors, torch's form: a method takes one array instead, or their rows differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiodist.base.operations import Kind

_ONE_ARRAY = {
    Kind.all_gather: "Write pg.all_gather(tensor{sizes}){differ}, for one array of all parts; "
    "torch's form is aiodist.all_gather(tensor_list, tensor)",
    Kind.reduce_scatter: "Write pg.reduce_scatter(np.concatenate(tensors){sizes}){differ}; "
    "torch's form is aiodist.reduce_scatter(output, input_list)",
    Kind.gather: "Write pg.gather(tensor, dst), for one array of all parts; "
    "torch's form is aiodist.gather(tensor, gather_list, dst)",
    Kind.scatter: "Pass one array of all parts, such as np.stack(tensors); "
    "torch's form is aiodist.scatter(tensor, scatter_list, src)",
    Kind.all_to_all: "Pass one array of all parts, with in_splits= and out_splits= where their rows differ; "
    "torch's form is aiodist.all_to_all(output_tensor_list, input_tensor_list)",
}
_UNEVEN = {
    Kind.all_gather: "Where rows differ, write pg.all_gather(tensor{sizes}), which gives one array",
    Kind.reduce_scatter: "Where rows differ, write pg.reduce_scatter(np.concatenate(input_list){sizes})",
}
_MOST_SHOWN = 16  # sizes


def hint(kind: Kind, listed: bool, *passed: Any) -> str:
    """The form to write instead of the lists that a refused call was given; '' where they are not the matter.

    Args:
        kind: the collective.
        listed: it takes lists.
        passed: its tensors and outputs, unchecked.
    """
    lists = [value for value in passed if isinstance(value, list | tuple)]
    if not lists:
        return ""
    rows = _rows(lists[0])
    differ = len(set(rows)) > 1
    if listed:
        return _UNEVEN.get(kind, "").format(sizes=_sizes(rows)) if differ else ""
    otherwise = "" if differ else ", with sizes=[rows of each rank] where they differ"
    return _ONE_ARRAY.get(kind, "").format(sizes=_sizes(rows) if differ else "", differ=otherwise)


def _sizes(rows: list[int]) -> str:
    """', sizes=[2, 3]'."""
    return f", sizes={rows}" if len(rows) <= _MOST_SHOWN else ", sizes=[rows of each rank]"


def _rows(tensors: Sequence[Any]) -> list[int]:
    """The lengths of the first axes; [] where these are no tensors that have one."""
    try:
        return [int(tensor.shape[0]) for tensor in tensors]
    except Exception:  # whatever they are
        return []
