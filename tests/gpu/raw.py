"""CuPy and NCCL alone, without aiodist: what works before anything of ours is blamed.

    python tests/gpu/raw.py RANK SIZE FILE     one rank; FILE carries the communicator's id
    python tests/gpu/raw.py --pair FOLDER      two ranks on one GPU; FOLDER/setting says what that needs

Each line says how long it took since the rank began.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PATIENCE = 35.0  # seconds for a pair of ranks
SETTINGS = (
    "",
    "NCCL_P2P_DISABLE=1",
    "NCCL_CUMEM_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0",
    "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1",
)
"""What two ranks on one GPU may need, the likeliest first."""


def rank(number: int, size: int, place: Path) -> None:
    """One rank."""
    faulthandler.dump_traceback_later(PATIENCE - 5, exit=True)
    began = time.monotonic()

    def say(*words: object) -> None:
        print(f"[{number}] {time.monotonic() - began:.3f}", *words, flush=True)

    import cupy
    import numpy as np
    from cupy.cuda import nccl

    cupy.cuda.Device(0).use()
    say("context", "NCCL", nccl.get_version(), "driver", cupy.cuda.runtime.driverGetVersion())
    if number == 0:
        part = place.with_suffix(".part")
        unique = nccl.get_unique_id()
        part.write_bytes(unique if isinstance(unique, bytes) else bytes(char & 0xFF for char in unique))
        part.rename(place)
    while not place.exists():
        time.sleep(0.01)
    communicator = nccl.NcclCommunicator(size, accepted(cupy.__version__, place.read_bytes()), number)
    say("communicator")
    stream = cupy.cuda.Stream(non_blocking=True)

    def reduce(over: Any, count: int = 1000) -> None:
        with stream:
            tensor = cupy.arange(count, dtype=np.float32) + number
            over.allReduce(tensor.data.ptr, tensor.data.ptr, count, 7, 0, stream.ptr)
            event = cupy.cuda.Event(block=True, disable_timing=True)
            event.record(stream)
        event.synchronize()
        over.check_async_error()
        assert np.array_equal(tensor.get(), np.arange(count) * size + sum(range(size)))

    reduce(communicator)
    say("first all_reduce")
    start = time.monotonic()
    for _ in range(20):
        reduce(communicator)
    say(f"all_reduce of 4 kB: {(time.monotonic() - start) / 20 * 1e3:.2f} ms each")
    start = time.monotonic()
    reduce(communicator, 5_000_000)
    say(f"of 20 MB: {(time.monotonic() - start) * 1e3:.1f} ms")
    with stream:
        word = cupy.full(1000, number, np.float32)
        communicator.broadcast(word.data.ptr, word.data.ptr, 4000, 1, 0, stream.ptr)
    stream.synchronize()
    assert float(word.sum()) == 0
    say("broadcast")
    communicators = [communicator]
    if hasattr(communicator, "commSplit"):  # not in CuPy 13
        communicators.append(communicator.commSplit(0, number))
        reduce(communicators[1])
        say("split")
    if size > 1:
        with stream:
            tensor = cupy.zeros(1 << 20, np.float32)
            if number == 0:  # alone: its kernel waits for ever
                communicator.allReduce(tensor.data.ptr, tensor.data.ptr, tensor.size, 7, 0, stream.ptr)
        time.sleep(0.5)
        threads = [threading.Thread(target=each.abort) for each in communicators]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stream.synchronize()
        say(f"abort: {time.monotonic() - start:.3f} s")
    else:
        start = time.monotonic()
        for each in reversed(communicators):
            each.destroy()
        say(f"destroy: {time.monotonic() - start:.3f} s")
    assert float((cupy.arange(5) * 2).sum()) == 20
    say("well")


def accepted(version: str, unique: bytes) -> bytes | tuple[int, ...]:
    """An id as a version of CuPy takes it: until 13 as a tuple of C's chars."""
    if int(version.split(".")[0]) >= 14:
        return unique
    return tuple(byte - 256 if byte > 127 else byte for byte in unique)


def pair(folder: Path) -> int:
    """Two ranks, with one setting after the other until they are well."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, setting in enumerate(SETTINGS):
        place = folder / f"id-{number}"
        place.unlink(missing_ok=True)
        env = os.environ | {"NCCL_DEBUG": "INFO"} | dict(item.split("=") for item in setting.split())
        ranks = []
        for each in range(2):
            with (folder / f"raw-{number}-{each}.log").open("wb") as log:
                command = [sys.executable, __file__, str(each), "2", str(place)]
                ranks.append(subprocess.Popen(command, stdout=log, stderr=log, env=env))
        until = time.monotonic() + PATIENCE
        for one in ranks:
            try:
                one.wait(max(until - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        place.unlink(missing_ok=True)
        codes = [one.returncode for one in ranks]
        print(f"two ranks with {setting or 'nothing set'}: exit codes {codes}")
        lines = (folder / f"raw-{number}-0.log").read_text(errors="replace").splitlines()
        told = [line for line in lines if line.startswith("[0]")]
        print("\n".join(told or lines[-3:]), flush=True)
        if codes == [0, 0]:
            (folder / "setting").write_text(setting)
            return 0
    return 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--pair"]:
        raise SystemExit(pair(Path(sys.argv[2])))
    rank(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
