"""Files of arrays: what is written is read, other libraries' format, damage is found."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import CheckpointError
from aiodist.base.types import BFLOAT16
from aiodist.ddp.checkpoint.files import Reader, WritingStopped, write

ARRAYS: dict[str, Any] = {
    "floats": np.arange(7, dtype=np.float32) / 4,
    "none": np.empty(0, np.int16),
    "halves": np.arange(5).astype(BFLOAT16),
    "complex": np.array([1 + 2j, 3 - 1j]),
    "flags": np.array([True, False, True]),
}


def segment(name: str, array: Any, rank: int = 0) -> list[Any]:
    return [0, array.size, rank, name, zlib.crc32(array.tobytes())]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    nbytes = write(path, ARRAYS.items(), threading.Event())
    assert path.stat().st_size == nbytes
    reader = Reader(tmp_path, [path.name], [nbytes])
    for name, array in ARRAYS.items():
        found = reader(segment(name, array), array.dtype)
        assert found.dtype == array.dtype and found.tobytes() == array.tobytes()


def test_the_format_is_the_documented_one(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path, ARRAYS.items(), threading.Event())
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 8 == 0
    assert {name: told["dtype"] for name, told in header.items()} == {
        "floats": "F32", "none": "I16", "halves": "BF16", "complex": "U8", "flags": "BOOL",
    }  # fmt: skip
    assert header["complex"]["shape"] == [32]
    start, stop = header["floats"]["data_offsets"]
    assert data[8 + length :][start:stop] == ARRAYS["floats"].tobytes()
    assert max(told["data_offsets"][1] for told in header.values()) == len(data) - 8 - length


def test_the_library_safetensors_reads_our_files(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write(path, ARRAYS.items(), threading.Event())
    found = dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    assert {name: bytes(one["data"]) for name, one in found.items()} == {
        name: array.tobytes() for name, array in ARRAYS.items()
    }
    assert {name: one["dtype"] for name, one in found.items()} == {
        "floats": "F32", "none": "I16", "halves": "BF16", "complex": "U8", "flags": "BOOL",
    }  # fmt: skip
    with safetensors.safe_open(path, "numpy") as file:
        assert np.array_equal(file.get_tensor("floats"), ARRAYS["floats"])


@given(st.data())
def test_each_damaged_byte_is_found(tmp_path_factory: Any, data: Any) -> None:
    folder = tmp_path_factory.mktemp("damage")
    path = folder / "a.safetensors"
    chosen = {name: array for name, array in ARRAYS.items() if array.size}
    nbytes = write(path, chosen.items(), threading.Event())
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, nbytes - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    reader = Reader(folder, [path.name], [nbytes])
    for name, array in chosen.items():  # what is read is what was written, or an error says that it is not
        with contextlib.suppress(CheckpointError):
            assert reader(segment(name, array), array.dtype).tobytes() == array.tobytes()


def test_a_file_that_is_short_or_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    nbytes = write(path, ARRAYS.items(), threading.Event())
    path.write_bytes(path.read_bytes()[:-1])
    floats = segment("floats", ARRAYS["floats"])
    with pytest.raises(CheckpointError, match=f"has {nbytes - 1} bytes, and was written with {nbytes}"):
        Reader(tmp_path, [path.name], [nbytes])(floats, np.dtype(np.float32))
    path.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        Reader(tmp_path, [path.name], [nbytes])(floats, np.dtype(np.float32))


def test_a_stop_and_a_failure_leave_no_file_of_their_own(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(WritingStopped):
        write(tmp_path / "a", ARRAYS.items(), stop)
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "none" / "a", ARRAYS.items(), threading.Event())
    (tmp_path / "b").write_text("another's")
    with pytest.raises(FileExistsError):
        write(tmp_path / "b", ARRAYS.items(), threading.Event())
    assert (tmp_path / "b").read_text() == "another's"
    assert [one.name for one in tmp_path.iterdir()] == ["b"]


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    path, real = tmp_path / "a.safetensors", tmp_path / "real"
    nbytes = write(real, ARRAYS.items(), threading.Event())
    floats = segment("floats", ARRAYS["floats"])
    path.symlink_to(real)
    with pytest.raises(CheckpointError, match=r"cannot be read: .* is a link"):
        Reader(tmp_path, [path.name], [nbytes])(floats, np.dtype(np.float32))
    path.unlink()
    os.mkfifo(path)  # nobody writes it: opening it must not wait
    with pytest.raises(CheckpointError, match=r"cannot be read: .*not a regular file"):
        Reader(tmp_path, [path.name], [0])(floats, np.dtype(np.float32))


@pytest.mark.parametrize(
    "span", [[-1000, 28], [28, 0], [0, 1 << 62], [0, 1 << 36], [1 << 80, 1 << 80], [0, 1, 2], [4, 32], "ab"]
)
def test_a_header_that_names_other_bytes_is_refused_before_they_are_read(tmp_path: Path, span: Any) -> None:
    path = tmp_path / "a.safetensors"
    header = json.dumps({"floats": {"dtype": "F32", "shape": [7], "data_offsets": span}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + ARRAYS["floats"].tobytes())
    with pytest.raises(CheckpointError, match="cannot be read"):
        Reader(tmp_path, [path.name], [path.stat().st_size])(
            segment("floats", ARRAYS["floats"]), np.dtype(np.float32)
        )


def test_a_deep_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = b"[" * 100_000 + b"]" * 100_000
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match="cannot be read"):
        Reader(tmp_path, [path.name], [path.stat().st_size])(
            segment("floats", ARRAYS["floats"]), np.dtype(np.float32)
        )
