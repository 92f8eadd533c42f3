"""The entry point of the group `torch.backends`: `import torch` calls `register`.

An error here would break `import torch`, and whatever is imported here slows it down. So nothing is, before a
program asks for the backend, or AIODIST_TORCH=1 (`aiodist run --torch`) for all programs that say "gloo".
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any


def register() -> None:
    """Make "aiodist" a name that `torch.distributed.init_process_group` takes.

    Raises:
        ImportError: AIODIST_TORCH=1, and what that needs is not there: gloo shall not run in its place.
    """
    in_place_of_gloo = os.environ.get("AIODIST_TORCH") == "1"
    try:
        from torch.distributed import Backend

        if not hasattr(Backend, "AIODIST"):
            Backend.register_backend("aiodist", _create, extended_api=True, devices=["cpu", "cuda"])
            _begin_rounds(in_place_of_gloo)
    except (ImportError, AttributeError, TypeError) as error:  # another kind of torch
        if in_place_of_gloo:
            raise ImportError(f"AIODIST_TORCH=1: this torch takes no backend of others: {error}") from error
        return
    if in_place_of_gloo:
        from aiodist.integrations.torch.in_place_of_gloo import take_its_place

        take_its_place()


def _begin_rounds(in_place_of_gloo: bool) -> None:
    """Have each `init_process_group` that makes a group of ours meet in a round of its own (`rounds`)."""
    import torch.distributed
    from torch.distributed import distributed_c10d

    make = distributed_c10d.init_process_group

    @functools.wraps(make)
    def made(*args: Any, **more: Any) -> Any:
        backend = args[0] if args else more.get("backend")
        met = more.get("store") is not None or bool(more.get("_ranks"))  # without torch's own ways to a store
        if met or not _makes_ours(in_place_of_gloo, str(backend or "").lower()):
            if (kept := sys.modules.get("aiodist.net.kept")) is not None:
                kept.let_go()  # of the store of a round of ours
            return make(*args, **more)
        from aiodist.integrations.torch.rounds import in_a_round

        return in_a_round(make, *args, **more)

    for module in (distributed_c10d, torch.distributed):
        module.init_process_group = made


def _makes_ours(in_place_of_gloo: bool, backend: str) -> bool:
    """Whether an argument `backend` leads to a group of ours, or to gloo's in a program whose others are; ''
    is torch's own choice, of which gloo is a part."""
    asked = {part.rpartition(":")[2] for part in backend.split(",")}
    return "aiodist" in asked or (in_place_of_gloo and bool(asked & {"gloo", "", "undefined"}))


def _create(options: Any, *_: Any, **__: Any) -> Any:
    from aiodist.integrations.torch.meeting import create

    return create(options)
