"""Whether another library is going to listen on MASTER_PORT, so that rank 0's store may not keep it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from aiodist.base.environment.tuning import switch

SHARE_PORT = "AIODIST_SHARE_PORT"

_STARTS_TORCH = (
    "TORCHELASTIC_RUN_ID",  # torchrun, where its agent keeps no store there
    "ACCELERATE_MIXED_PRECISION",
    "CROSS_RANK",  # DeepSpeed
    "PET_NNODES",  # a pod of Kubeflow's
)
"""Variables of launchers whose scripts are torch's, most of them. All ranks of such a job have them."""


def shares_port(environ: Mapping[str, str]) -> bool:
    """Whether the store leaves MASTER_PORT to another library: AIODIST_SHARE_PORT, else what launchers say.

    Raises:
        UsageError: AIODIST_SHARE_PORT is neither yes nor no.
    """
    return switch(environ, SHARE_PORT, any(environ.get(name) for name in _STARTS_TORCH))
