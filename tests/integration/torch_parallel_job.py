"""What torch builds on its groups, on aiodist and then on gloo, in the same processes: equal results.

`aiodist run --nproc-per-node N torch_parallel_job.py FOLDER CHECK …`; each rank prints "same" at the end. The
values differ by rank and element. Two ranks give the same bits; more may add up in another order.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as c10d
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

warnings.simplefilter("ignore")  # torch 2.13 warns of its own old names

Found = dict[str, Any]
"""What a check has found, by name: tensors, and what else shall be equal."""

Check = Callable[[int, int], Found]
"""A check takes the rank and the number of ranks."""

CHECKS: dict[str, Check] = {}
ALONE: dict[str, Check] = {}
EXACT: set[str] = set()
FOLDER = Path(sys.argv[1])
"""What all ranks see, and the next job."""


def check(function: Check) -> Check:
    """A check on both backends, by the name of its function; where ranks add up, by rounding."""
    CHECKS[function.__name__] = function
    return function


def exact(function: Check) -> Check:
    """A check on both backends, whose results have the same bits with any number of ranks."""
    EXACT.add(function.__name__)
    return check(function)


def alone(function: Check) -> Check:
    """A check on aiodist alone, of what gloo refuses, or of two jobs; it knows what to expect."""
    ALONE[function.__name__] = function
    return function


def values(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Whole numbers that differ by rank and element, and add up exactly."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) * 16 + rank + 1).reshape(shape).to(dtype)


def noise(rank: int, turn: int, *shape: int) -> torch.Tensor:
    """A rank's batch of a turn."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * turn + rank), dtype=torch.float64)


def network(width: int = 8, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A small model, the same on all ranks."""
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(width, 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, width),
    ).to(dtype)


def local(tensor: Any) -> torch.Tensor:
    """A tensor's own part, copied."""
    from torch.distributed.tensor import DTensor

    part = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    if isinstance(part, functional.AsyncCollectiveTensor):
        part = part.wait()
    return torch.Tensor(part.detach().clone())


def weights(model: nn.Module) -> Found:
    """All parameters of a model, whole."""
    from torch.distributed.tensor import DTensor

    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in model.named_parameters()
    }


# -- functional collectives ---------------------------------------------------------------------------


@exact
def functional_calls(rank: int, size: int) -> Found:
    """Functional collectives of one tensor."""
    group = c10d.group.WORLD
    found: Found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        mine = values(rank, 2 * size, 3 * size, dtype=dtype)
        for op in ("sum", "min", "max", "product"):
            found[f"all_reduce {op} {dtype}"] = functional.all_reduce(mine % 3 + 1, op, group)
        for axis in (0, 1):
            found[f"all_gather {axis} {dtype}"] = functional.all_gather_tensor(mine, axis, group)
            found[f"reduce_scatter {axis} {dtype}"] = functional.reduce_scatter_tensor(
                mine % 5, "sum", axis, group
            )
        found[f"broadcast {dtype}"] = functional.broadcast(mine, size - 1, group)
        found[f"all_to_all {dtype}"] = functional.all_to_all_single(mine, None, None, group)
        sends = [(rank + peer) % 3 for peer in range(size)]
        found[f"uneven {dtype}"] = functional.all_to_all_single(
            values(rank, sum(sends), 2, dtype=dtype), sends, sends, group
        )
        turned = [(peer + 1) % size for peer in range(size)]
        found[f"permute {dtype}"] = functional.permute_tensor(mine.flatten(), turned, list(range(size)))
    empty = torch.zeros(0, 4)
    found["empty"] = functional.all_gather_tensor(empty, 0, group)
    found["groups"] = functional.all_reduce(values(rank, 3), "sum", list(range(size)))
    mesh = init_device_mesh("cpu", (size,))
    found["mesh"] = functional.all_reduce(values(rank, 3), "sum", mesh)
    found["mesh and dimension"] = functional.all_reduce(values(rank, 3), "sum", (mesh, 0))
    found["transposed"] = functional.all_gather_tensor(values(rank, 4, 3).t(), 0, group)
    return found


@exact
def functional_several(rank: int, size: int) -> Found:
    """Coalesced functional collectives, and many under way at once."""
    group = c10d.group.WORLD
    several = [values(rank, size * (n + 1), 2) + n for n in range(4)]
    many = [functional.all_reduce(values(rank, n + 1), "sum", group) for n in range(50)]
    found: Found = {
        "all_reduce": functional.all_reduce_coalesced(several, "sum", group),
        "all_gather": functional.all_gather_into_tensor_coalesced(several, group),
        "reduce_scatter": functional.reduce_scatter_tensor_coalesced(several, "sum", [0] * 4, group),
    }
    kept = {f"{name} {n}": one for name, row in found.items() for n, one in enumerate(row)}
    return kept | {f"many {n}": many[n] + 1 for n in reversed(range(50))}


@exact
def functional_ops(rank: int, size: int) -> Found:
    """torch.ops._c10d_functional itself: in place, into given memory, messages."""
    ops = torch.ops._c10d_functional
    name = c10d.group.WORLD.group_name
    found: Found = {}
    mine = values(rank, 2 * size, 3)
    found["all_reduce_"] = ops.wait_tensor(ops.all_reduce_(mine.clone(), "sum", name))
    found["broadcast_"] = ops.wait_tensor(ops.broadcast_(mine.clone(), 1, name))
    for n, one in enumerate(ops.all_reduce_coalesced_([mine.clone(), mine + 1], "sum", name)):
        found[f"all_reduce_coalesced_ {n}"] = ops.wait_tensor(one)
    out = torch.zeros(2 * size * size, 3)
    ops.wait_tensor(ops.all_gather_into_tensor_out(mine, size, name, out=out))
    found["all_gather_into_tensor_out"] = out
    part = torch.zeros(2, 3)
    ops.wait_tensor(ops.reduce_scatter_tensor_out(mine, "sum", size, name, out=part))
    found["reduce_scatter_tensor_out"] = part
    return found


@exact
def functional_messages(rank: int, size: int) -> Found:
    """Functional send, receive, and batches of them."""
    group = c10d.group.WORLD
    after, before = (rank + 1) % size, (rank - 1) % size
    found: Found = {}
    come = torch.zeros(3)
    if rank % 2 == 0:
        sent = functional.isend_inplace(values(rank, 3), after, 0, group)
        found["irecv"] = functional.irecv_inplace(come, before, 0, group)
    else:
        found["irecv"] = functional.irecv_inplace(come, before, 0, group)
        sent = functional.isend_inplace(values(rank, 3), after, 0, group)
    functional.wait_tensor(sent)
    sent, come = functional.batch_p2p_ops_inplace(
        ["isend", "irecv"], [after, before], [0, 0], [values(rank, 4), torch.zeros(4)], group
    )
    found["batch"] = functional.wait_tensor(come)
    functional.wait_tensor(sent)
    return found


@exact
def calls_in_place(rank: int, size: int) -> Found:
    """Calls whose input lies within their output, or the other way round; and outputs of other shapes."""
    found: Found = {}
    whole = torch.zeros(size * 3, 2)
    whole[rank * 3 : (rank + 1) * 3] = values(rank, 3, 2)
    c10d.all_gather_into_tensor(whole, whole[rank * 3 : (rank + 1) * 3])
    found["all_gather_into_tensor"] = whole
    listed = [torch.zeros(3) for _ in range(size)]
    listed[rank] = values(rank, 3)
    c10d.all_gather(listed, listed[rank])
    found |= {f"all_gather {n}": one for n, one in enumerate(listed)}
    summed = values(rank, size * 3, 2)
    c10d.reduce_scatter_tensor(summed[rank * 3 : (rank + 1) * 3], summed)
    found["reduce_scatter_tensor"] = summed[rank * 3 : (rank + 1) * 3].clone()
    parts = [values(rank, 3) + n for n in range(size)]
    c10d.reduce_scatter(parts[rank], parts)
    found["reduce_scatter"] = parts[rank]
    parts = [values(rank, 3) + n for n in range(size)]
    c10d.scatter(parts[1], parts if rank == 1 else None, 1)
    found["scatter"] = parts[1]
    c10d.gather(listed[rank], listed if rank == 1 else None, 1)
    found |= {f"gather {n}": one for n, one in enumerate(listed)}
    return found


@exact
def functional_gradients(rank: int, size: int) -> Found:
    """Functional collectives through autograd."""
    group = c10d.group.WORLD
    found: Found = {}
    calls: dict[str, Callable[[Any], Any]] = {
        "all_gather_autograd": lambda x: functional.all_gather_tensor_autograd(x, 0, group),
        "reduce_scatter_autograd": lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, group),
        "all_to_all_autograd": lambda x: functional.all_to_all_single_autograd(x, None, None, group),
        "all_gather": lambda x: functional.all_gather_tensor(x, 0, group),
        "reduce_scatter": lambda x: functional.reduce_scatter_tensor(x, "sum", 0, group),
        "all_reduce": lambda x: functional.all_reduce(x, "sum", group),
        "all_to_all": lambda x: functional.all_to_all_single(x, None, None, group),
    }
    for name, call in calls.items():
        leaf = values(rank, 2 * size, 3).requires_grad_()
        out = call(leaf)
        (out * values(rank, *out.shape)).sum().backward()
        assert leaf.grad is not None
        found[name], found[f"gradient of {name}"] = out.detach(), leaf.grad
    return found


def _compiled(rank: int, size: int, backend: str) -> Found:
    group = c10d.group.WORLD

    def calls(x: torch.Tensor) -> list[torch.Tensor]:
        total = functional.all_reduce(x * 2, "sum", group)
        whole = functional.all_gather_tensor(total + x, 0, group)
        part = functional.reduce_scatter_tensor(whole * 3, "sum", 0, group)
        other = functional.all_to_all_single(part, None, None, group)
        told = functional.broadcast(other, 1, group)
        return [total + 1, whole + 1, part + 1, other + 1, told + 1]

    def in_place(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        c10d.all_reduce(y)
        out = torch.zeros(x.shape[0] * size, *x.shape[1:])
        c10d.all_gather_into_tensor(out, y + 1)
        return out * 2

    found: Found = {}
    mine = values(rank, size, 2)
    compiled = torch.compile(calls, backend=backend, fullgraph=True)
    for turn in range(2):
        for n, one in enumerate(compiled(mine + turn)):
            found[f"compiled {n} {turn}"] = one
    for n, one in enumerate(calls(mine + 1)):
        assert torch.equal(one, found[f"compiled {n} 1"])
    found["in place"] = torch.compile(in_place, backend=backend, fullgraph=True)(mine)
    torch._dynamo.reset()
    return found


@exact
def compiled_calls(rank: int, size: int) -> Found:
    """Collectives within torch.compile, without a compiler."""
    return _compiled(rank, size, "aot_eager")


@exact
def compiled_by_inductor(rank: int, size: int) -> Found:
    """Collectives within torch.compile, by its own compiler."""
    return _compiled(rank, size, "inductor")


# -- meshes, DTensor, tensor parallel -----------------------------------------------------------------


@exact
def meshes(rank: int, size: int) -> Found:
    """DeviceMesh of one and two dimensions, its groups and parts."""
    found: Found = {}
    line = init_device_mesh("cpu", (size,), mesh_dim_names=("all",))
    assert line.get_group() is c10d.group.WORLD or line.get_group().size() == size
    grid = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("rows", "columns"))
    found["coordinate"] = torch.tensor(grid.get_coordinate())
    for name in ("rows", "columns"):
        group = grid.get_group(name)
        total = values(rank, 5)
        c10d.all_reduce(total, group=group)
        found[f"sum over {name}"] = total
        found[f"ranks of {name}"] = torch.tensor(c10d.get_process_group_ranks(group))
        found[f"rank in {name}"] = torch.tensor(grid[name].get_local_rank())
        found[f"gathered over {name}"] = functional.all_gather_tensor(values(rank, 2), 0, grid[name])
    flat = grid["rows", "columns"]._flatten("flat")
    found["flat"] = functional.all_reduce(values(rank, 3), "sum", flat)
    pairs = c10d.new_subgroups(2)[0]
    of_group = DeviceMesh.from_group(pairs, "cpu")
    found["of a group"] = functional.all_reduce(values(rank, 3), "max", of_group)
    return found


@exact
def dtensors(rank: int, size: int) -> Found:
    """DTensor: distributed, and redistributed between all placements, on one and two dimensions."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    found: Found = {}
    line = init_device_mesh("cpu", (size,))
    for rows in (2 * size, 2 * size + 1):  # the second is dealt out unevenly
        whole = values(0, rows, 3 * size)
        for source in (Shard(0), Shard(1), Replicate()):
            one = distribute_tensor(whole, line, [source])
            found[f"{rows} {source}"] = one.to_local()
            assert torch.equal(one.full_tensor(), whole)
            for target in (Shard(0), Shard(1), Replicate()):
                moved = one.redistribute(line, [target])
                found[f"{rows} {source} to {target}"] = moved.to_local()
                assert torch.equal(moved.full_tensor(), whole)
        for op in ("sum", "avg", "max"):
            for target in (Shard(0), Shard(1), Replicate()):
                part = DTensor.from_local(values(rank, rows, 3 * size), line, [Partial(op)])
                found[f"{rows} {op} to {target}"] = part.redistribute(line, [target]).to_local()
    grid = init_device_mesh("cpu", (size // 2, 2))
    whole = values(0, 8, 8)
    for sources in ([Shard(0), Shard(1)], [Shard(1), Replicate()], [Shard(0), Shard(0)]):
        one = distribute_tensor(whole, grid, sources)
        found[f"{sources}"] = one.to_local()
        for targets in ([Shard(1), Shard(0)], [Replicate(), Replicate()], [Replicate(), Shard(1)]):
            found[f"{sources} to {targets}"] = one.redistribute(grid, targets).to_local()
    return found


@check
def dtensor_mathematics(rank: int, size: int) -> Found:
    """DTensor: products whose parts are summed, gradients, norms."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    found: Found = {}
    line = init_device_mesh("cpu", (size,))
    left, right = values(0, 4, 2 * size), values(1, 2 * size, 6)
    for places in (
        [Shard(1), Shard(0)],
        [Shard(0), Replicate()],
        [Replicate(), Shard(1)],
        [Shard(0), Shard(0)],
    ):
        one = distribute_tensor(left, line, [places[0]]).requires_grad_()
        other = distribute_tensor(right, line, [places[1]]).requires_grad_()
        product = one @ other
        assert torch.equal(product.full_tensor(), left @ right), places
        (product * product).sum().backward()
        found[f"{places}"] = product.to_local()
        found[f"gradient left {places}"] = one.grad.full_tensor()
        found[f"gradient right {places}"] = other.grad.full_tensor()
        found[f"norm {places}"] = torch.nn.utils.get_total_norm([one.grad, other.grad]).full_tensor()
    many = distribute_tensor(values(0, 4 * size, 3), line, [Shard(0)])
    for name in ("sum", "mean", "max", "std", "argmax"):
        result = getattr(many, name)()
        found[name] = result.full_tensor()
    found["softmax"] = torch.softmax(many, 0).full_tensor()
    return found


@check
def tensor_parallel(rank: int, size: int) -> Found:
    """parallelize_module by columns and rows, by sequence, and a loss in parallel."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    found: Found = {}
    line = init_device_mesh("cpu", (size,))
    batch = noise(0, 0, 6, 8)
    plain = network()
    plain(batch).square().sum().backward()
    expected = {name: parameter.grad for name, parameter in plain.named_parameters()}
    plans: dict[str, dict[str, Any]] = {
        "columns and rows": {
            "0": ColwiseParallel(),
            "2": RowwiseParallel(),
            "4": ColwiseParallel(output_layouts=Replicate()),
        },
        "input by rows": {
            "0": ColwiseParallel(input_layouts=Shard(0)),
            "2": RowwiseParallel(output_layouts=Replicate()),
        },
    }
    for name, plan in plans.items():
        model = parallelize_module(network(), line, plan)
        given = batch if name != "input by rows" else batch[rank * 6 // size : (rank + 1) * 6 // size]
        if name == "input by rows" and 6 % size:
            continue
        out = model(given)
        out.square().sum().backward()
        found[f"out {name}"] = local(out)
        for key, parameter in model.named_parameters():
            gradient = parameter.grad
            whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
            assert whole is not None and expected[key] is not None
            torch.testing.assert_close(whole, expected[key])
            found[f"gradient {key} {name}"] = whole
    torch.manual_seed(1)
    by_sequence: nn.Module = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)).double()
    plan = {
        "0": SequenceParallel(),
        "1": PrepareModuleInput(
            input_layouts=Shard(1), desired_input_layouts=Replicate(), use_local_output=True
        ),
    }
    model = parallelize_module(by_sequence, line, plan)
    found["sequence"] = local(model(noise(rank, 0, 2, 4, 8)))
    head = parallelize_module(network(), line, {"4": ColwiseParallel(use_local_output=False)})
    with loss_parallel():
        loss = torch.nn.functional.cross_entropy(head(batch), torch.arange(6))
        loss.backward()
    found["loss"] = loss.full_tensor() if hasattr(loss, "full_tensor") else loss.detach()
    return found | {f"of the loss {key}": one for key, one in _gradients(head).items()}


def _gradients(model: nn.Module) -> Found:
    from torch.distributed.tensor import DTensor

    return {
        name: (p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad).detach().clone()
        for name, p in model.named_parameters()
        if p.grad is not None
    }


# -- sharded data parallel ----------------------------------------------------------------------------


def _sharded(mesh: Any, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = network(dtype=dtype)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def _train(model: Any, rank: int, turns: int = 3, dtype: torch.dtype = torch.float64) -> Found:
    """Steps of a model → its weights and the last gradients, whole."""
    step: Any = torch.optim.AdamW(model.parameters(), 0.01)
    if dtype is not torch.float64:  # which would make much of what is rounded
        step = torch.optim.SGD(model.parameters(), 0.1)
    found: Found = {}
    for turn in range(turns):
        loss = model(noise(rank, turn, 4, 8).to(dtype)).square().mean()
        loss.backward()
        if turn == turns - 1:
            found = {f"gradient {name}": one for name, one in _gradients(model).items()}
            found["loss"] = loss.detach()
        step.step()
        step.zero_grad()
    return found | weights(model)


@check
def fully_sharded(rank: int, size: int) -> Found:
    """FSDP2 in three precisions, with other divisors, without gathering again, without summing every step."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    found: Found = {}
    line = init_device_mesh("cpu", (size,))

    def keep(name: str, more: Found) -> None:
        found.update({f"{name}: {key}": one for key, one in more.items()})

    keep("double", _train(_sharded(line), rank))
    keep("single", _train(_sharded(line, torch.float32), rank, dtype=torch.float32))
    keep("kept", _train(_sharded(line, reshard_after_forward=False), rank))
    for name, policy in {
        "bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        "bf16 sums": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),
        "fp16 sums": MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16),
    }.items():
        model = _sharded(line, torch.float32, mp_policy=policy)
        keep(name, _train(model, rank, dtype=torch.float32))
    model = _sharded(line, torch.float32)
    for part in (model, model[0], model[2]):
        part.set_gradient_divide_factor(float(size))
    keep("divided", _train(model, rank, dtype=torch.float32))
    model = _sharded(line)  # at double precision it divides before and after the sum
    for part in (model, model[0], model[2]):
        part.set_gradient_divide_factor(3.0)
    keep("divided by three", _train(model, rank))
    late = _sharded(line)
    for turn in range(3):
        late.set_requires_gradient_sync(turn == 2)
        late(noise(rank, turn, 4, 8)).square().mean().backward()
    norm: Any = nn.utils.clip_grad_norm_(late.parameters(), 0.1)
    keep("late", {"norm": norm.full_tensor(), **_gradients(late)})
    return found


@check
def hybrid_sharded(rank: int, size: int) -> Found:
    """FSDP2 on a mesh of two dimensions: replicas of shards, and shards of tensor parallel."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    grid = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("a", "b"))
    found = {f"replicas: {key}": one for key, one in _train(_sharded(grid), rank).items()}
    single = _train(_sharded(grid, torch.float32), rank, dtype=torch.float32)
    found |= {f"single: {key}": one for key, one in single.items()}
    from torch.distributed.fsdp import fully_shard

    model = parallelize_module(network(), grid["b"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    both = _train(fully_shard(model, mesh=grid["a"]), rank // 2)
    return found | {f"tensor parallel: {key}": one for key, one in both.items()}


@check
def fully_sharded_1(rank: int, size: int) -> Found:
    """FSDP1 on the host."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, StateDictType

    found: Found = {}
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        model = FullyShardedDataParallel(
            network(dtype=torch.float32),
            sharding_strategy=strategy,
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
        step = torch.optim.SGD(model.parameters(), 0.1)
        for turn in range(3):
            model(noise(rank, turn, 4, 8).float()).square().mean().backward()
            found[f"norm {strategy} {turn}"] = model.clip_grad_norm_(0.1).detach()
            step.step()
            step.zero_grad()
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            found |= {f"{strategy} {key}": one.clone() for key, one in model.state_dict().items()}
    return found


@check
def replicated(rank: int, size: int) -> Found:
    """torch.distributed._composable.replicate."""
    from torch.distributed._composable.replicate import replicate

    return _train(replicate(network()), rank)


# -- pipelines ----------------------------------------------------------------------------------------


@exact
def pipelines(rank: int, size: int) -> Found:
    """Stages of a pipeline by three schedules: losses and gradients."""
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
    )

    found: Found = {}
    whole, wanted = noise(0, 0, 8, 8), noise(0, 1, 8, 8)

    def loss_of(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (out - target).square().mean()

    def stage(number: int, of: int) -> Any:
        torch.manual_seed(20 + number)
        return PipelineStage(
            nn.Sequential(nn.Linear(8, 8), nn.Tanh()).double(), number, of, torch.device("cpu")
        )

    for name, kind in (
        ("gpipe", ScheduleGPipe),
        ("1f1b", Schedule1F1B),
        ("interleaved", ScheduleInterleaved1F1B),
    ):
        if kind is ScheduleInterleaved1F1B:
            stages = [stage(rank, 2 * size), stage(rank + size, 2 * size)]
            schedule = kind(stages, n_microbatches=2 * size, loss_fn=loss_of)
        else:
            stages = [stage(rank, size)]
            schedule = kind(stages[0], n_microbatches=4, loss_fn=loss_of)
        losses: list[torch.Tensor] = []
        args = (whole,) if rank == 0 else ()
        more = {"target": wanted, "losses": losses} if rank == size - 1 else {}
        out = schedule.step(*args, **more)
        if rank == size - 1:
            found[f"out {name}"] = out.detach()
            found[f"losses {name}"] = torch.stack(losses).detach()
        for number, one in enumerate(stages):
            found |= {f"{name} {number} {key}": value for key, value in _gradients(one.submod).items()}
    return found


# -- checkpoints --------------------------------------------------------------------------------------


def _stateful() -> tuple[Any, Any]:
    """A sharded model, one step old, and its optimiser."""
    model = _sharded(init_device_mesh("cpu", (c10d.get_world_size(),)))
    step = torch.optim.AdamW(model.parameters(), 0.01)
    model(noise(0, 0, 4, 8)).square().mean().backward()  # the same batch on all ranks, so for all sizes
    step.step()
    step.zero_grad()
    return model, step


def _whole_state(model: Any, step: Any) -> Found:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    of_model, of_step = get_state_dict(model, step, options=options)
    found: Found = {f"model {key}": value for key, value in of_model.items()}
    for name, entry in of_step.get("state", {}).items():
        found |= {f"step {name} {key}": torch.as_tensor(value) for key, value in entry.items()}
    return found


def _restored(folder: Path) -> Found:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, step = _stateful()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    of_model, of_step = get_state_dict(model, step)
    held = {"model": of_model, "step": of_step, "more": [0]}
    checkpoint.load(held, checkpoint_id=folder)
    set_state_dict(model, step, model_state_dict=held["model"], optim_state_dict=held["step"])
    assert held["more"] == [1, 2, 3]
    return _whole_state(model, step)


def _save(folder: Path) -> Found:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, step = _stateful()
    of_model, of_step = get_state_dict(model, step)
    checkpoint.save({"model": of_model, "step": of_step, "more": [1, 2, 3]}, checkpoint_id=folder)
    return _whole_state(model, step)


def _shared_folder() -> Path:
    """A new folder, which all ranks know."""
    told = [tempfile.mkdtemp(dir=FOLDER) if c10d.get_rank() == 0 else None]
    c10d.broadcast_object_list(told, 0)
    return Path(str(told[0]))


@alone
def checkpoint_kept(rank: int, size: int) -> Found:
    """Saved for a job of another size, with what that shall find."""
    found = _save(FOLDER / "kept")
    if rank == 0:
        torch.save(found, FOLDER / "expected.pt")
    return found


@alone
def checkpoint_found(rank: int, size: int) -> Found:
    """Loaded from what `checkpoint_kept` of another size has saved."""
    found = _restored(FOLDER / "kept")
    expected = torch.load(FOLDER / "expected.pt") if rank == 0 else {}
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name
    assert found or rank
    return found


@check
def checkpoints(rank: int, size: int) -> Found:
    """Saved at once and in the background, loaded, and given whole from rank 0."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        get_state_dict,
        set_model_state_dict,
    )

    folder = _shared_folder()
    found = _save(folder / "now")
    for name, tensor in _restored(folder / "now").items():
        assert torch.equal(tensor, found[name]), name
    model, step = _stateful()
    of_model, of_step = get_state_dict(model, step)
    saving: Any = checkpoint.async_save(
        {"model": of_model, "step": of_step, "more": [1, 2, 3]}, checkpoint_id=folder / "later"
    )
    saving.result()
    for name, tensor in _restored(folder / "later").items():
        assert torch.equal(tensor, found[name]), name
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert bool(whole) == (rank == 0) or size == 1
    whole = {key: value + 1 for key, value in whole.items()}
    set_model_state_dict(model, whole, options=options)
    return found | {f"from rank 0 {key}": value for key, value in weights(model).items()}


@check
def checkpoint_by_process(rank: int, size: int) -> Found:
    """Saved in the background by a process of its own."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    folder = _shared_folder()
    model, step = _stateful()
    of_model, of_step = get_state_dict(model, step)
    saving: Any = checkpoint.async_save(
        {"model": of_model, "step": of_step, "more": [1, 2, 3]},
        checkpoint_id=folder,
        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
    )
    saving.result()
    return _restored(folder)


# -- optimisers in parts, DDP and its hooks -----------------------------------------------------------


def _ddp(**options: Any) -> Any:
    return nn.parallel.DistributedDataParallel(network(), bucket_cap_mb=0.01, **options)


@check
def sharded_optimisers(rank: int, size: int) -> Found:
    """ZeroRedundancyOptimizer, plain and by buckets, and its state on rank 0."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    found: Found = {}
    for buckets in (False, True):
        ddp = _ddp()
        step = ZeroRedundancyOptimizer(
            ddp.parameters(), torch.optim.AdamW, parameters_as_bucket_view=buckets, lr=0.01
        )
        for turn in range(3):
            ddp(noise(rank, turn, 4, 8)).square().mean().backward()
            step.step()
            step.zero_grad()
        found |= {f"{buckets} {key}": value for key, value in weights(ddp).items()}
        step.consolidate_state_dict(to=0)
        if rank == 0:
            for number, entry in step.state_dict()["state"].items():
                found |= {
                    f"{buckets} state {number} {key}": torch.as_tensor(one) for key, one in entry.items()
                }
    return found


@check
def uneven_inputs(rank: int, size: int) -> Found:
    """DDP's join: ranks with more and fewer batches, also with a sharded optimiser."""
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ddp = _ddp()
    step: Any = torch.optim.SGD(ddp.parameters(), 0.1)
    with ddp.join():
        for turn in range(2 + rank):
            ddp(noise(rank, turn, 4, 8)).square().mean().backward()
            step.step()
            step.zero_grad()
    found = {f"join {key}": value for key, value in weights(ddp).items()}
    ddp = _ddp()
    step = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam, lr=0.01)
    with Join([ddp, step]):
        for turn in range(2 + size - rank):
            ddp(noise(rank, turn, 4, 8)).square().mean().backward()
            step.step()
            step.zero_grad()
    found |= {f"both {key}": value for key, value in weights(ddp).items()}
    return found


class _Branches(nn.Module):  # type: ignore[misc]
    """A model that leaves some layers out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)]).double()

    def forward(self, x: torch.Tensor, number: int, twice: bool = False) -> torch.Tensor:
        x = self.layers[number](x)
        if twice:
            x = torch.utils.checkpoint.checkpoint(self.layers[number], x, use_reentrant=False)
        return x


@check
def ddp_options(rank: int, size: int) -> Found:
    """DDP with unused parameters, a graph that stays, gathered gradients, buffers, views, a mesh."""
    found: Found = {}

    def keep(name: str, model: Any) -> None:
        found.update({f"{name}: {key}": value for key, value in weights(model).items()})
        found.update({f"{name}: gradient {key}": value for key, value in _gradients(model).items()})

    data_parallel = nn.parallel.DistributedDataParallel
    ddp = data_parallel(_Branches(), find_unused_parameters=True, bucket_cap_mb=0.001)
    for turn in range(3):
        ddp(noise(rank, turn, 4, 8), (turn + rank) % 4).square().mean().backward()
    keep("unused", ddp)
    ddp = data_parallel(_Branches(), static_graph=True, bucket_cap_mb=0.001)
    for turn in range(3):
        ddp(noise(rank, turn, 4, 8), 1, True).square().mean().backward()
    keep("static", ddp)
    ddp = _ddp()
    for turn in range(4):
        if turn % 2:
            ddp(noise(rank, turn, 4, 8)).square().mean().backward()
        else:
            with ddp.no_sync():
                ddp(noise(rank, turn, 4, 8)).square().mean().backward()
    keep("no_sync", ddp)
    ddp = _ddp(gradient_as_bucket_view=True)
    found |= {f"views: {key}": value for key, value in _train(ddp, rank).items()}
    torch.manual_seed(9)
    normed = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).double()
    ddp = data_parallel(normed)  # which sends its buffers to all
    for turn in range(3):
        ddp(noise(rank, turn, 4, 8)).square().mean().backward()
    keep("buffers", ddp)
    found["running mean"] = normed[1].running_mean
    ddp = nn.parallel.DistributedDataParallel(network(), device_mesh=init_device_mesh("cpu", (size,)))
    found |= {f"mesh: {key}": value for key, value in _train(ddp, rank).items()}
    return found


def _hooked(rank: int, register: Callable[[Any], Any], turns: int = 4, megabytes: float = 0.005) -> Found:
    """Steps of DDP under a hook, at single precision."""
    ddp = nn.parallel.DistributedDataParallel(network(dtype=torch.float32), bucket_cap_mb=megabytes)
    register(ddp)
    torch.manual_seed(30)
    return _train(ddp, rank, turns, torch.float32)


@check
def hooks(rank: int, size: int) -> Found:
    """DDP's hooks: compression to 16 bits, sums by hand, nothing at all, optimisers within."""
    from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
        PostLocalSGDState,
        post_localSGD_hook,
    )

    world = c10d.group.WORLD
    found: Found = {}
    several: dict[str, Callable[[Any], Any]] = {
        "allreduce": lambda ddp: ddp.register_comm_hook(world, default_hooks.allreduce_hook),
        "fp16": lambda ddp: ddp.register_comm_hook(world, default_hooks.fp16_compress_hook),
        "fp16 of allreduce": lambda ddp: ddp.register_comm_hook(
            world, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
        ),
        "none": lambda ddp: ddp.register_comm_hook(None, debugging_hooks.noop_hook),
    }
    if c10d.is_nccl_available():  # see `refused`
        several["bf16"] = lambda ddp: ddp.register_comm_hook(world, default_hooks.bf16_compress_hook)
    for name, register in several.items():
        found |= {f"{name}: {key}": value for key, value in _hooked(rank, register).items()}
    pairs, _ = c10d.new_subgroups(2)
    local_steps = PostLocalSGDState(process_group=None, subgroup=pairs, start_localSGD_iter=2)
    more = _hooked(rank, lambda ddp: ddp.register_comm_hook(local_steps, post_localSGD_hook))
    found |= {f"local: {key}": value for key, value in more.items()}
    return found


@check
def power_hooks(rank: int, size: int) -> Found:
    """PowerSGD, which waits within callbacks for further sums; of one bucket, since gloo dies of more."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    found: Found = {}
    for first in (False, True):
        state = PowerSGDState(
            None,
            matrix_approximation_rank=2,
            start_powerSGD_iter=2,
            warm_start=first,
            use_error_feedback=first,
        )

        def register(ddp: Any, state: Any = state) -> None:
            ddp.register_comm_hook(state, powerSGD_hook)

        more = _hooked(rank, register, 6, 25)
        found |= {f"{first}: {key}": value for key, value in more.items()}
    return found


@check
def averaged_models(rank: int, size: int) -> Found:
    """Models averaged every few steps, among all and by levels."""
    from collections import OrderedDict

    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
        HierarchicalModelAverager,
    )
    from torch.distributed.optim import PostLocalSGDOptimizer

    found: Found = {}
    levels = HierarchicalModelAverager(
        period_group_size_dict=OrderedDict([(2, 2), (4, size)]), warmup_steps=0
    )
    for name, averager in (("all", PeriodicModelAverager(2, warmup_steps=1)), ("levels", levels)):
        model = network()
        step = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.1), averager)
        for turn in range(6):
            model(noise(rank, turn, 4, 8)).square().mean().backward()
            step.step()
            step.zero_grad()
        found |= {f"{name}: {key}": value for key, value in weights(model).items()}
    return found


# -- objects, autograd of calls, batches --------------------------------------------------------------


@exact
def objects(rank: int, size: int) -> Found:
    """All calls of objects."""
    found: Found = {}
    mine = {"rank": rank, "more": "x" * (1000 * rank), "tensor": [1.5 * rank]}
    every: list[Any] = [None] * size
    c10d.all_gather_object(every, mine)
    found["all_gather"] = every
    to_one: list[Any] | None = [None] * size if rank == 1 else None
    c10d.gather_object(mine, to_one, 1)
    found["gather"] = to_one
    told: list[Any] = [mine, rank, None]
    c10d.broadcast_object_list(told, size - 1)
    found["broadcast"] = told
    out: list[Any] = [None]
    c10d.scatter_object_list(out, [{"to": peer} for peer in range(size)] if rank == 1 else None, 1)
    found["scatter"] = out
    if rank == 0:
        c10d.send_object_list([mine, "sent"], 1)
    elif rank == 1:
        come: list[Any] = [None, None]
        c10d.recv_object_list(come, 0)
        found["recv"] = come
    return found


@exact
def gradients_of_calls(rank: int, size: int) -> Found:
    """torch.distributed.nn.functional."""
    from torch.distributed.nn import functional as calls

    found: Found = {}

    def keep(name: str, leaf: torch.Tensor, outs: Any) -> None:
        outs = [outs] if isinstance(outs, torch.Tensor) else [out for out in outs if out is not None]
        sum((out * values(rank, *out.shape)).sum() for out in outs).backward()
        found[f"gradient of {name}"] = leaf.grad
        found.update({f"{name} {n}": out.detach() for n, out in enumerate(outs)})

    def leaf() -> torch.Tensor:
        return values(rank, 2 * size, 3).requires_grad_()

    def parts(x: torch.Tensor) -> list[torch.Tensor]:
        return list(x.chunk(size))

    sum_of = c10d.ReduceOp.SUM
    group = c10d.group.WORLD  # their own default is the group of when they were imported
    keep("all_reduce", x := leaf(), calls.all_reduce(x * 1, sum_of, group))
    keep("broadcast", x := leaf(), calls.broadcast(x * 1, 0, group))
    keep("reduce", x := leaf(), calls.reduce(x * 1, 0, sum_of, group))
    if rank:
        del found["reduce 0"]  # gloo leaves there what it likes
    keep("gather", x := leaf(), calls.gather(x, 1, group))
    keep("scatter", x := leaf(), calls.scatter([part.contiguous() for part in parts(x)], 1, group))
    keep("all_gather", x := leaf(), calls.all_gather(x, group))
    outs = [torch.zeros(2, 3) for _ in range(size)]
    keep("all_to_all", x := leaf(), calls.all_to_all(outs, parts(x), group))
    keep(
        "all_to_all_single",
        x := leaf(),
        calls.all_to_all_single(torch.zeros(2 * size, 3), x, None, None, group),
    )
    return found


@exact
def gradients_of_scattered_sums(rank: int, size: int) -> Found:
    """torch.distributed.nn.functional.reduce_scatter."""
    from torch.distributed.nn import functional as calls

    leaf = values(rank, 2 * size, 3).requires_grad_()
    out = calls.reduce_scatter(
        torch.zeros(2, 3),
        [part.contiguous() for part in leaf.chunk(size)],
        c10d.ReduceOp.SUM,
        c10d.group.WORLD,
    )
    (out * values(rank, 2, 3)).sum().backward()
    return {"out": out.detach(), "gradient": leaf.grad}


@exact
def batches_of_messages(rank: int, size: int) -> Found:
    """batch_isend_irecv: several to and from every rank, of several dtypes, in a group of its own too."""
    found: Found = {}
    for name, group in (("world", None), ("other", c10d.new_group())):
        comes = {
            (peer, n): torch.zeros(3 + n, dtype=torch.float64 if n else torch.int32)
            for peer in range(size)
            if peer != rank
            for n in range(2)
        }
        ops = [c10d.P2POp(c10d.irecv, come, peer, group, tag=n) for (peer, n), come in comes.items()]
        for peer, n in comes:
            mine = (values(rank, 3 + n) + 100 * peer).to(comes[peer, n].dtype)
            ops.append(c10d.P2POp(c10d.isend, mine, peer, group, tag=n))
        for work in c10d.batch_isend_irecv(ops):
            work.wait()
        found |= {f"{name} {peer} {n}": come for (peer, n), come in comes.items()}
    return found


# -- what gloo refuses, and what torch refuses on the host ---------------------------------------------


@alone
def other_shapes(rank: int, size: int) -> Found:
    """Gathers and sums whose outputs have only the size that is needed, as batch norms over ranks ask for."""
    flat = torch.zeros(1, size * 6)
    c10d.all_gather_into_tensor(flat, values(rank, 3, 2))
    assert torch.equal(flat[0], torch.cat([values(peer, 6) for peer in range(size)]))
    part = torch.zeros(1, 6)
    c10d.reduce_scatter_tensor(part, values(rank, size * 3, 2))
    total = sum(values(peer, size, 6) for peer in range(size))
    assert isinstance(total, torch.Tensor) and torch.equal(part[0], total[rank])
    return {}


@alone
def other_divisors(rank: int, size: int) -> Found:
    """FSDP2 that divides within the sum, by a number of its own."""
    line = init_device_mesh("cpu", (size,))
    gradients = []
    for divisor in (None, 3.0):
        model = _sharded(line, torch.float32)
        if divisor:
            for part in (model, model[0], model[2]):
                part.set_gradient_divide_factor(divisor)
        model(noise(rank, 0, 4, 8).float()).square().mean().backward()
        gradients.append(_gradients(model))
    for name, mean in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], mean * size / 3)
    return {}


@exact
def refused(rank: int, size: int) -> Found:
    """What torch takes on no group on the host: it says the same on both."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    def normed() -> object:
        return nn.parallel.DistributedDataParallel(nn.SyncBatchNorm(4))(torch.ones(2, 4))

    calls: dict[str, Callable[[], object]] = {"batch norm": normed}
    if not c10d.is_nccl_available():  # a build for CUDA takes this hook on any group
        calls["bf16"] = lambda: _ddp().register_comm_hook(None, bf16_compress_hook)
    found: Found = {}
    for name, call in calls.items():
        try:
            call()
        except (ValueError, TypeError) as error:
            found[name] = str(error)
    assert len(found) == len(calls)
    return found


# -- the run ------------------------------------------------------------------------------------------


def _compare(name: str, ours: Any, theirs: Any, same_bits: bool) -> None:
    """Compare one value that a check has found on both backends."""
    if not isinstance(ours, torch.Tensor):
        assert ours == theirs, (name, ours, theirs)
        return
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, (name, ours, theirs)
    if same_bits:
        assert torch.equal(ours, theirs), (name, ours, theirs)
    short = {"rtol": 0.02, "atol": 0.002} if "16" in name else {}  # sums of 16 bits
    torch.testing.assert_close(ours, theirs, **short, msg=lambda text: f"{name}: {text}")


def _run(backend: str, names: list[str], store: Any, rank: int, size: int) -> dict[str, Found]:
    """Run checks in a world of its own."""
    limit = timedelta(seconds=60)
    place = c10d.PrefixStore(backend, store)
    c10d.init_process_group(backend, timeout=limit, store=place, rank=rank, world_size=size)
    assert c10d.get_backend() == backend
    found: dict[str, Found] = {}
    for name in names:
        results = {**CHECKS, **ALONE}[name](rank, size)
        found[name] = {
            key: local(value) if isinstance(value, torch.Tensor) else value for key, value in results.items()
        }
        c10d.barrier()
    c10d.destroy_process_group()
    return found


def main() -> None:
    """Run the checks that are named, on aiodist and on gloo."""
    names = sys.argv[2:] or [*CHECKS, *ALONE]
    both = [name for name in names if name in CHECKS]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    store = c10d.TCPStore(os.environ["MASTER_ADDR"], port, size, rank == 0)  # one for all worlds
    ours = _run("aiodist", names, store, rank, size)
    theirs = _run("gloo", both, store, rank, size) if both else {}
    for name in both:
        assert ours[name].keys() == theirs[name].keys(), name
        for key, value in ours[name].items():
            _compare(f"{name}: {key}", value, theirs[name][key], size == 2 or name in EXACT)
    print("same", flush=True)


if __name__ == "__main__":
    main()
