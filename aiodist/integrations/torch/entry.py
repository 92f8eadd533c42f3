"""The entry point of the group `torch.backends`: `import torch` calls `register`.

An error here would break `import torch`, and whatever is imported here slows it down. So nothing is, before a
program asks for the backend.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Make "aiodist" a name that `torch.distributed.init_process_group` takes."""
    try:
        from torch.distributed import Backend

        if not hasattr(Backend, "AIODIST"):
            Backend.register_backend("aiodist", _create, extended_api=True, devices=["cpu", "cuda"])
    except (ImportError, AttributeError, TypeError):  # a torch without distributed, or of another kind
        pass


def _create(options: Any, _: Any = None) -> Any:
    from aiodist.integrations.torch.meeting import create

    return create(options)
