"""A process of its own that exchanges one text by PMIx, for the process whose environment it has.

    python pmix_process.py KEY        the text comes on stdin; nothing there: rank 0 has it

    stdout: 'ok TEXT' or 'error WORDS', one line

It puts the text as this process of the job (`PMIX_NAMESPACE`, `PMIX_RANK`), or asks for rank 0's, and ends
when all processes of the job have it. MPI_Init calls PMIx_Init itself, and on Open MPI 5 not after somebody
else has done so in its process; so this is another process. It imports nothing of aiodist. Structures are
those of pmix_common.h, versions 3 to 6.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_NAME_BYTES = 256  # of a namespace, PMIX_MAX_NSLEN + 1
_STRING, _GLOBAL, _SUCCESS = 3, 3, 0


class PmixProcess(ctypes.Structure):
    """pmix_proc_t."""

    _fields_ = (("namespace", ctypes.c_char * _NAME_BYTES), ("rank", ctypes.c_uint32))


class Value(ctypes.Structure):
    """pmix_value_t; of its union only the text, in the room that the largest member takes."""

    _fields_ = (("type", ctypes.c_uint16), ("text", ctypes.c_char_p), ("rest", ctypes.c_char * 16))


def library() -> ctypes.CDLL:
    """libpmix: the one that the launcher's daemon, our parent, has loaded; else of the loader's path.

    With one of another version the ranks meet as well, and a later MPI_Init may hang, or crash.
    """
    tried: list[str] = []
    for pid in ancestors():
        try:
            lines = os.fsdecode(Path(f"/proc/{pid}/maps").read_bytes()).splitlines()
        except OSError:
            continue
        tried += sorted({line.split(maxsplit=5)[5] for line in lines if "/libpmix.so" in line})
    for name in (*tried, "libpmix.so.2"):
        try:
            return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    raise OSError("there is no libpmix")


def ancestors() -> list[int]:
    """Process ids of parent, grandparent, … up to a few."""
    found: list[int] = []
    pid = os.getppid()
    while pid > 1 and len(found) < 8:
        found.append(pid)
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            break
        pid = int(stat.rpartition(b")")[2].split()[1])
    return found


def exchange(key: bytes, text: bytes) -> bytes:
    """Leave a text, unless it is empty, and return rank 0's, when all have it."""
    pmix, me, pointer = library(), PmixProcess(), ctypes.POINTER(Value)()

    def call(name: str, *arguments: object) -> None:
        code = getattr(pmix, name)(*arguments)
        if code != _SUCCESS:
            raise OSError(f"{name} failed with {code}")

    none = ctypes.c_size_t(0)
    call("PMIx_Init", ctypes.byref(me), None, none)
    if text:
        value = Value(_STRING, text)
        call("PMIx_Put", ctypes.c_uint8(_GLOBAL), key, ctypes.byref(value))
    call("PMIx_Commit")
    call("PMIx_Fence", None, none, None, none)
    first = PmixProcess(me.namespace, 0)
    call("PMIx_Get", ctypes.byref(first), key, None, none, ctypes.byref(pointer))
    if pointer.contents.type != _STRING:
        raise OSError(f"what rank 0 left is of type {pointer.contents.type}")
    got: bytes = pointer.contents.text
    call("PMIx_Fence", None, none, None, none)  # before that rank 0 may not go
    call("PMIx_Finalize", None, none)
    return got


def main() -> int:
    """Run the command."""
    text = sys.stdin.buffer.read().strip()
    try:
        answer = b"ok " + exchange(sys.argv[1].encode(), text)
    except OSError as error:
        answer = b"error " + str(error).encode()
    os.write(1, answer.replace(b"\n", b" ") + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
