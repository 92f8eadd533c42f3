"""Make a kit for `tests/gpu/run`: a newer NCCL, small enough to carry to a machine without a network.

    tests/gpu/prepare KIT                        fetches a wheel with pip
    tests/gpu/prepare KIT --library FILE         takes a libnccl.so.2 that is here

NCCL brings device code for every architecture, hundreds of MB; that of others than yours is zeroed, so that
the rest compresses well. Such a library loads; that it runs has not been tried, for want of a GPU. If it does
not, use --whole, which is larger, or build NCCL on the machine itself:

    make -j src.build NVCC_GENCODE="-gencode=arch=compute_90,code=sm_90"
"""

from __future__ import annotations

import argparse
import lzma
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

LIBRARY = "libnccl.so.2"
VERSION = "2.30.7"
_INSIDE = f"nvidia/nccl/lib/{LIBRARY}"
_MAGIC = 0xBA55ED50
_HEADER = struct.Struct("<IHHQ")  # magic, version, size of the header, size of what follows
_ENTRY = struct.Struct("<HHIQ")  # kind, version, size of the header, size of the code
_SMALLEST = 64  # bytes of an entry's header
_ARCHITECTURE = 28  # where it stands in there
_ELF = 2  # kind of machine code; the other is PTX


def blank(data: bytearray, architecture: int) -> tuple[int, int]:
    """Zero the device code of all other architectures, in place → bytes that are kept, and that are gone.

    Args:
        data: a library with "fat binaries": a header, and entries of one architecture each.
        architecture: 90 for sm_90.
    """
    kept = gone = position = 0
    magic = struct.pack("<I", _MAGIC)
    while (position := data.find(magic, position)) >= 0:
        if position + _HEADER.size > len(data):
            break
        _, version, header, size = _HEADER.unpack_from(data, position)
        end = position + _HEADER.size + size
        if (version, header) != (1, _HEADER.size) or end > len(data):
            position += len(magic)
            continue
        entry = position + _HEADER.size
        while entry + _SMALLEST <= end:
            kind, _, before, length = _ENTRY.unpack_from(data, entry)
            (for_,) = struct.unpack_from("<I", data, entry + _ARCHITECTURE)
            if (kind, for_) == (_ELF, architecture):
                kept += length
            else:
                data[entry + before : entry + before + length] = bytes(length)
                gone += length
            entry += before + length
        position = end
    return kept, gone


def fetch(version: str, cuda: int, folder: Path) -> Path:
    """A libnccl.so.2 from its wheel."""
    name = f"nvidia-nccl-cu{cuda}=={version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), name]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(_INSIDE, folder))


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        prog="tests/gpu/prepare", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kit", type=Path, help="folder to make")
    parser.add_argument("--library", type=Path, help=f"a {LIBRARY}; else a wheel is fetched")
    parser.add_argument("--nccl", default=VERSION, help="version of the wheel (%(default)s)")
    parser.add_argument("--cuda", type=int, default=13, help="major version of CUDA (%(default)s)")
    parser.add_argument("--arch", type=int, default=90, help="of the GPU: 90 is Hopper (%(default)s)")
    parser.add_argument("--whole", action="store_true", help="keep the code of all architectures")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="aiodist-kit-") as name:
        library = options.library or fetch(options.nccl, options.cuda, Path(name))
        data = bytearray(library.read_bytes())
    if not options.whole:
        kept, gone = blank(data, options.arch)
        print(f"device code: {kept >> 20} MiB for sm_{options.arch} are kept, {gone >> 20} MiB are gone")
        if not kept:
            print(f"{library} has no code for sm_{options.arch}", file=sys.stderr)
            return 1
    options.kit.mkdir(parents=True, exist_ok=True)
    packed = options.kit / f"{LIBRARY}.xz"
    with lzma.open(packed, "wb") as file:
        file.write(data)
    print(f"{packed}: {packed.stat().st_size >> 20} MiB")
    return 0
