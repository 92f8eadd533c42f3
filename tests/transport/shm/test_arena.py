"""Arenas: only the owner can write, nobody can resize, and nothing is left."""

from __future__ import annotations

import mmap
import os

import pytest

from aiodist.base.errors import BackendUnavailable, WireError
from aiodist.transport.shm import arena as module
from aiodist.transport.shm.arena import NONCE_BYTES, PAGE, Arena, Window, available
from tests.helpers import memory_mapped

NONCE = bytes(range(NONCE_BYTES))

needs_memfd = pytest.mark.skipif(not available(), reason="needs memfd (Linux)")


@needs_memfd
def test_a_window_shows_what_the_owner_writes() -> None:
    arena = Arena(3 * PAGE + 1, NONCE)
    assert arena.nbytes == Arena.file_bytes(3 * PAGE + 1) == 5 * PAGE
    window = Window(arena.fd, arena.nbytes)
    assert window.nonce == NONCE
    arena.view[PAGE : PAGE + 4] = b"abcd"
    assert bytes(window.view[PAGE : PAGE + 4]) == b"abcd"
    with pytest.raises(TypeError):
        window.view[PAGE] = 1
    arena.close()
    assert bytes(window.view[PAGE : PAGE + 4]) == b"abcd", "the owner's end does not take the memory away"
    window.close()
    assert memory_mapped() == 0


@needs_memfd
def test_readers_can_neither_write_nor_resize() -> None:
    arena = Arena(PAGE, NONCE)
    fd = os.open(f"/proc/self/fd/{arena.fd}", os.O_RDWR)
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(fd, arena.nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        with pytest.raises(PermissionError):
            os.write(fd, b"x")
        for nbytes in (PAGE, 3 * PAGE):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, nbytes)
    finally:
        os.close(fd)
        arena.close()


@needs_memfd
def test_a_file_that_could_be_cut_off_is_refused() -> None:
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, 2 * PAGE)
        with pytest.raises(WireError, match="not sealed"):
            Window(fd, 2 * PAGE)
        with pytest.raises(WireError, match="that has 8192"):
            Window(fd, 3 * PAGE)
        with pytest.raises(WireError):
            Window(fd, 0)
    finally:
        os.close(fd)
    assert memory_mapped() == 0


@needs_memfd
def test_closing_twice_and_while_somebody_looks() -> None:
    arena = Arena(PAGE, NONCE)
    window = Window(arena.fd, arena.nbytes)
    piece = window.view[PAGE : PAGE + 8]
    window.close()
    window.close()
    assert bytes(piece) == bytes(8)
    piece.release()
    arena.close()
    arena.close()
    assert arena.fd == -1
    del window
    assert memory_mapped() == 0


def test_a_platform_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available", lambda: False)
    with pytest.raises(BackendUnavailable, match="AIODIST_TRANSPORT=tcp"):
        Arena(PAGE, NONCE)
