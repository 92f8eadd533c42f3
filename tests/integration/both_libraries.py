"""What the ranks do in test_hello.py where torch is in the process, too: groups in a given order."""

from __future__ import annotations

import sys

import numpy as np

import aiodist as dist


async def with_aiodist() -> None:
    async with await dist.init_process_group(timeout=60) as pg:
        tensor = np.array([11 + 89 * pg.rank])
        await pg.all_reduce(tensor)
        print(f"<aiodist: {pg.rank} of {pg.size}, {tensor[0]}>", flush=True)


def with_torch(told: str) -> None:
    import torch
    import torch.distributed as td

    if not td.is_initialized():
        where, _, rank = told.partition("?")
        more = {"init_method": where, "rank": int(rank), "world_size": 2} if told else {}
        td.init_process_group("gloo", **more)
    tensor = torch.tensor([11 + 89 * td.get_rank()])
    td.all_reduce(tensor)
    print(f"<torch: {td.get_rank()} of {td.get_world_size()}, {tensor.item()}>", flush=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    place = words.pop(0) if words[0].startswith("tcp:") else ""
    for word in words:
        with_torch(place) if word == "torch" else dist.run(with_aiodist())
    if "torch" in words:  # or torch's threads may abort the interpreter at its end
        import torch.distributed as td

        td.destroy_process_group()
