"""A file's memory, mapped without a descriptor: shown as long as anybody refers to it, and no longer."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest

from aiodist.base.environment.mapping import map_at, mapped
from aiodist.transport.shm.arena import PAGE, available
from tests.helpers import memory_mapped
from tests.levels import COSTLY

pytestmark = pytest.mark.skipif(not available(), reason="needs memfd (Linux)")


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.memfd_create("aiodist")
    os.ftruncate(fd, 4 * PAGE)
    os.pwrite(fd, b"abcd", PAGE)
    yield fd
    os.close(fd)


def test_no_descriptor_is_kept(file: int) -> None:
    before = os.listdir("/proc/self/fd")
    views = [mapped(file, 4 * PAGE, mmap.MADV_DONTDUMP) for _ in range(9)]
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert memory_mapped() == 9
    assert [bytes(view[PAGE : PAGE + 4]) for view in views] == [b"abcd"] * 9
    os.pwrite(file, b"wxyz", PAGE)
    assert bytes(views[3][PAGE : PAGE + 4]) == b"wxyz"
    del views
    assert memory_mapped() == 0


def test_it_is_for_reading(file: int) -> None:
    view = mapped(file, 4 * PAGE)
    assert (len(view), view.format, view.readonly) == (4 * PAGE, "B", True)
    with pytest.raises(TypeError):
        view[0] = 1
    assert not np.frombuffer(view, np.uint8).flags.writeable


@pytest.mark.slow(COSTLY)
@pytest.mark.parametrize(
    "piece", [lambda view: view[PAGE:], lambda view: np.frombuffer(view, np.uint8)[PAGE:]]
)
def test_it_stays_as_long_as_a_piece_is_in_use(file: int, piece: object) -> None:
    assert callable(piece)
    view = mapped(file, 4 * PAGE)
    held = piece(view)
    del view
    gc.collect()
    assert memory_mapped() == 1
    assert bytes(held[:4]) == b"abcd"
    del held
    gc.collect()
    assert memory_mapped() == 0


def test_what_cannot_be_mapped_is_an_error(file: int) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        mapped(file, 0)
    reading, writing = os.pipe()
    with pytest.raises(OSError, match="No such device"):
        mapped(reading, PAGE)
    os.close(reading)
    os.close(writing)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        map_at(None, 1 << 60, mmap.PROT_READ, mmap.MAP_SHARED, file)
