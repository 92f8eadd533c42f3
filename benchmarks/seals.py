"""What tags on tensors of bytes cost in torch's groups: beside tensors of floats, which go without.

`python -m benchmarks.seals`: two ranks of this host over TCP, without TLS. Medians of one broadcast, of
the same number of bytes.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

_SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24)  # bytes
_ROUNDS = 50


def measure() -> None:
    """Be one rank of two."""
    import torch
    import torch.distributed as c10d

    c10d.init_process_group("aiodist")
    for nbytes in _SIZES:
        taken: dict[str, list[float]] = {"uint8": [], "float32": []}
        tensors = {
            "uint8": torch.zeros(nbytes, dtype=torch.uint8),
            "float32": torch.zeros(nbytes // 4, dtype=torch.float32),
        }
        for _ in range(_ROUNDS):
            for name, tensor in tensors.items():  # by turns: what else the machine does is the same for both
                c10d.barrier()
                began = time.perf_counter()
                c10d.broadcast(tensor, 0)
                c10d.barrier()
                taken[name].append(time.perf_counter() - began)
        if c10d.get_rank() == 0:
            sealed, plain = (statistics.median(taken[name]) * 1e3 for name in taken)
            ratio = sealed / plain
            print(f"{nbytes:>9} bytes: {sealed:8.3f} ms with tags, {plain:8.3f} without, {ratio:.2f} times")
    c10d.destroy_process_group()


def main() -> int:
    """Start the ranks."""
    if "RANK" in os.environ:
        measure()
        return 0
    run = [sys.executable, "-m", "aiodist", "run", "--nproc-per-node=2", "-m", "benchmarks.seals"]
    return subprocess.run(run, env=os.environ | {"AIODIST_TRANSPORT": "tcp"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
