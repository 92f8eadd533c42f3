"""The place of one operation's tensors: the same for all, and one that the group's backend takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from aiodist.backends.arrays.device import DeviceArray
from aiodist.backends.base import arrays_in
from aiodist.backends.carriers import Carriers
from aiodist.backends.choice import CPU as HOST_PLACE
from aiodist.backends.choice import CUDA
from aiodist.base.errors import UsageError

__all__ = ["HOST_PLACE", "check_device", "common_place", "misplaced", "place_of"]


def place_of(source: Any, target: Any, carriers: Carriers) -> tuple[str, str]:
    """The place of an operation's arrays, and its carrier's mark for calls there.

    Raises:
        UsageError: no carrier takes them there.
    """
    place = common_place(source, target)
    mark = carriers.places.get(place) if place else ""
    if mark is None:
        raise misplaced(place, carriers)
    if place and place != HOST_PLACE:
        check_device(source, target, carriers.device)
    return place, mark


def common_place(source: Any, target: Any) -> str:
    """The place of an operation's arrays, each one array, a list, or None; '' where there are none.

    Raises:
        UsageError: some lie elsewhere than others.
    """
    if type(source) is np.ndarray and (target is source or target is None or type(target) is np.ndarray):
        return HOST_PLACE  # nearly always, and this is on the way of every operation
    places = {_place(array) for given in (source, target) for array in arrays_in(given)}
    if len(places) > 1:
        raise UsageError(
            f"tensors of one operation lie on {' and on '.join(sorted(map(_words, places)))}",
            hint="Bring them to one place first",
        )
    return places.pop()[0] if places else ""


def misplaced(place: str, carriers: Carriers) -> UsageError:
    """The error for tensors that a group's backend does not take."""
    if place == HOST_PLACE:
        return UsageError(
            f"the tensor lies on the host; backend {carriers.name!r} takes tensors on CUDA devices",
            hint="Form the group with backend='cpu:host,cuda:nccl' for both",
        )
    return UsageError(
        f"the tensor lies on a CUDA device; backend {carriers.name!r} takes tensors on the host",
        hint="Copy it to the host, or form the group with backend='cpu:host,cuda:nccl'; `aiodist doctor` says"
        " what that needs",
    )


def check_device(source: Any, target: Any, device: int | None) -> None:
    """Refuse tensors on another device than this process's.

    Args:
        device: this process's; None: its backend takes any.
    """
    for array in (*arrays_in(source), *arrays_in(target)):
        if device is not None and array.cuda != device:
            raise UsageError(
                f"the tensor lies on cuda:{array.cuda}, this process's device is cuda:{device}",
                hint=f"Bring it to cuda:{device}, or form the group with device_id={array.cuda}",
            )


def _place(array: Any) -> tuple[str, int]:
    return (CUDA, array.cuda) if type(array) is DeviceArray else (HOST_PLACE, 0)


def _words(place: tuple[str, int]) -> str:
    return f"cuda:{place[1]}" if place[0] == CUDA else "the host"
