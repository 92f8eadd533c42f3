"""A model's arrays, and the memory in which their gradients and values travel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.backends.arrays import renewal, view
from aiodist.backends.arrays.kernels import copy_cost_ns, copy_into
from aiodist.base.errors import GroupBroken, UsageError
from aiodist.base.types import FLOATS
from aiodist.ddp.sharded.partition import Partition, buckets_of, shards_of
from aiodist.ddp.sharded.shares import Shares
from aiodist.group import ProcessGroup

Array = npt.NDArray[Any]


class Model:
    """The arrays of a model, of which some are trained. Trained ones are numbered in order: their places.

    Args:
        given: all arrays, as the program has them.
        whole: arrays belong to ranks as a whole.
        redundancy: ranks with a copy of each share.
        cap_nbytes: of a bucket.

    Attributes:
        given: the arrays; new ones in place of what cannot be written.
        trained: the indices of those that are trained.
        place: of a trained array, by its index.
        forms: dtype and shape, by place.
        buckets: in which the trained arrays travel.
        partition: into the group's shards.
        memory: of each bucket.
        slices: of the memory, by place.
        bucket_of: number of the bucket, by place.

    Raises:
        UsageError: an array cannot be averaged.
    """

    def __init__(self, given: list[Any], whole: bool, redundancy: int, cap_nbytes: int) -> None:
        self.given, self.whole, self._redundancy = given, whole, redundancy
        self.trained = [i for i, one in enumerate(given) if getattr(one, "requires_grad", True)]
        if not self.trained:
            raise UsageError("there is no parameter to train", hint="Pass parameters with requires_grad")
        self.place = {index: place for place, index in enumerate(self.trained)}
        self._renewals = [renewal(given[index]) for index in self.trained]
        self.forms = [(one.dtype, one.shape) for one in self.views()]
        self.counts = [math.prod(shape) for _, shape in self.forms]
        sizes = [(dtype, count) for (dtype, _), count in zip(self.forms, self.counts, strict=True)]
        self.buckets = buckets_of(sizes, cap_nbytes, whole)
        self.bucket_of = {slot.index: n for n, bucket in enumerate(self.buckets) for slot in bucket.slots}
        self.partition = Partition(self.buckets, 1, whole)
        self.memory: list[Array] = []
        self.slices: dict[int, Array] = {}

    def views(self) -> list[Array]:
        """The values of the trained arrays."""
        views = []
        for index, renew in zip(self.trained, self._renewals, strict=True):
            one = view(self.given[index], writable=renew is None, what=f"parameters[{index}]")
            if one.dtype not in FLOATS:
                raise UsageError(f"parameters[{index}] is {one.dtype.name}: pass real floating arrays")
            views.append(one)
        return views

    def written(self) -> list[tuple[str, Array]]:
        """The trained arrays that are written in place: their names, for errors, and their values."""
        named = zip(self.trained, self.views(), self._renewals, strict=True)
        return [(f"parameters[{index}]", one) for index, one, renew in named if renew is None]

    def begin(self, pg: ProcessGroup) -> None:
        """Make buckets in a group's memory."""
        self.partition = Partition(self.buckets, pg.size, self.whole)
        self.memory = [
            pg.empty(sum(lengths), bucket.dtype)
            for lengths, bucket in zip(self.partition.lengths, self.buckets, strict=True)
        ]
        for memory, bucket in zip(self.memory, self.buckets, strict=True):
            memory[bucket.count :] = 0
            for slot in bucket.slots:
                self.slices[slot.index] = memory[slot.start : slot.stop].reshape(self.forms[slot.index][1])

    def held_by(self, rank: int, size: int) -> list[int]:
        """The shards that a rank holds."""
        return shards_of(rank, size, self._redundancy)

    def shares(self, rank: int, allocate: Callable[[int, np.dtype[Any]], Array]) -> Shares:
        """Memory for a rank's shares."""
        mine = self.held_by(rank, self.partition.size)
        dtypes = [bucket.dtype for bucket in self.buckets]
        return Shares(self.partition, mine, self.forms, dtypes, self.whole, allocate)

    def sizes(self, bucket: int) -> Sequence[int] | None:
        """Elements of each rank's run of a bucket, where they differ."""
        return self.partition.lengths[bucket] if self.whole else None

    async def gather(self, pg: ProcessGroup, shares: Shares) -> None:
        """Give all ranks the values of all shares, in the buckets."""
        works = [
            pg.all_gather(shares.values[0][bucket], memory, self.sizes(bucket), async_op=True)
            for bucket, memory in enumerate(self.memory)
        ]
        for work in works:
            await work

    async def write(self, pg: ProcessGroup) -> None:
        """Write the buckets' values into the arrays."""
        views = self.views()

        def write() -> None:
            for place, renew in enumerate(self._renewals):
                if renew is None:
                    copy_into(views[place], self.slices[place])

        await apart(pg, copy_cost_ns(sum(memory.nbytes for memory in self.memory)), write)
        for place, renew in enumerate(self._renewals):
            if renew is not None:
                self.given[self.trained[place]] = renew(np.array(self.slices[place]))

    def refresh(self, shares: Shares) -> None:
        """Read the pieces' values from the arrays, which the program may have changed."""
        views = self.views()
        for one in shares.pieces:
            copy_into(one.values, flat(views[one.index])[one.start : one.stop].reshape(one.values.shape))


async def apart(pg: ProcessGroup, cost_ns: float, job: Callable[[], None]) -> None:
    """Do a job where it does not hold the loop. What it raises is raised here; the group goes on."""
    ended: list[Exception | None] = []

    def guarded() -> None:
        try:
            job()
            ended.append(None)
        except Exception as error:  # of a user's function
            ended.append(error)

    try:
        await pg._core.apart(cost_ns, guarded)
    except GroupBroken:
        if not ended:
            raise  # else the next operation raises it: what was done is done
    if ended[0] is not None:
        raise ended[0]


def flat(array: Array) -> Array:
    """The elements in a row; a copy where they do not lie so."""
    return np.ascontiguousarray(array).reshape(-1)
