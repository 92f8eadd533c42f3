"""Rounds of torch's groups: made, used, destroyed, and made again at once. Each rank prints "done" at last.

`aiodist run --nproc-per-node N torch_rounds_job.py BACKEND ROUNDS [barrier] [abort] [die] [after] [URL]`

Each round says its number in what it sends, so a rank that meets in another round is found.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as c10d

import aiodist.portal as dist

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
EVERY = 7  # of so many rounds one is aborted


def check(number: int, ranks: list[int], group: object) -> None:
    """Its members, and nobody else, are in this round of the group."""
    if RANK not in ranks:
        return
    seen: list[object] = [None] * len(ranks)
    c10d.all_gather_object(seen, (number, RANK), group=group)
    assert seen == [(number, rank) for rank in ranks], seen
    one = torch.full((3,), 10.0**RANK)
    c10d.all_reduce(one, group=group)
    assert one.tolist() == [sum(10.0**rank for rank in ranks)] * 3


def subgroups(number: int) -> None:
    """Groups of some ranks, of all, in another order, and one that is destroyed and made again."""
    everybody = list(range(SIZE))
    few = everybody[number % 2 : number % 2 + 2]
    check(number, few, c10d.new_group(few))
    check(number, everybody, c10d.new_group(everybody))
    turned = everybody[::-1]
    check(number, turned, c10d.new_group(turned, sort_ranks=False))
    if RANK in few:
        for _ in range(2):
            again = c10d.new_group(few, use_local_synchronization=True)
            check(number, few, again)
            c10d.destroy_process_group(again)


def fails(call: Callable[[], object]) -> None:
    """A call fails, as another rank has ended the group."""
    with pytest.raises(RuntimeError, match=r"abort|closed"):
        while True:
            call()


def main() -> None:
    """All rounds."""
    backend, rounds, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    slow, url = random.Random(RANK), next((word for word in words if "://" in word), None)
    where = {} if url is None else {"init_method": url, "rank": RANK, "world_size": SIZE}
    for number in range(rounds):
        c10d.init_process_group(backend, **where)
        check(number, list(range(SIZE)), None)
        if number % 3 == 0:
            subgroups(number)
        if "die" in words and number == 5 and RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        if "abort" in words and number % EVERY == 3:
            if number % SIZE == RANK:
                c10d.group.WORLD.abort()
            else:
                fails(lambda: c10d.all_reduce(torch.ones(1)))
        elif "barrier" in words:
            c10d.barrier()
        if slow.random() < 0.1:  # others are in the next round by then
            time.sleep(slow.random() * 0.05)
        c10d.destroy_process_group()
    if "after" in words:
        after()
    sys.stdout.write("done\n")  # in one piece: ranks share an output that has no buffer
    sys.stdout.flush()


def after() -> None:
    """What else may want the port of torch's store: a group of aiodist's own, and gloo's."""
    with dist.init_process_group() as group:
        assert group.all_gather_object(RANK) == list(range(SIZE))
    c10d.init_process_group("gloo")
    check(0, list(range(SIZE)), None)
    c10d.destroy_process_group()
    c10d.init_process_group("aiodist")
    check(1, list(range(SIZE)), None)
    c10d.destroy_process_group()


main()
