"""Train a small network on handwritten digits, data-parallel, and check it against one process.

    aiodist run --nproc-per-node 4 examples/train_digits.py

Every rank holds the same weights and a quarter of each batch. Gradients are averaged while the backward
pass still runs: a layer's gradient is on its way as soon as it is known. At the end rank 0 trains the
same batches alone and compares: accuracy on held-out digits, and the largest difference of any weight.

    aiodist run --nproc-per-node 4 --max-restarts 10 examples/train_digits.py --elastic

With --elastic, kill any worker at any moment: the others go on with its share, and the worker that replaces
it gets their weights at the next step. The result is the same.

    mpirun -n 4 python examples/train_digits.py --backend mpi

The same under MPI, and with its collectives.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits

import aiodist as dist

Array = npt.NDArray[np.float32]
Data = tuple[Array, npt.NDArray[np.int64], Array, npt.NDArray[np.int64]]
LAYERS = (64, 96, 10)
RATE = 0.15
MOMENTUM = 0.9


def load(held_out: int = 360) -> Data:
    """1,797 images of 8 × 8 pixels, in the same random order on every rank: train and held-out sets."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int64)
    return images[held_out:], labels[held_out:], images[:held_out], labels[:held_out]


class Network:
    """Two dense layers. `backward` passes on each gradient as soon as it is known, last layer first."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.weights: list[Array] = []
        for inputs, outputs in pairwise(LAYERS):
            scale = np.sqrt(2 / inputs)
            self.weights.append((rng.standard_normal((inputs, outputs)) * scale).astype(np.float32))
            self.weights.append(np.zeros(outputs, np.float32))
        self.velocity = [np.zeros_like(weight) for weight in self.weights]

    def forward(self, images: Array) -> tuple[Array, Array]:
        """Hidden activations and class probabilities."""
        w1, b1, w2, b2 = self.weights
        hidden = np.maximum(images @ w1 + b1, 0)
        scores = hidden @ w2 + b2
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, scores / scores.sum(axis=1, keepdims=True)

    def backward(
        self, images: Array, labels: npt.NDArray[np.int64], ready: object, share: float | None = None
    ) -> float:
        """Call `ready(index, gradient)` for each weight; return the loss.

        Args:
            share: the divisor of the gradients, if it is not the number of these images.
        """
        hidden, probabilities = self.forward(images)
        rows = np.arange(len(labels))
        loss = float(-np.log(probabilities[rows, labels] + 1e-9).mean())
        error = probabilities
        error[rows, labels] -= 1
        error /= np.float32(len(labels) if share is None else share)
        assert callable(ready)
        ready(3, error.sum(axis=0))
        ready(2, hidden.T @ error)
        error = (error @ self.weights[2].T) * (hidden > 0)
        ready(1, error.sum(axis=0))
        ready(0, images.T @ error)
        return loss

    def step(self, gradients: list[Array]) -> None:
        """Gradient descent with momentum."""
        for weight, velocity, gradient in zip(self.weights, self.velocity, gradients, strict=True):
            velocity *= MOMENTUM
            velocity += gradient
            weight -= RATE * velocity

    def accuracy(self, images: Array, labels: npt.NDArray[np.int64]) -> float:
        """Share of images that are recognised."""
        return float((self.forward(images)[1].argmax(axis=1) == labels).mean())


def batches(count: int, size: int, epoch: int) -> list[npt.NDArray[np.int64]]:
    """The batches of an epoch, the same on every rank; an incomplete last batch is left out."""
    order = np.random.default_rng(1000 + epoch).permutation(count)
    return [order[start : start + size] for start in range(0, count - size + 1, size)]


def train_alone(images: Array, labels: npt.NDArray[np.int64], epochs: int, batch: int) -> Network:
    """The same training in one process, without aiodist."""
    network = Network(seed=0)
    gradients: list[Array] = [np.empty(0, np.float32)] * 4
    for epoch in range(epochs):
        for chosen in batches(len(labels), batch, epoch):
            network.backward(images[chosen], labels[chosen], gradients.__setitem__)
            network.step(gradients)
    return network


def progress(done: int, total: int, loss: float, accuracy: float, rate: float, ranks: int) -> None:
    """One line that is written over and over."""
    bar = "█" * (20 * done // total)
    print(
        f"\repoch {done:3}/{total} {bar:·<20} loss {loss:.4f} held-out {accuracy:.3f} "
        f"{rate:5.0f} steps/s, {ranks} ranks ",
        end="",
        flush=True,
    )


def report(network: Network, data: Data, epochs: int, batch: int) -> None:
    """Compare with the same training in one process."""
    images, labels, held_images, held_labels = data
    alone = train_alone(images, labels, epochs, batch)
    worst = max(float(np.abs(a - b).max()) for a, b in zip(network.weights, alone.weights, strict=True))
    accuracy, expected = (n.accuracy(held_images, held_labels) for n in (network, alone))
    print(f"\nheld-out accuracy: {accuracy:.4f}")
    print(f"largest weight difference to one process: {worst:.2e}", flush=True)
    # Sums in another order round otherwise. Over hundreds of epochs that grows, in the weights, not in what
    # the network knows.
    if abs(accuracy - expected) > 0.01 or (worst > 1e-5 and epochs <= 30):
        raise SystemExit("the distributed weights differ from those of a single process")


async def train(data: Data, epochs: int, batch: int, backend: str | None) -> None:
    """A fixed set of ranks."""
    images, labels, held_images, held_labels = data
    async with await dist.init_process_group(backend) as pg:
        if batch % pg.size:
            raise SystemExit(f"--batch {batch} cannot be shared equally by {pg.size} ranks")
        network = Network(seed=pg.rank)
        sync = await dist.GradientSync(pg, network.weights)  # now all have rank 0's weights
        began = time.perf_counter()
        for epoch in range(epochs):
            loss = np.zeros(1, np.float32)
            steps = batches(len(labels), batch, epoch)
            for chosen in steps:
                mine = chosen[pg.rank :: pg.size]
                loss += network.backward(images[mine], labels[mine], sync.ready)
                network.step(await sync.finish())
            await pg.all_reduce(loss, dist.ReduceOp.AVG)
            if pg.rank == 0:
                rate = (epoch + 1) * len(steps) / (time.perf_counter() - began)
                accuracy = network.accuracy(held_images, held_labels)
                progress(epoch + 1, epochs, loss[0] / len(steps), accuracy, rate, pg.size)
        if pg.rank == 0:
            report(network, data, epochs, batch)


async def train_elastic(data: Data, epochs: int, batch: int, backend: str | None) -> None:
    """Ranks that come and go: a step counts if all living ranks say so."""
    images, labels, held_images, held_labels = data
    async with await dist.join(backend) as pg:
        network = Network(seed=pg.rank)
        step = np.zeros(1, np.int64)  # how many count; newcomers get it with the weights
        state = [*network.velocity, step]
        sync = await dist.GradientSync(pg, network.weights, elastic=True, state=state)
        steps = len(batches(len(labels), batch, 0))
        began, first, loss = time.perf_counter(), int(step[0]), 0.0
        while step[0] < epochs * steps:
            epoch, number = divmod(int(step[0]), steps)
            chosen = batches(len(labels), batch, epoch)[number]
            rank, size = sync.pg.rank, sync.pg.size
            mine = chosen[rank::size]
            this = network.backward(images[mine], labels[mine], sync.ready, len(chosen) / size)
            averages = await sync.finish()
            if not averages:  # somebody died, or came: the step is done again by those who are there now
                continue
            network.step(averages)
            step += 1
            loss += this
            if number == steps - 1:
                if sync.pg.rank == 0:
                    rate = (step[0] - first) / (time.perf_counter() - began)
                    accuracy = network.accuracy(held_images, held_labels)
                    progress(epoch + 1, epochs, loss / steps, accuracy, rate, sync.pg.size)
                loss = 0.0
        if sync.pg.rank == 0:
            report(network, data, epochs, batch)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64, help="over all ranks; a multiple of their number")
    parser.add_argument("--elastic", action="store_true", help="go on when ranks die or come")
    parser.add_argument("--backend", help="host, mpi… (what the machine has)")
    options, _ = parser.parse_known_args()  # launchers add words of their own, such as --local_rank=0
    training = train_elastic if options.elastic else train
    try:
        dist.run(training(load(), options.epochs, options.batch, options.backend))
    except dist.BackendUnavailable as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None


if __name__ == "__main__":
    main()
