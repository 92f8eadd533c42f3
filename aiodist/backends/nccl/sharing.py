"""Whether the processes of a job can use NCCL together, from what each tells of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiodist.base.errors import name_ranks
from aiodist.net.wire.typed import JsonMessage

_VARIABLE = "NCCL_MULTI_RANK_GPU_ENABLE"
_FIRST = 23000


@dataclass(frozen=True, slots=True)
class DeviceFacts(JsonMessage):
    """The facts that a process tells of itself.

    Attributes:
        gpu: its device's own name, the same for all processes that share it.
        version: of its NCCL, 23203 is 2.32.3.
        splits: its CuPy can split communicators: all do it, or none.
        shares: its NCCL lets several ranks use one device.
    """

    WHAT = "what a rank tells of its GPU"

    gpu: str
    version: int
    splits: bool
    shares: bool


def can_share(version: int, environ: Mapping[str, str]) -> bool:
    """Whether an NCCL lets several ranks use one device."""
    value = environ.get(_VARIABLE, "").strip()
    return version >= _FIRST and value.isdecimal() and int(value) != 0


def misfit(facts: Sequence[DeviceFacts]) -> str:
    """The reason why these processes cannot use NCCL together; '' if they can."""
    for what, values in (
        ("NCCL", [dotted(one.version) for one in facts]),
        ("communicators that can be split", [("no", "yes")[one.splits] for one in facts]),
    ):
        for rank, value in enumerate(values):
            if value != values[0]:
                return f"{what}: rank 0 has {values[0]}, rank {rank} has {value}"
    for gpu in dict.fromkeys(one.gpu for one in facts):
        ranks = [rank for rank, one in enumerate(facts) if one.gpu == gpu]
        if len(ranks) > 1 and not all(facts[rank].shares for rank in ranks):
            return (
                f"{name_ranks(ranks)} share a GPU, which NCCL {dotted(facts[0].version)} does not allow here "
                f"(2.30 and later do, with {_VARIABLE}=1)"
            )
    return ""


def dotted(version: int) -> str:
    """NCCL's version as text, '2.32.3'."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"
