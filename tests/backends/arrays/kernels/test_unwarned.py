from __future__ import annotations

import contextvars
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from aiodist.backends.arrays.kernels import unwarned
from aiodist.backends.arrays.kernels.unwarned import _run_in_errstate, _Unwarned


@pytest.fixture(autouse=True)
def strict() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        yield


def overflow(out: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    top = np.full(out.size, np.finfo(np.float32).max, np.float32)
    unwarned.run(np.add, top, top, out=out)


def test_errors_are_ignored_inside_and_nowhere_else() -> None:
    out = np.zeros(5, np.float32)
    before = np.geterr()
    overflow(out)
    assert np.isinf(out).all()
    assert np.geterr() == before
    with pytest.raises(FloatingPointError):
        np.divide(np.ones(3), 0)


def test_every_thread_has_its_own() -> None:
    barrier = Barrier(4)

    def job() -> bool:
        barrier.wait()
        out = np.zeros(100_000, np.float32)
        for _ in range(50):
            overflow(out)
        return bool(np.isinf(out).all()) and np.geterr()["over"] == "warn"

    with ThreadPoolExecutor(4) as pool:
        assert all(future.result() for future in [pool.submit(job) for _ in range(4)])


def test_an_error_comes_out_and_the_next_run_works() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        unwarned.run(np.add, np.zeros(2), np.zeros(3))
    assert unwarned.run(np.add, 1, 2) == 3


def test_context_variables_of_the_caller_stay() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    variable.set(1)
    unwarned.run(lambda: variable.set(2))
    assert variable.get() == 1


def test_numpy_1_sets_the_state_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", "1.26.4")
    old = _Unwarned()
    assert old.run is _run_in_errstate
    assert np.isinf(old.run(np.divide, np.float32(1), np.float32(0)))
    assert unwarned.run is not old.run
