"""Programs of torch's that use a group in wrong and in rare ways: `torch_misuse_job.py PART …`, on two ranks.

Each part checks itself; after the last one each rank says "held". What one rank refuses both do, unless it
says otherwise.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import re
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

MOVED = [
    torch.bool,
    *(
        torch.uint8,
        torch.int8,
        torch.uint16,
        torch.int16,
        torch.uint32,
        torch.int32,
        torch.uint64,
        torch.int64,
    ),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex32, torch.complex64, torch.complex128),
    *([torch.bcomplex32] if hasattr(torch, "bcomplex32") else []),  # of torch 2.14
]
"""dtypes that are sent."""

SHORT = timedelta(seconds=1)


def say(*words: object) -> None:
    """Print a line at once."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def check_usable(group: Any = None) -> None:
    """A sum in a group is right: nothing of what went before is under way in it."""
    one = torch.tensor([float(c10d.get_rank() + 1)])
    c10d.all_reduce(one, group=group)
    assert one.item() == 3.0, one


def message_of(call: Callable[[], object], *kinds: type[BaseException]) -> str:
    """The message of the error that a call has to end with, in one line."""
    try:
        found = call()
    except kinds as error:
        text = str(error)
        assert len(text.splitlines()) == 1, text
        return text
    raise AssertionError(f"passed: {found}")


def refused(call: Callable[[], object], what: object = "") -> str:
    """The message by which a call is refused on all ranks; the group is as it was."""
    try:
        text = message_of(call, ValueError, TypeError, RuntimeError)
    except AssertionError as error:
        raise AssertionError(what) from error
    check_usable()
    return text


# -- tensors ----------------------------------------------------------------------------------------


def calls(rank: int) -> dict[str, Callable[[Any], object]]:
    """Each call, with a tensor of which it reads and writes."""

    def message(tensor: Any) -> None:
        if rank:
            c10d.recv(tensor, 0)
        else:
            c10d.send(tensor, 1)

    def pair(tensor: Any) -> list[Any]:
        return [torch.zeros(2), tensor]

    return {
        "all_reduce": c10d.all_reduce,
        "broadcast": lambda tensor: c10d.broadcast(tensor, 0),
        "reduce": lambda tensor: c10d.reduce(tensor, 0),
        "all_gather": lambda tensor: c10d.all_gather([torch.zeros(2), torch.zeros(2)], tensor),
        "gather": lambda tensor: c10d.gather(tensor, None if rank else [torch.zeros(2), torch.zeros(2)], 0),
        "scatter": lambda tensor: c10d.scatter(tensor, None if rank else [torch.zeros(2), torch.zeros(2)], 0),
        "reduce_scatter": lambda tensor: c10d.reduce_scatter(tensor, [torch.ones(2), torch.ones(2)]),
        "all_to_all": lambda tensor: c10d.all_to_all(pair(tensor), [torch.ones(2), torch.ones(2)]),
        "all_to_all_single": lambda tensor: c10d.all_to_all_single(tensor, torch.ones(2)),
        "message": message,
    }


def tensors(rank: int) -> None:
    """Kinds of tensors, in every call."""
    wrong = {
        "layout torch.sparse_csr": torch.eye(2).to_sparse_csr(),
        "meta device": torch.ones(2, device="meta"),
        "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "layout torch.jagged": torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
        "float8_e5m2": torch.ones(2).to(torch.float8_e5m2),
    }
    for name, call in calls(rank).items():
        for words, tensor in wrong.items():
            if name == "all_gather" and words == "float8_e5m2":
                continue  # torch itself compares the dtypes of the lists
            text = refused(lambda call=call, tensor=tensor: call(tensor))  # type: ignore[misc]
            assert words in text or "Invalid usage of tensors" in text, (name, words, text)
        if name != "all_reduce":
            text = refused(lambda call=call: call(torch.eye(2).to_sparse()))  # type: ignore[misc]
            assert "layout torch.sparse_coo" in text, (name, text)
        for right in (
            torch.ones(2, requires_grad=True),
            torch.ones(2, requires_grad=True) * 1,
            torch.nn.Parameter(torch.ones(2)),
            torch.ones(2).as_subclass(Mine),
            torch.ones(4)[::2],
        ):
            if (
                name != "all_to_all_single" or right.is_contiguous()
            ):  # where torch wants that, see `arguments`
                call(right)
                check_usable()


class Mine(torch.Tensor):  # type: ignore[misc]
    """A subclass as programs make them."""


def bits(tensor: torch.Tensor) -> list[int]:
    """What a tensor holds, byte by byte: not every dtype can be compared."""
    return list(tensor.view(torch.uint8).tolist())


def dtypes(rank: int) -> None:
    """All of torch's: each is sent as it is, or refused by every rank."""
    named = [getattr(torch, name) for name in dir(torch)]
    for dtype in sorted({one for one in named if isinstance(one, torch.dtype)}, key=str):
        if dtype in MOVED:
            given = torch.tensor([rank, 1, 1]).to(dtype)
            found = [torch.zeros_like(given) for _ in range(2)]
            c10d.all_gather(found, given)
            expected = [torch.tensor([peer, 1, 1]).to(dtype) for peer in range(2)]
            assert list(map(bits, found)) == list(map(bits, expected)), (dtype, found)
            c10d.broadcast(given, 1)
            assert bits(given) == bits(expected[1]), (dtype, given)
        else:
            given = torch.empty(0, dtype=dtype) if "q" not in str(dtype) else torch.ones(2)
            if dtype in (torch.qint8, torch.quint8, torch.qint32):
                given = torch.quantize_per_tensor(given, 0.1, 0, dtype)
            elif "q" in str(dtype):
                continue  # torch makes none
            for call in (c10d.all_reduce, lambda tensor: c10d.broadcast(tensor, 0)):
                text = refused(lambda call=call, given=given: call(given), dtype)  # type: ignore[misc]
                assert "cannot be communicated" in text or "quantized" in text, (dtype, text)


# -- arguments --------------------------------------------------------------------------------------


def arguments(rank: int) -> None:
    """Outputs, ranks, tags and ops that do not fit."""
    two, three, doubles = torch.ones(2), torch.ones(3), torch.ones(2, dtype=torch.float64)
    peer = 1 - rank
    one = torch.ones(1)
    message = c10d.recv if rank else c10d.send
    for words, call in {
        "has 1 tensors, the group has 2": lambda: c10d.all_gather([torch.ones(2)], two),
        "has 3 tensors, the group has 2": lambda: c10d.all_gather([torch.ones(2) for _ in range(3)], two),
        "expected float32[2]": lambda: c10d.all_gather([torch.ones(2), three], two),
        "different dtypes": lambda: c10d.all_gather([torch.ones(2), doubles], two),
        "share memory": lambda: c10d.all_gather([three[:2], three[1:]], two),
        "meta device": lambda: c10d.all_gather([two.clone(), two.to("meta")], two),
        "expected (4,)": lambda: c10d.all_gather_into_tensor(three, two),
        "dtype float64": lambda: c10d.all_gather_into_tensor(torch.ones(4, dtype=torch.float64), two),
        "expected (4,) or": lambda: c10d.reduce_scatter_tensor(two.clone(), torch.ones(5)),
        "input_list has 1 tensors": lambda: c10d.reduce_scatter(two.clone(), [two]),
        "has 0 tensors": lambda: c10d.all_to_all([], []),
        "add up to 2 rows": lambda: c10d.all_to_all_single(torch.ones(4), torch.zeros(4), [1, 1], [2, 2]),
        "Tensors must be contiguous": lambda: c10d.all_to_all_single(torch.ones(2, 2), torch.ones(2, 2).t()),
        "neither a root, an op": lambda: c10d.group.WORLD.allreduce(two, "sum"),
        "takes opts, root, op and timeout, not src": lambda: c10d.group.WORLD.broadcast(two, src=0),
        "none negative": lambda: c10d.all_to_all_single(torch.ones(4), torch.zeros(4), [-1, 5], [-1, 5]),
        "overlaps itself": lambda: c10d.all_reduce(torch.ones(1).expand(3)),
        "src=7 is not a rank of this group": lambda: c10d.broadcast(two, 7),
        "destination rank should not be the same": lambda: c10d.send(one, rank),
        "tag=-1 is outside": lambda: message(one, peer, tag=-1),
        "tag=1099511627776 is outside": lambda: message(one, peer, tag=2**40),
        "tag must be an integer": lambda: message(one, peer, tag="a"),
        "BOR of float32": lambda: c10d.all_reduce(two, c10d.ReduceOp.BOR),
        "MIN on complex": lambda: c10d.all_reduce(torch.ones(2, dtype=torch.complex64), c10d.ReduceOp.MIN),
        "duplicate entries": lambda: c10d.new_group([0, 0]),
        "Rank 5 is out of range": lambda: c10d.new_group([0, 5]),
        "timeout must be a positive": lambda: c10d.new_group(timeout=timedelta(seconds=-5)),
        "initialize the default process group twice": lambda: c10d.init_process_group("aiodist"),
        "cannot pickle": lambda: copy.deepcopy(c10d.group.WORLD),
    }.items():
        text = refused(call, words)
        assert words in text, (words, text)
    both = c10d.new_group(backend="cpu:aiodist,cuda:nccl")
    check_usable(both)
    assert type(both).__name__ == "AiodistProcessGroup"


# -- lives ------------------------------------------------------------------------------------------


def works(rank: int) -> None:
    """Works that nobody waits for, that are waited for in part, from callbacks, in great numbers."""
    peer = 1 - rank
    for _ in range(100):
        c10d.all_reduce(torch.ones(3), async_op=True)
    gc.collect()
    check_usable()
    if rank:
        late = torch.tensor([5.0])
        c10d.recv(torch.zeros(1), 0)
        c10d.send(late, 0)
    else:
        come = torch.zeros(1)
        work = c10d.irecv(come, 1)
        assert "it goes on" in message_of(lambda: work.wait(timedelta(milliseconds=1)), TimeoutError)
        assert not work.is_completed()
        c10d.send(come, 1)
        assert work.wait()
        assert work.wait()
        assert come.item() == 5.0
    ours = torch.ones(2)
    twice = c10d.all_reduce(ours, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    assert twice.wait().tolist() == [4.0, 4.0]
    many = [torch.full((3,), float(number)) for number in range(10_000)]
    for work in [c10d.all_reduce(one, async_op=True) for one in many]:
        work.wait()
    assert all(one[0].item() == 2.0 * number for number, one in enumerate(many))
    tagged = [torch.full((1,), float(number)) for number in range(100)]
    if rank:
        found = [torch.zeros(1) for _ in tagged]
        order = range(99, -1, -1)
        for work in [c10d.irecv(found[number], peer, tag=number) for number in order]:
            work.wait()
        assert all(map(torch.equal, found, tagged))
    else:
        for work in [c10d.isend(one, peer, tag=number) for number, one in enumerate(tagged)]:
            work.wait()
    check_usable()


def threads(rank: int) -> None:
    """A group for each of several threads, and then one for all, where they call the same."""
    errors: list[BaseException] = []

    def add(group: Any, count: int) -> None:
        try:
            for turn in range(100):
                given = torch.full((count,), float(turn))
                c10d.all_reduce(given, group=group)
                assert given.tolist() == [2.0 * turn] * count
        except BaseException as error:
            errors.append(error)

    own = [c10d.new_group() for _ in range(4)]
    runs = [threading.Thread(target=add, args=(group, count + 1)) for count, group in enumerate(own)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert not errors, errors

    def same() -> None:
        try:
            for _ in range(100):
                check_usable()
        except BaseException as error:
            errors.append(error)

    runs = [threading.Thread(target=same) for _ in range(4)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert not errors, errors


class Asking(Dataset[float]):  # type: ignore[misc]
    """Data that a worker process would ask the group for."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        check_usable()
        return 0.0


def children(rank: int) -> None:
    """Forked children, which have no group, and workers of a DataLoader; the parent's goes on."""
    child = os.fork()
    if not child:
        code = 1
        try:
            for call in (check_usable, c10d.barrier, lambda: c10d.isend(torch.ones(1), 1 - rank)):
                assert "belongs to the parent" in message_of(call, RuntimeError)
            c10d.destroy_process_group()
            code = 7
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    check_usable()
    try:
        list(DataLoader(Asking(), num_workers=1, multiprocessing_context="fork"))
        said = "a worker has used the group of its parent"
    except RuntimeError as error:
        said = str(error)
    assert "belongs to the parent" in said, said
    gc.collect()  # torch's iterator waits for its workers in __del__, where a later Ctrl-C would be lost
    check_usable()


def copies(rank: int) -> None:
    """Copies of a DDP module, which train as it does."""
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(torch.full((1, 2), float(rank))).sum().backward()
        assert other.module.weight.grad.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    check_usable()


# -- disagreements ----------------------------------------------------------------------------------


def disagreements(rank: int) -> None:
    """Ranks that call different things: both are told of both, and the other groups go on."""
    single = torch.float64 if rank else torch.float32
    op = c10d.ReduceOp.MAX if rank else c10d.ReduceOp.SUM
    message = c10d.recv if rank else c10d.send
    for words, call in {
        "rank 0: all_reduce(float32[2], SUM); rank 1: broadcast(float32[2], src=0)": lambda group: (
            c10d.broadcast(torch.ones(2), 0, group) if rank else c10d.all_reduce(torch.ones(2), group=group)
        ),
        "all_reduce(float32[2], SUM); rank 1: all_reduce(float32[3], SUM)": lambda group: c10d.all_reduce(
            torch.ones(2 + rank), group=group
        ),
        "all_reduce(float32[2], SUM); rank 1: all_reduce(float64[2], SUM)": lambda group: c10d.all_reduce(
            torch.ones(2, dtype=single), group=group
        ),
        "all_reduce(float32[2], SUM); rank 1: all_reduce(float32[2], MAX)": lambda group: c10d.all_reduce(
            torch.ones(2), op, group
        ),
        "broadcast(float32[2], src=0); rank 1: broadcast(float32[2], src=1)": lambda group: (
            c10d.broadcast(torch.ones(2), rank, group),
            c10d.barrier(group),  # each is done when it has sent
        ),
        (
            "send(float32[4], dst=1, tag=0, number=0); rank 1: recv(float32[2], src=0, tag=0, number=0)"
        ): lambda group: (
            message(torch.ones(2 if rank else 4), 1 - rank, group),
            c10d.barrier(group),
        ),
    }.items():
        group = c10d.new_group()
        text = message_of(lambda call=call, group=group: call(group), c10d.DistBackendError)  # type: ignore[misc]
        assert "CollectiveMismatch" in text
        placed = f" at tests/integration/{Path(__file__).name}:" in text
        assert placed or "broadcast" in words  # which has ended
        text = re.sub(r" at tests/\S+:\d+", "", text)
        assert words in text, (words, text)
        check_usable()
    group = c10d.new_group(timeout=SHORT)
    check_usable(group)
    if not rank:  # the other does not come
        text = message_of(lambda: check_usable(group), c10d.DistBackendError)
        assert "CollectiveTimeout" in text
        assert "rank 1 had not arrived" in text
    check_usable()


def aborted(rank: int) -> None:
    """A group that one rank has aborted: the other is told, and so is who goes on with it."""
    group = c10d.new_group()
    check_usable(group)
    if rank:
        text = message_of(lambda: c10d.recv(torch.zeros(1), 0, group), c10d.DistBackendError)
        assert "GroupAborted: rank 0 aborted the group" in text
    else:
        group.abort()
    for _ in range(2):
        assert "GroupAborted" in message_of(lambda: check_usable(group), c10d.DistBackendError)
    check_usable()
    group = c10d.new_group()
    issued = threading.Event()

    def issuing(_: Any) -> torch.Tensor:
        mine = torch.ones(1)
        if rank == 0 or not issued.is_set():  # the second one comes on rank 0 alone
            work = c10d.all_reduce(mine, group=group, async_op=True)
            issued.set()
            work.wait()
        return mine

    c10d.all_reduce(torch.ones(1), group=group, async_op=True).get_future().then(issuing).wait()
    if rank == 0:
        issued.clear()
    waits = c10d.all_reduce(torch.ones(1), group=group, async_op=True).get_future().then(issuing)
    if rank == 0:
        assert issued.wait(30)
        group.abort()
        with pytest.raises(RuntimeError, match="GroupAborted"):
            waits.wait()
    else:
        waits.wait()
    check_usable()


def one_of_several(rank: int) -> None:
    """Of several operations in one call one cannot begin: the Work fails when the others have ended."""
    group = c10d.new_group()
    first, wide = torch.full((4,), 1.0 + rank), torch.ones(1).expand(3)
    work = group.allreduce_coalesced([first, wide])
    if rank:
        c10d.recv(torch.zeros(1), 0)  # the other one waits meanwhile
    else:
        c10d.send(torch.zeros(1), 1)
    assert "overlaps itself" in message_of(work.wait, c10d.DistBackendError, ValueError)
    assert first.tolist() == [3.0] * 4
    check_usable(group)


def averages(rank: int) -> None:
    """The average of integers is the quotient of their sum, in every reduction."""
    mean = c10d.ReduceOp.AVG
    mine = torch.tensor([3 + 4 * rank, -3 - 4 * rank])
    c10d.all_reduce(mine, mean)
    assert mine.tolist() == [5, -5]
    given = torch.tensor([3 + 4 * rank, 8])
    c10d.reduce(given, 1, mean)
    assert given.tolist() == ([5, 8] if rank else [3, 8])
    part = torch.zeros(1, dtype=torch.int64)
    c10d.reduce_scatter_tensor(part, torch.tensor([2 + 4 * rank, 11 + 2 * rank]), mean)
    assert part.tolist() == [12 if rank else 4]
    c10d.reduce_scatter(part, [torch.tensor([2 + 4 * rank]), torch.tensor([11 + 2 * rank])], mean)
    assert part.tolist() == [12 if rank else 4]


def interrupted(rank: int) -> None:
    """Ctrl-C in a blocked call: it goes on without its caller, and the group is whole."""
    other = c10d.new_group()
    come = torch.zeros(1)
    if rank:
        c10d.send(come, 0, other)
        c10d.recv(come, 0, other)
        c10d.send(torch.ones(1), 0)
    else:

        def interrupt() -> None:
            c10d.recv(torch.zeros(1), 1, other)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        try:
            thread.start()
            c10d.recv(come, 1)
            raise AssertionError("not interrupted")
        except KeyboardInterrupt:
            pass
        thread.join()
        c10d.send(torch.zeros(1), 1, other)
    check_usable()


def destroyed(rank: int) -> None:
    """What is left of a group that is destroyed; and a new one."""
    world, some = c10d.group.WORLD, c10d.new_group()
    flying = [c10d.all_reduce(torch.ones(1000), async_op=True) for _ in range(50)]
    c10d.destroy_process_group()
    assert all(work.wait() for work in flying)
    for call in (
        lambda: world.allreduce([torch.ones(1)]),
        world.barrier,
        lambda: some.allreduce([torch.ones(1)]),
        lambda: c10d.all_reduce(torch.ones(1), group=some),
    ):
        assert "closed" in message_of(call, RuntimeError)
    world.shutdown()
    assert "has not been initialized" in message_of(c10d.barrier, ValueError)
    message_of(c10d.destroy_process_group, AssertionError)


PARTS = (
    *(tensors, dtypes, arguments, works, threads, children, copies),
    *(disagreements, aborted, one_of_several, averages, interrupted, destroyed),
)


# -- processes --------------------------------------------------------------------------------------


def leaves(how: str) -> None:
    """End without a word to the group."""
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model(torch.ones(1, 2)).sum().backward()
    check_usable()
    if how == "in_flight":
        for _ in range(10):
            c10d.all_reduce(torch.ones(10), async_op=True)
    elif how == "alone" and c10d.get_rank() == 0:
        c10d.all_reduce(torch.ones(10), async_op=True)
    say("held")


def meet_alone(path: str, how: str) -> None:
    """Meet, as rank 0 of two, while the other does not come."""
    store = c10d.FileStore(path, 2)

    def interrupt() -> None:
        while b"aiodist" not in Path(path).read_bytes():  # rank 0's address, with which the meeting begins
            pass
        os.kill(os.getpid(), signal.SIGINT)

    if how == "interrupted":
        threading.Thread(target=interrupt).start()
    patience = timedelta(seconds=100) if how == "interrupted" else SHORT
    try:
        c10d.init_process_group("aiodist", store=store, rank=0, world_size=2, timeout=patience)
    except KeyboardInterrupt:
        say("interrupted")
    except Exception as error:
        say(type(error).__name__, error)
    assert not c10d.is_initialized()


def main() -> None:
    """Run parts, one after the other, in one group; none but the last may destroy it."""
    part = sys.argv[1]
    if part == "meet":
        meet_alone(*sys.argv[2:])
        return
    c10d.init_process_group("aiodist")
    if part == "leaves":
        leaves(sys.argv[2])
        return
    found = {one.__name__: one for one in PARTS}
    for name in sys.argv[1:]:
        found[name](c10d.get_rank())
    if c10d.is_initialized():
        c10d.destroy_process_group()
    say("held")


if __name__ == "__main__":
    main()
