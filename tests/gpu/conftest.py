"""These tests need a CUDA device. Elsewhere each is skipped, with what is missing.

Where AIODIST_TEST_GPU=1 nothing may be missing: what would be skipped fails. `tests/gpu/run` sets it.
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import NoReturn

import pytest

from aiodist.backends.cuda import library
from aiodist.backends.nccl import NcclEngine, communicators, sharing
from aiodist.base.errors import BackendUnavailable

SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}
STRICT = "AIODIST_TEST_GPU"


def missing(what: str) -> NoReturn:
    """Skip the test; fail it where nothing may be missing."""
    if os.environ.get(STRICT, "0") not in ("", "0"):
        pytest.fail(f"{what} ({STRICT} is set)", pytrace=False)
    pytest.skip(what)


@functools.cache
def torch_lacks() -> str:
    """What torch would need here; '' for nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where it finds the driver too old
        try:
            import torch
        except ImportError as error:
            return f"torch cannot be imported ({error})"
        return "" if torch.cuda.is_available() else "this torch sees no device"


@pytest.fixture(autouse=True, scope="session")
def device() -> None:
    """Skip where there is none."""
    try:
        NcclEngine.check()
    except BackendUnavailable as error:
        missing(str(error))
    torch_lacks()  # what it opens for good is open before the first test


@pytest.fixture(scope="session")
def several(device: None) -> None:
    """Skip where three ranks cannot have NCCL."""
    count, version = library.count_devices(library.load()), communicators.version()
    if count < 3 and not sharing.can_share(version, SHARED):
        missing(f"{count} devices for 3 ranks, and NCCL {sharing.dotted(version)} lets none be shared")


@pytest.fixture(scope="session")
def torch_with_cuda(device: None) -> None:
    """Skip where there is no torch for devices."""
    if lacks := torch_lacks():
        missing(lacks)


@pytest.fixture
def has(lib: str, request: pytest.FixtureRequest) -> None:
    """Skip where a library of tensors is missing."""
    if lib == "torch":
        request.getfixturevalue("torch_with_cuda")
