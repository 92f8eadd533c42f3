"""The parts of a collective algorithm: rounds of Send, Recv and RecvReduce.

A schedule is one rank's part of an operation, as data. It knows chunk indices and peers; it knows
nothing of bytes, dtypes, sockets or time. An executor carries it out over channels; the prover carries
it out over symbols, so that what is proved and what runs is the same object.

Rules of a schedule (the prover checks each of them):

1. The steps of a round run concurrently. A rank enters a round when its previous round is done.
2. Both ends of a message name it by the same round, and a pair of ranks has at most one message in
   each direction in a round. So (source, destination, round) names a message.
3. Both ends name the same chunks.
4. No two steps of a round write the same chunk.
5. A round does not send a chunk that it writes, unless the Send says `copy`.
6. Sends stand before receives in a round, so that an executor which takes them in order has made
   every copy before anything is written.
7. A step covers chunks `start` to `stop`, with start < chunks and stop - start ≤ chunks. Where `stop`
   exceeds the number of chunks the range *wraps*: it goes on at chunk 0, and on the wire its bytes
   stand in this order (see `spans`). An executor has to copy such a range to send it in one message,
   and to receive it; so algorithms for large messages do not wrap.

Chunks may have any sizes, zero too, as long as all ranks agree on them.

Where a schedule has `two_buffers`, a Send reads the input and a Recv writes the output, and the input
never changes. Chunk j of the input goes to rank j; chunk i of the output comes from rank i. Ranks need
not agree on the sizes then, only each pair on what passes between the two: chunk j of rank i's input is
as large as chunk i of rank j's output. Rule 3 is replaced by that, rule 5 has no object, and nothing is
reduced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Send:
    """A step that sends chunks `start` to `stop` (which may wrap) of the buffer to `peer` (a group rank).

    `copy`: the same round also writes these chunks. The executor sends what they hold when the round
    begins: it takes a private copy before it posts any receive of the round, unless the transport
    reports at once that it no longer needs the buffer. Only algorithms for small messages ask for it.
    """

    peer: int
    start: int
    stop: int
    copy: bool = False


@dataclass(frozen=True, slots=True)
class Recv:
    """A step that receives chunks `start` to `stop` (which may wrap) from `peer`, overwriting the buffer."""

    peer: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class RecvReduce:
    """A step that receives chunks `start` to `stop` (which may wrap) from `peer` and combines them with what
    the buffer holds.

    `left`: whether the received partial is the left operand. It matters for the bits: the two zeros
    under MIN, the payload of a NaN.
    """

    peer: int
    start: int
    stop: int
    left: bool


Step = Send | Recv | RecvReduce
Rounds = list[tuple[Step, ...]]


@dataclass(frozen=True, slots=True)
class Schedule:
    """One rank's part of an operation.

    Args:
        name: the algorithm, for logs and benchmarks.
        chunks: into how many chunks the operation's buffer is divided (see `chunk_bounds`).
        rounds: the steps of each round.
        writes: whether any step writes the buffer. A rank whose tensor must survive (reduce, on ranks
            other than the root) needs a working copy only if this is true.
        repeats: whether several ranks compute the same reduction, each for itself, instead of one that
            hands it out. The bits then agree only if the arithmetic does (see `kernels.finish`).
        two_buffers: whether sends read an input and receives write an output (all_to_all).
    """

    name: str
    chunks: int
    rounds: tuple[tuple[Step, ...], ...]
    writes: bool
    repeats: bool = False
    two_buffers: bool = False


def schedule(
    name: str, chunks: int, rounds: Rounds, repeats: bool = False, *, two_buffers: bool = False
) -> Schedule:
    """Make a `Schedule`; `writes` follows from the steps. Rounds are kept also where they are empty,
    since their index names messages."""
    writes = any(not isinstance(step, Send) and step.stop > step.start for steps in rounds for step in steps)
    return Schedule(name, chunks, tuple(rounds), writes, repeats, two_buffers)


def distances(size: int) -> list[int]:
    """1, 2, 4, … below `size`: how far apart the partners of each round are where what is known doubles."""
    return [1 << i for i in range((size - 1).bit_length())]


def spans(start: int, stop: int, chunks: int) -> tuple[tuple[int, int], ...]:
    """A step's range as one plain (start, stop), or as two where it wraps, in the order of the wire."""
    return ((start, stop),) if stop <= chunks else ((start, chunks), (0, stop - chunks))


def from_root(rounds: Iterable[tuple[Step, ...]], root: int, size: int, *, chunks: bool) -> Rounds:
    """Rounds that were made for root 0, for another root: every rank is counted from the root on.

    Args:
        rounds: of rank (rank - root) mod size, with root 0.
        root: group rank.
        size: of the group.
        chunks: whether chunks belong to ranks and are renumbered with them. A range may then wrap.
    """

    def moved(step: Step) -> Step:
        peer = (step.peer + root) % size
        if not chunks:
            return replace(step, peer=peer)
        start = (step.start + root) % size
        return replace(step, peer=peer, start=start, stop=start + step.stop - step.start)

    return [tuple(moved(step) for step in steps) for steps in rounds]


def chunk_bounds(count: int, chunks: int) -> list[int]:
    """The start of each chunk, in elements, and the end of the last one.

    Args:
        count: elements of the buffer; may be fewer than `chunks`, then some chunks are empty.
        chunks: how many chunks, at least one.

    Returns:
        `chunks + 1` numbers. Chunk sizes differ by at most one, the larger ones come first, and they
        are equal where `chunks` divides `count`.
    """
    base, extra = divmod(count, chunks)
    return [base * i + min(i, extra) for i in range(chunks + 1)]
