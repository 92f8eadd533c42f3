"""The costs of algorithms: the model that `select` chooses by, and all of its constants.

time = rounds · α + extra messages · μ + bytes · β + copied bytes · γ

α is a round, its first message included, μ each further message of the busiest rank, β a byte on the wire
and γ a byte that has to be copied to be sent or received. The constants are the package's, of the order
that TCP over loopback shows. They are not measured at run time: ranks would measure differently, choose
differently, and wait for each other for ever.
"""

from __future__ import annotations

from typing import NamedTuple

from aiodist.backends.schedules.chain import CHUNKS
from aiodist.backends.schedules.recursive import participants

# ── the constants, and why ───────────────────────────────────────────────────────────────────────────

ROUND_NS = 30_000.0
"""α: through two event loops, from one rank's send to the other's next step."""

MESSAGE_NS = 10_000.0
"""μ: a header, a system call and a callback, where nobody waits for them in turn."""

BYTE_NS = 0.4
"""β: 2.5 GB/s."""

COPY_NS = 0.1
"""γ: one memcpy at 10 GB/s, allocation aside."""

DOUBLING_LIMIT = 64 * 1024
"""Bytes up to which all_reduce may double recursively. It copies all it sends, on every rank and in every
round, and every rank reduces everything."""

WRAP_LIMIT = 512 * 1024
"""Bytes of buffer up to which ranges may wrap. They are copied on the event loop, at both ends: half of
this at most in one go, which holds the loop well under 200 µs also on slow memory."""

RING_CHUNK = 64 * 1024
"""Bytes a rank from which all_gather and reduce_scatter go around the ring: about where a chunk takes as
long on the wire (α/β) as a round takes anyhow. The ring has more rounds, but speaks to neighbours only; of
ranks on one host just one sends to the next host, where distant partners would all do so at once."""

SPREAD_LIMIT = 256 * 1024
"""Bytes of a rank's input up to which all_to_all sends everything at once. Beyond it n-1 streams would
share, and overflow, every receiver's link; in turn each has it to itself."""


# ── the model ────────────────────────────────────────────────────────────────────────────────────────


class Cost(NamedTuple):
    """The cost of an algorithm; each figure is a sum over rounds, of the busiest rank in the round.

    Attributes:
        rounds: how many.
        tensors: buffers' worth of bytes that are sent, or received if that is more.
        messages: messages that are sent, or received if that is more, beyond the first one of a round.
        copied: buffers' worth of bytes that are copied; a bound where it depends on the root.
    """

    rounds: int
    tensors: float
    messages: int = 0
    copied: float = 0.0

    def ns(self, nbytes: int) -> float:
        """Nanoseconds for a buffer of `nbytes`."""
        return (
            self.rounds * ROUND_NS
            + self.messages * MESSAGE_NS
            + self.tensors * nbytes * BYTE_NS
            + self.copied * nbytes * COPY_NS
        )


def levels(size: int) -> int:
    """Rounds in which what is known doubles until it is everything: ceil(log2 n)."""
    return (size - 1).bit_length()


def share(size: int) -> float:
    """The part of a buffer that is not a rank's own chunk: (n-1)/n."""
    return (size - 1) / size


def binomial(size: int) -> Cost:
    """The cost of one whole tensor a level."""
    return Cost(levels(size), float(levels(size)))


def binomial_chunks(size: int) -> Cost:
    """gather and scatter over the tree. Where the root is not 0, ranges wrap."""
    return Cost(levels(size), share(size), copied=2 * share(size))


def linear(size: int) -> Cost:
    """The cost of everything to or from one rank at once; also all_to_all at once."""
    return Cost(min(1, size - 1), share(size), messages=max(0, size - 2))


def ring(size: int) -> Cost:
    """The cost of once around; also all_to_all in turn."""
    return Cost(size - 1, share(size))


def halving(size: int) -> Cost:
    """Recursive halving or doubling over chunks, a power of two of ranks."""
    return Cost(levels(size), share(size))


def bruck(size: int) -> Cost:
    """The cost of recursive halving, for any size, with ranges that wrap."""
    return Cost(levels(size), share(size), copied=2 * share(size))


def twice(cost: Cost) -> Cost:
    """The cost of an algorithm there and back."""
    return Cost(2 * cost.rounds, 2 * cost.tensors, 2 * cost.messages, 2 * cost.copied)


def all_reduce_doubling(size: int) -> Cost:
    """The whole tensor a level, which is copied; fold and unfold take a round and a tensor each."""
    deep = participants(size).bit_length() - 1
    extra = 0 if size == 1 << deep else 2
    return Cost(deep + extra, float(deep + extra), copied=float(deep))


def all_reduce_halving(size: int) -> Cost:
    """Halving and doubling among p participants; fold and unfold take a round and a tensor each."""
    count = participants(size)
    extra = 0 if size == count else 2
    return Cost(2 * levels(count) + extra, 2 * share(count) + extra)


def chain(size: int) -> Cost:
    """The cost of a message in chunks from each to the next; the first one has to reach the end."""
    rounds = CHUNKS + size - 2 if size > 1 else 0
    return Cost(rounds, rounds / CHUNKS)


def scatter_ring(size: int) -> Cost:
    """The cost of a scatter down the tree, then once around the ring."""
    return Cost(levels(size) + size - 1, 2 * share(size))


def ring_gather(size: int) -> Cost:
    """The cost of once around the ring, then everything to the root at once."""
    return Cost(size if size > 1 else 0, 2 * share(size), messages=max(0, size - 2))


def barrier(size: int) -> Cost:
    """The cost of empty messages."""
    return Cost(levels(size), 0.0)
