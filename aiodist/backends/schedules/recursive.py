"""Recursive algorithms: partners at distance 1, 2, 4, …

Logarithmically many rounds: for small and medium messages. Those for all_gather and reduce_scatter want
a power of two of ranks (for other sizes see `bruck`).

Those for all_reduce take any size. They work on p participants, the largest power of two that is not
above the size. Of the first 2(n-p) ranks each even one folds its tensor into its right neighbour first,
and gets the result back at the end. A participant therefore stands for one rank or two neighbours, and
participants are in rank order. Every partial covers an interval of ranks, and the interval of the lower
ranks is always the left operand.

Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations
in MPICH", IJHPCA 19 (2005); R. Rabenseifner, "Optimization of Collective
Reduction Operations", ICCS 2004.
"""

from __future__ import annotations

from collections.abc import Callable

from aiodist.backends.schedules.steps import (
    Recv,
    RecvReduce,
    Rounds,
    Schedule,
    Send,
    Step,
    distances,
    schedule,
)


def participants(size: int) -> int:
    """The largest power of two that is not above `size`."""
    return 1 << (size.bit_length() - 1)


def _folded(
    name: str,
    rank: int,
    size: int,
    chunks: int,
    core: Callable[[int, Callable[[int], int]], Rounds],
    *,
    repeats: bool,
) -> Schedule:
    """Wrap `core(number, rank_of)`, which speaks of participants, into fold and unfold rounds."""
    count = participants(size)
    folded = size - count

    def rank_of(number: int) -> int:
        return 2 * number + 1 if number < folded else number + folded

    if not folded:
        return schedule(name, chunks, core(rank, rank_of), repeats)
    before: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    if rank >= 2 * folded:
        middle = core(rank - folded, rank_of)
    elif rank % 2:
        before = (RecvReduce(rank - 1, 0, chunks, left=True),)
        middle = core(rank // 2, rank_of)
        after = (Send(rank - 1, 0, chunks),)
    else:
        before = (Send(rank + 1, 0, chunks),)
        middle = [()] * len(core(rank // 2, rank_of))  # idle, but rounds are counted
        after = (Recv(rank + 1, 0, chunks),)
    return schedule(name, chunks, [before, *middle, after], repeats)


def doubling(rank: int, size: int) -> Schedule:
    """Recursive doubling: partners exchange everything they have, and both reduce.

    Buffer: the tensor, in one chunk. All ranks compute the same expression over the ranks in order,
    with the lower-ranked partial on the left, so all get the same bits.
    Rounds: log2(p), and 2 more unless n is a power of two. Bytes sent by a rank: log2(p) tensors, one
    more by a rank that folds back.
    """
    count = participants(size)

    def core(number: int, rank_of: Callable[[int], int]) -> Rounds:
        rounds: Rounds = []
        for distance in distances(count):
            partner = number ^ distance
            peer = rank_of(partner)
            rounds.append((Send(peer, 0, 1, copy=True), RecvReduce(peer, 0, 1, left=partner < number)))
        return rounds

    return _folded("recursive_doubling", rank, size, 1, core, repeats=True)


def halving(rank: int, size: int) -> Schedule:
    """Rabenseifner's algorithm: reduce-scatter by recursive halving, all-gather by recursive doubling.

    Buffer: the tensor, in p chunks. Each chunk is reduced once, over the ranks in order, and handed out.
    Rounds: 2 log2(p), and 2 more unless n is a power of two. Bytes sent by a rank: 2(p-1)/p of the
    tensor, one tensor more by a rank that folds back.
    """
    count = participants(size)

    def core(number: int, rank_of: Callable[[int], int]) -> Rounds:
        # Near partners first, or a partial would not cover an interval of ranks. The chunks that a
        # participant answers for then follow the bits of its number from the lowest one up.
        start, stop = 0, count
        reduce: Rounds = []
        gather: Rounds = []
        for distance in distances(count):
            partner = number ^ distance
            peer = rank_of(partner)
            middle = (start + stop) // 2
            keep, give = ((start, middle), (middle, stop))
            if number > partner:
                keep, give = give, keep
            reduce.append((Send(peer, *give), RecvReduce(peer, *keep, left=partner < number)))
            gather.append((Send(peer, *keep), Recv(peer, *give)))
            start, stop = keep
        return reduce + gather[::-1]

    return _folded("recursive_halving", rank, size, count, core, repeats=False)


def all_gather(rank: int, size: int) -> Schedule:
    """Recursive doubling: partners exchange all chunks that they have; powers of two only.

    Buffer: the result, in `size` chunks, with this rank's input already in chunk `rank`.
    Rounds: log2 n. Bytes sent by a rank: (n-1)/n of the result.
    """
    _check_power_of_two(size)
    rounds: Rounds = []
    for distance in distances(size):
        peer = rank ^ distance
        mine, theirs = rank & -distance, peer & -distance  # where the two aligned blocks begin
        rounds.append((Send(peer, mine, mine + distance), Recv(peer, theirs, theirs + distance)))
    return schedule("recursive_doubling", size, rounds)


def reduce_scatter(rank: int, size: int) -> Schedule:
    """Recursive halving: `reduce_scatter_rounds`; powers of two only.

    Buffer: a working copy of the whole input, in `size` chunks; the result is chunk `rank`, what the
    others hold afterwards means nothing. Each chunk is reduced once, though not in the order of ranks.
    Rounds: log2 n. Bytes sent by a rank: (n-1)/n of the input.
    """
    return schedule("recursive_halving", size, reduce_scatter_rounds(rank, size))


def reduce_scatter_rounds(rank: int, size: int) -> Rounds:
    """Rounds in which partners split the chunks that both still answer for; far partners first, so that a
    rank answers for one range of chunks that ends at its own."""
    _check_power_of_two(size)
    rounds: Rounds = []
    for distance in reversed(distances(size)):
        peer = rank ^ distance
        mine, theirs = rank & -distance, peer & -distance
        send = Send(peer, theirs, theirs + distance)
        rounds.append((send, RecvReduce(peer, mine, mine + distance, left=peer < rank)))
    return rounds


def _check_power_of_two(size: int) -> None:
    if size != participants(size):
        raise ValueError(f"{size} ranks are not a power of two")
