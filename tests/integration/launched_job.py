"""What the ranks do in test_launchers.py: meet by nothing but what their launcher set, twice."""

from __future__ import annotations

import sys

import numpy as np

import aiodist as dist


async def main() -> None:
    for turn in range(2):
        async with await dist.init_process_group(timeout=60) as pg:
            tensor = np.array([10**pg.rank, turn])
            await pg.all_reduce(tensor)
            print(f"<{turn}: {pg.rank} of {pg.size}, {tensor[0]} {tensor[1]}>", flush=True)


def torch_too() -> None:
    """torch's own group beside, on the same variables."""
    import torch
    import torch.distributed as td

    td.init_process_group("gloo")
    tensor = torch.tensor([10 ** td.get_rank()])
    td.all_reduce(tensor)
    print(f"<torch: {td.get_rank()}, {tensor.item()}>", flush=True)
    td.destroy_process_group()


if __name__ == "__main__":
    order = sys.argv[1:]
    for step in order or ["aiodist"]:
        torch_too() if step == "torch" else dist.run(main())
