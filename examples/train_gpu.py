"""Train on GPUs, and hide the averaging of gradients behind the backward pass.

    aiodist run --nproc-per-node 2 examples/train_gpu.py                   # torch
    aiodist run --nproc-per-node 2 examples/train_gpu.py --library cupy

Each rank uses the GPU of its LOCAL_RANK; if there is one GPU, all ranks share it. As soon as a gradient is
known, its all_reduce begins on a stream of its own, while the GPU goes on with the backward pass. The
averages are awaited before the weights change. The event loop is free all the time: a task beside the
training measures its delay. At the end rank 0 trains the same batches alone and compares the weights.

The example needs an NVIDIA GPU and `pip install aiodist[cuda12,examples]`; `aiodist doctor` says what is
missing. Without scikit-learn, which has images of digits, it uses noise. CuPy's products of matrices need
cuBLAS: from the CUDA toolkit, or from a torch for GPUs.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import aiodist as dist

LAYERS = (64, 1024, 1024, 10)
RATE = 0.1

Ready = Callable[[int, Any], None]


def load() -> tuple[Any, Any]:
    """1,792 images of 8 × 8 pixels and their labels, shuffled alike on every rank."""
    rng = np.random.default_rng(0)
    try:
        from sklearn.datasets import load_digits
    except ImportError:  # noise, then, whose labels can be learned all the same
        images = rng.random((1792, 64), np.float32)
        return images, (images @ rng.standard_normal((64, 10))).argmax(axis=1)
    digits = load_digits()
    order = rng.permutation(len(digits.target))[:1792]
    return (digits.data[order] / 16).astype(np.float32), digits.target[order].astype(np.int64)


def first_weights() -> list[Any]:
    """The same on every rank."""
    rng = np.random.default_rng(0)
    weights = []
    for inputs, outputs in itertools.pairwise(LAYERS):
        weights.append((rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32))
    return weights


class Torch:
    """Layers as torch tensors; autograd says when a gradient is known."""

    def __init__(self, images: Any, labels: Any, device: int) -> None:
        import torch

        self.torch = torch
        self.device = torch.device("cuda", device)
        self.images = torch.from_numpy(images).to(self.device)
        self.labels = torch.from_numpy(labels).to(self.device)
        self.weights = [torch.from_numpy(w).to(self.device).requires_grad_() for w in first_weights()]
        self.ready: Ready = lambda index, gradient: None
        for index, weight in enumerate(self.weights):
            weight.register_post_accumulate_grad_hook(lambda w, index=index: self.ready(index, w.grad))

    def backward(self, chosen: Any, ready: Ready) -> None:
        """Tell `ready` of each gradient as soon as it is known."""
        self.ready = ready
        hidden = self.images[chosen]
        for weight in self.weights[:-1]:
            hidden = (hidden @ weight).relu()
        loss = self.torch.nn.functional.cross_entropy(hidden @ self.weights[-1], self.labels[chosen])
        with self.torch.autograd.set_multithreading_enabled(False):  # `ready` is called in this thread
            loss.backward()

    def step(self) -> None:
        """Gradient descent."""
        with self.torch.no_grad():
            for weight in self.weights:
                weight -= RATE * weight.grad
                weight.grad = None

    def values(self) -> list[Any]:
        """The weights on the host."""
        return [weight.detach().cpu().numpy() for weight in self.weights]


class Cupy:
    """The same by hand, on CuPy arrays."""

    def __init__(self, images: Any, labels: Any, device: int) -> None:
        import cupy

        self.cupy = cupy
        cupy.cuda.Device(device).use()
        self.images, self.labels = cupy.asarray(images), cupy.asarray(labels)
        self.weights = [cupy.asarray(weight) for weight in first_weights()]
        self.gradients = list(self.weights)

    def backward(self, chosen: Any, ready: Ready) -> None:
        """Tell `ready` of each gradient as soon as it is known, the last layer's first."""
        cupy = self.cupy
        layers = [self.images[chosen]]
        for weight in self.weights[:-1]:
            layers.append(cupy.maximum(layers[-1] @ weight, 0))
        scores = layers[-1] @ self.weights[-1]
        scores = cupy.exp(scores - scores.max(axis=1, keepdims=True))
        error = scores / scores.sum(axis=1, keepdims=True)
        error[cupy.arange(len(chosen)), self.labels[chosen]] -= 1
        error /= len(chosen)
        for index in reversed(range(len(self.weights))):
            self.gradients[index] = layers[index].T @ error
            ready(index, self.gradients[index])
            if index:
                error = (error @ self.weights[index].T) * (layers[index] > 0)

    def step(self) -> None:
        """Gradient descent."""
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            weight -= RATE * gradient

    def values(self) -> list[Any]:
        """The weights on the host."""
        return [self.cupy.asnumpy(weight) for weight in self.weights]


LIBRARIES = {"torch": Torch, "cupy": Cupy}


async def watch(late: list[float]) -> None:
    """The delay of the event loop, in milliseconds: a task sleeps for a millisecond, again and again."""
    while True:
        asked = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append((time.perf_counter() - asked - 0.001) * 1e3)


def batches(epochs: int, batch: int) -> list[Any]:
    """All batches of the training, the same on every rank."""
    rng = np.random.default_rng(1)
    return [part for _ in range(epochs) for part in rng.permutation(1792).reshape(-1, batch)]


async def train(library: str, epochs: int, batch: int) -> None:
    """One rank's part."""
    images, labels = load()
    late: list[float] = []
    async with await dist.init_process_group("cpu:host,cuda:nccl") as pg:
        if batch % pg.size or 1792 % batch:
            raise SystemExit(f"--batch {batch} must divide 1792, and be a multiple of {pg.size}")
        device = pg.device
        assert device is not None
        net = LIBRARIES[library](images, labels, device)
        watching = asyncio.create_task(watch(late))
        began = time.perf_counter()
        steps = batches(epochs, batch)
        for number, chosen in enumerate(steps, 1):
            works: list[Any] = []

            def ready(index: int, gradient: Any, works: list[Any] = works) -> None:
                works.append(pg.all_reduce(gradient, dist.ReduceOp.AVG, async_op=True))

            net.backward(chosen[pg.rank :: pg.size], ready)
            for work in works:
                await work
            net.step()
            if pg.rank == 0 and (number % 20 == 0 or number == len(steps)):
                rate = number / (time.perf_counter() - began)
                late.sort()
                p99 = late[int(len(late) * 0.99)] if late else 0.0
                print(
                    f"\rstep {number}/{len(steps)}  {rate:.0f} steps/s on {pg.size} ranks  "
                    f"the event loop was at most {p99:.2f} ms late (p99) ",
                    end="",
                    flush=True,
                )
        watching.cancel()
        if pg.rank == 0:
            alone = LIBRARIES[library](images, labels, device)
            for chosen in steps:
                alone.backward(chosen, lambda index, gradient: None)
                alone.step()
            worst = max(float(np.abs(a - b).max()) for a, b in zip(net.values(), alone.values(), strict=True))
            print(f"\nlargest weight difference to one process: {worst:.2e}", flush=True)
            if worst > 1e-3:
                raise SystemExit("the distributed weights differ from those of a single process")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", choices=LIBRARIES, default="torch")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256, help="over all ranks; a multiple of their number")
    options, _ = parser.parse_known_args()  # launchers add words of their own, such as --local_rank=0
    try:
        dist.run(train(options.library, options.epochs, options.batch))
    except dist.BackendUnavailable as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None


if __name__ == "__main__":
    main()
