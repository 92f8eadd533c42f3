"""Files of arrays in the format safetensors: a header in JSON, then the bytes.

    8 bytes      length of the header, little-endian
    header       {"name": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}, …}
    bytes        of all arrays, one after the other, little-endian

Source: the format's description in https://github.com/huggingface/safetensors. Dtypes that it does not have
are stored as bytes; a checkpoint's index has the dtype.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from aiodist.base.environment.files import Folder, write_all
from aiodist.base.errors import CheckpointError
from aiodist.base.sanitize import one_line
from aiodist.ddp.checkpoint.index import OTHER
from aiodist.net.wire.bounded_json import load_json

Array = npt.NDArray[Any]

_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
    "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
    "bool": "BOOL",
}  # fmt: skip
_BLOCK = 8 << 20  # bytes that are written in one go: so long a stop waits
_MOST_HEADER = 100_000_000  # the format's limit


class WritingStopped(Exception):
    """Writing was stopped."""


def write(path: Path, arrays: Iterable[tuple[str, Array]], stop: threading.Event) -> int:
    """Write arrays to a new file, down to the disk.

    Args:
        path: of the file, which must not be there.
        arrays: names, and flat, contiguous arrays.
        stop: when it is set, writing ends.

    Returns:
        bytes of the file.

    Raises:
        Stopped: `stop` was set. The file is gone.
        OSError: as the system says. The file is gone, unless it was there before: that one stays.
    """
    header: dict[str, Any] = {}
    at = 0
    chosen = list(arrays)
    for name, array in chosen:
        dtype = _NAMES.get(array.dtype.name)
        shape = [array.size] if dtype else [array.nbytes]
        header[name] = {"dtype": dtype or "U8", "shape": shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    packed = json.dumps(header, separators=(",", ":")).encode()
    packed += b" " * (-len(packed) % 8)
    with Folder.named(path.parent) as folder:
        handle = folder.made(path.name, 0o666)  # a file that was there is another's: it stays
        try:
            try:
                _put(handle, memoryview(len(packed).to_bytes(8, "little") + packed), stop)
                for _, array in chosen:
                    _put(handle, array.reshape(-1).view(np.uint8).data, stop)
                os.fsync(handle)
            finally:
                os.close(handle)
        except BaseException:
            folder.remove(path.name)
            raise
    return 8 + len(packed) + at


def _put(handle: int, data: memoryview, stop: threading.Event) -> None:
    for at in range(0, len(data), _BLOCK):
        if stop.is_set():
            raise WritingStopped
        write_all(handle, data[at : at + _BLOCK])


def regular(path: Path) -> BinaryIO:
    """Open a file to read. It must be a file: a link may lead elsewhere, and a pipe is waited for.

    Raises:
        OSError: it is no such file, or cannot be read.
    """
    with Folder.named(path.parent) as folder:
        return os.fdopen(folder.file(path.name), "rb")


class Reader:
    """A reader of the files of one checkpoint.

    Args:
        folder: where they are.
        names: of the files, by rank.
        sizes: bytes of each.
    """

    def __init__(self, folder: Path, names: list[str], sizes: list[int]) -> None:
        self._folder, self._names, self._sizes = folder, names, sizes
        self._headers: dict[int, tuple[int, dict[str, Any]]] = {}

    def __call__(self, segment: list[Any], dtype: np.dtype[Any]) -> Array:
        """Read a segment, and compare its checksum.

        Raises:
            CheckpointError: the file is damaged, or is not there.
        """
        _, count, rank, name, crc = segment
        path = self._folder / self._names[rank]
        try:
            with regular(path) as file:
                first, header = self._header(rank, path, file)
                start, stop = header[name]["data_offsets"]
                if (
                    not 0 <= start <= stop <= self._sizes[rank] - first
                    or stop - start != count * dtype.itemsize
                ):
                    raise ValueError(f"its header gives {name} another place")
                file.seek(first + start)
                data = file.read(stop - start)
        except CheckpointError:
            raise
        except Exception as error:  # whatever else is wrong with it
            described = one_line(str(error)) or type(error).__name__
            raise CheckpointError(f"{path} cannot be read: {described}", hint=OTHER) from error
        if len(data) != count * dtype.itemsize or zlib.crc32(data) != crc:
            raise CheckpointError(f"{path} is damaged: {name} has another checksum", hint=OTHER)
        return np.frombuffer(data, dtype)

    def _header(self, rank: int, path: Path, file: BinaryIO) -> tuple[int, dict[str, Any]]:
        """The place in the file at which the arrays' bytes begin, and the header."""
        if rank not in self._headers:
            found = os.fstat(file.fileno()).st_size
            if found != self._sizes[rank]:
                raise CheckpointError(
                    f"{path} has {found} bytes, and was written with {self._sizes[rank]}", hint=OTHER
                )
            length = int.from_bytes(file.read(8), "little")
            if length > min(found, _MOST_HEADER):
                raise CheckpointError(f"{path} is damaged: its header has no length", hint=OTHER)
            self._headers[rank] = 8 + length, load_json(file.read(length), length, spread=4)
        return self._headers[rank]
