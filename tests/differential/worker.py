"""One rank: runs the programs on aiodist, then on gloo, and compares both with NumPy and with each other.

python -m tests.differential.worker SEED COUNT
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as gloo

import aiodist as dist
from tests.differential import steps
from tests.differential.calls import Place, begin
from tests.differential.steps import BFLOAT16, DTYPES, Program, Step

Groups = list[tuple[tuple[int, ...], Any]]
Outcomes = dict[int, list[Any]]


def not_comparable(step: Step) -> str | None:
    """What torch 2.13's gloo gets wrong here, or cannot do, so that it is not compared. None: it is right."""
    if step.kind not in (*steps.OBJECTS, "barrier", "monitored_barrier"):
        if step.dtype in ("int16", "uint16", "uint32", "uint64") and step.kind not in steps.MESSAGES:
            return "gloo knows no 16-bit integers, and no unsigned ones but uint8 ('Invalid scalar type')"
        if step.dtype in ("uint16", "uint32", "uint64"):
            return "gloo sends no wide unsigned integers"
    if step.kind in steps.REDUCING:
        if step.op == "PREMUL_SUM":
            return "gloo has no PREMUL_SUM"
        if step.dtype == "bool" and step.op == "SUM":
            return "gloo adds the bytes of bools: a True may be 2, and 256 of them are False"
        if step.dtype.startswith("complex") and step.op == "PRODUCT":
            return "torch refuses PRODUCT of complex tensors; gloo would multiply the parts"
        floating = DTYPES[step.dtype].kind == "f" or DTYPES[step.dtype] == BFLOAT16
        if step.values == "nan" and floating and step.op in ("MIN", "MAX"):
            return "gloo's MIN and MAX keep or drop a NaN by the order of ranks"
    if step.kind == "gather" and step.dtype.startswith("complex"):
        return "gloo gathers no complex tensors to one rank ('Invalid scalar type')"
    if step.kind in ("send", "send_object_list") and step.target == step.root:
        return "gloo has no way from a rank to itself ('Pair is not connected', or refused by torch)"
    if step.kind == "send_any" and 0 in step.shape:
        return "gloo receives nothing of size zero from any source ('offset < this->size')"
    if step.kind == "all_to_all" and len({count for row in step.rows for count in row}) > 1:
        return "gloo's all_to_all wants tensors of one size ('invalid tensor size')"
    if step.kind == "reduce_scatter_tensor" and (step.stacked or not step.shape):
        return "gloo ends the process where the input has an axis of ranks"
    if step.kind == "all_gather_into_tensor" and (step.stacked or not step.shape):
        return "gloo wants the output's rows shaped like the input ('invalid tensor size')"
    return None


def is_partial(step: Step, me: int) -> bool:
    """Whether gloo leaves a partial sum: its reduce overwrites all ranks' tensors, not the root's alone."""
    return step.kind == "reduce" and me != step.root


async def on_aiodist(one: Program, groups: Groups, rank: int) -> Outcomes:
    """Run a program, each group's calls in its order, the groups in an order of this rank's own."""
    outcomes: Outcomes = {}

    async def run(number: int) -> None:
        ranks, group = groups[number]
        held: list[tuple[int, Any]] = []
        for index, step in enumerate(one.steps):
            if step.group == number:
                begun = begin(step, Place(dist, group, ranks, ranks.index(rank), one.tag(index), True))
                if step.held:
                    held.append((index, begun))
                else:
                    outcomes[index] = begun.outcome([await handle for handle in begun.handles])
        random.Random(one.seed + rank).shuffle(held)  # awaited in any order
        for index, begun in held:
            outcomes[index] = begun.outcome([await handle for handle in begun.handles])

    mine = [number for number, (ranks, _) in enumerate(groups) if rank in ranks]
    random.Random(one.seed * 31 + rank).shuffle(mine)
    async with asyncio.TaskGroup() as tasks:
        for number in mine:
            tasks.create_task(run(number))
    return outcomes


def on_gloo(one: Program, groups: Groups, rank: int) -> Outcomes:
    """Run what gloo can of a program, in the one order that blocking calls allow."""
    outcomes: Outcomes = {}
    held: list[tuple[int, Any]] = []
    for index, step in enumerate(one.steps):
        ranks, group = groups[step.group]
        if rank not in ranks or not_comparable(step) is not None:
            continue
        with _telling(step):
            begun = begin(step, Place(gloo, group, ranks, ranks.index(rank), one.tag(index), False))
            if step.held:
                held.append((index, begun))
            else:
                outcomes[index] = begun.outcome([_blocked(handle) for handle in begun.handles])
    for index, begun in held:
        with _telling(one.steps[index]):
            outcomes[index] = begun.outcome([_blocked(handle) for handle in begun.handles])
    return outcomes


@contextlib.contextmanager
def _telling(step: Step) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(f"gloo cannot do {step}") from error


def _blocked(handle: Any) -> Any:
    return handle.wait() if isinstance(handle, gloo.Work) else handle


def same(got: Any, wanted: Any, close: bool = False) -> bool:
    """Whether two outcomes are equal, arrays bit by bit; `close`: to within one rounding."""
    if isinstance(wanted, np.ndarray):
        if not isinstance(got, np.ndarray) or got.dtype != wanted.dtype or got.shape != wanted.shape:
            return False
        if got.tobytes() == wanted.tobytes():
            return True
        if wanted.dtype.kind not in "fc" and wanted.dtype != BFLOAT16:
            return False
        wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
        ours, theirs = got.astype(wide), wanted.astype(wide)
        if not close:
            return bool(np.array_equal(ours, theirs, equal_nan=True))  # NaNs have many bits
        eps = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 2e-7, "complex64": 2e-7}
        return bool(np.allclose(ours, theirs, rtol=eps.get(wanted.dtype.name, 1e-15), equal_nan=True))
    if isinstance(wanted, list | tuple):
        return (
            type(got) is type(wanted)
            and len(got) == len(wanted)
            and all(same(a, b, close) for a, b in zip(got, wanted, strict=True))
        )
    if isinstance(wanted, dict):
        return (
            isinstance(got, dict)
            and got.keys() == wanted.keys()
            and all(same(got[key], item, close) for key, item in wanted.items())
        )
    return type(got) is type(wanted) and bool(got == wanted)


def compare(one: Program, groups: Groups, rank: int, ours: Outcomes, theirs: Outcomes) -> list[str]:
    """What differs, in words."""
    wrong = []
    for index, step in enumerate(one.steps):
        ranks, _ = groups[step.group]
        if rank not in ranks:
            continue
        me = ranks.index(rank)
        wanted = steps.expected(step, me, len(ranks))
        close = step.op == "AVG" and step.kind in steps.REDUCING
        outcome = f"program {one.seed} step {index} rank {rank} of {ranks}: {step}"
        if not same(ours[index], wanted, close):
            wrong.append(f"{outcome}\n  aiodist {ours[index]!r}\n  NumPy   {wanted!r}")
        if index in theirs and not is_partial(step, me) and not same(theirs[index], ours[index], close):
            wrong.append(f"{outcome}\n  aiodist {ours[index]!r}\n  gloo    {theirs[index]!r}")
    return wrong


async def meet_on_gloo(rank: int, size: int) -> None:
    """Form gloo's world: rank 0 hosts a store on a port that the system picks, and tells the others."""
    limit = datetime.timedelta(seconds=300)
    store: Any = None
    if rank == 0:
        store = gloo.TCPStore("127.0.0.1", 0, size, True, limit, wait_for_workers=False)
    told = [store.port if rank == 0 else None]
    await dist.broadcast_object_list(told, 0)
    if rank != 0:
        store = gloo.TCPStore("127.0.0.1", told[0], size, False, limit)
    await asyncio.to_thread(
        gloo.init_process_group, "gloo", store=store, rank=rank, world_size=size, timeout=limit
    )


async def main(seed: int, count: int) -> None:
    """Run `count` programs on both libraries."""
    torch.set_num_threads(1)
    async with await dist.init_process_group(timeout=60) as world:
        rank, size = world.rank, world.size
        members = steps.subgroups(size, seed)
        ours: Groups = [(members[0], None)]
        ours += [(ranks, await dist.new_group(list(ranks))) for ranks in members[1:]]
        programs = [steps.program(seed * 1_000_000 + number, members) for number in range(count)]
        results = [await on_aiodist(one, ours, rank) for one in programs]
        await dist.barrier()
        await meet_on_gloo(rank, size)

        def all_on_gloo() -> list[Outcomes]:
            theirs: Groups = [(members[0], None)]
            theirs += [(ranks, gloo.new_group(list(ranks))) for ranks in members[1:]]
            return [on_gloo(one, theirs, rank) for one in programs]

        others = await asyncio.to_thread(all_on_gloo)
        wrong = []
        tally: Counter[str] = Counter()
        for one, mine, theirs in zip(programs, results, others, strict=True):
            wrong += compare(one, ours, rank, mine, theirs)
            tally["calls"] += len(mine)
            tally["compared with gloo"] += len(theirs)
        await dist.barrier()
        await asyncio.to_thread(gloo.destroy_process_group)
    print(f"rank {rank} of {size}: {len(programs)} programs, {dict(tally)}")
    if wrong:
        raise SystemExit(f"{len(wrong)} differences\n" + "\n".join(wrong[:5]))


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.run(main(int(sys.argv[1]), int(sys.argv[2])))
