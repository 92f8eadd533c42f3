"""Blockwise quantisation: how far a value may move, and what is not finite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as from_numpy

from aiodist.backends.arrays.kernels import blockwise
from aiodist.backends.arrays.kernels.blockwise import Blockwise

codecs = st.builds(Blockwise, st.sampled_from([8, 4]), st.integers(1, 40).map(lambda half: 2 * half))
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def there_and_back(codec: Blockwise, values: Any, rest: Any = None) -> tuple[Any, Any, int]:
    """What decodes of values, the scale of each element, and how many blocks are bad."""
    data = np.full(codec.nbytes(values.size) + 5, 7, np.uint8)
    bad = codec.encode(values, data[:-5], rest)
    assert (data[-5:] == 7).all()
    back = np.full(values.size, -1, np.float32)
    codec.decode(data[:-5], back)
    return back, np.repeat(codec.scales(data[:-5], values.size), codec.block)[: values.size], bad


@given(codecs, from_numpy.arrays(np.float32, st.integers(0, 300), elements=finite))
def test_no_value_moves_by_more_than_half_a_scale(codec: Blockwise, values: Any) -> None:
    rest = np.full_like(values, 9)
    back, scale, bad = there_and_back(codec, values, rest)
    assert bad == 0
    assert (np.abs(values.astype(np.float64) - back) <= 0.50001 * scale.astype(np.float64)).all()
    assert (values[scale == 0] == 0).all()
    assert (rest == values - back).all()
    added = values.copy()
    data = np.empty(codec.nbytes(values.size), np.uint8)
    codec.encode(values, data)
    codec.decode(data, added, add=True)
    with np.errstate(over="ignore"):
        assert np.array_equal(added, values + back)


@given(codecs, st.integers(-149, 127), st.integers(1, 300), st.integers(0, 99))
def test_a_scale_fits_its_block_at_every_magnitude(
    codec: Blockwise, power: int, count: int, seed: int
) -> None:
    """From the smallest float32 number, 1e-45, to the largest, 3e38."""
    parts = np.random.default_rng(seed).uniform(-1.999999, 1.999999, count)
    values = np.ldexp(parts, power).astype(np.float32)
    back, scale, bad = there_and_back(codec, values)
    assert bad == 0
    starts = range(0, count, codec.block)
    peaks = np.maximum.reduceat(np.abs(values), list(starts)).astype(np.float64)
    top = 127 if codec.bits == 8 else 7
    fair = np.repeat(peaks / top, codec.block)[:count]
    assert (scale <= 1.000001 * fair + 2.0**-149).all()
    assert (np.abs(values.astype(np.float64) - back) <= 0.50001 * scale.astype(np.float64)).all()


@given(codecs, from_numpy.arrays(np.float32, st.integers(0, 200), elements=finite))
def test_what_was_decoded_is_encoded_to_the_same_values(codec: Blockwise, values: Any) -> None:
    once, _, _ = there_and_back(codec, values)
    twice, scale, _ = there_and_back(codec, once)
    assert np.allclose(once, twice, rtol=1e-6, atol=0) or (np.abs(once - twice) <= scale * 1e-3).all()


@given(codecs, st.integers(1, 300), st.data())
def test_a_block_with_a_value_that_is_not_finite_is_nan_and_no_other_is(
    codec: Blockwise, count: int, data: st.DataObject
) -> None:
    values = np.arange(1, count + 1, dtype=np.float32)
    where = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=3))
    values[list(where)] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    rest = np.full_like(values, 9)
    back, _, bad = there_and_back(codec, values, rest)
    blocks = {index // codec.block for index in where}
    poisoned = np.isin(np.arange(count) // codec.block, list(blocks))
    assert bad == len(blocks)
    assert np.isnan(back[poisoned]).all() and np.isfinite(back[~poisoned]).all()
    assert (rest[poisoned] == 0).all()


@pytest.mark.parametrize("bits", [8, 4])
def test_more_elements_than_are_worked_on_at_once(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Blockwise(bits, 6)
    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    whole, scale, _ = there_and_back(codec, values)
    monkeypatch.setattr(blockwise, "AT_ONCE", 12)
    parts, scale_of_parts, _ = there_and_back(codec, values)
    assert np.array_equal(whole, parts) and np.array_equal(scale, scale_of_parts)


def test_the_bytes_that_a_format_has() -> None:
    assert Blockwise(8, 1024).nbytes(4096) == 4096 + 4 * 4
    assert Blockwise(4, 128).nbytes(4096) == 2048 + 4 * 32
    assert Blockwise(4, 128).nbytes(129) == 64 + 1 + 2 * 4
    assert Blockwise(8, 128).nbytes(0) == 0
    assert Blockwise(8, 256).name == "int8/256"


def test_the_ends_of_the_range() -> None:
    values = np.array([127, -127, 63.5, 0], np.float32)
    assert there_and_back(Blockwise(8, 4), values)[0].tolist() == [127, -127, 64, 0]
    assert there_and_back(Blockwise(4, 4), values / 127 * 7)[0].tolist() == [7, -7, 4, 0]
    largest = np.array([np.finfo(np.float32).max, np.finfo(np.float32).min], np.float32)
    assert np.isfinite(there_and_back(Blockwise(8, 2), largest)[0]).all()
