"""The table of operations, and of what each argument of them holds.

Every operation moves *parts* between the members of a group. A rank that gives has either one part, which
goes to every rank that gets, or a part for each member. A rank that gets is given one part, by the root or
reduced over all, or a part by each member.

    ONE  ─▶ ONE    all_reduce, reduce, broadcast
    ONE  ─▶ EACH   all_gather, gather
    EACH ─▶ ONE    scatter, reduce_scatter
    EACH ─▶ EACH   all_to_all
    ONE  ─▶        send
         ─▶ ONE    recv

Checks of arguments, buffers and staging, composed exchanges, postconditions, error texts and conformance
programs follow from a line of this table. What differs for one operation alone, an algorithm or a call of a
library, is one function where it is needed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import lru_cache

OBJECT_TAGS = 2**31
"""The first tag of messages that are objects: apart from those of tensors."""

OBJECT_KINDS = 16
"""What is added to a collective's number where its frames are prepared: those of a collective of objects."""


class Kind(enum.IntEnum):
    """The operations that a backend carries out. Numbers are part of the protocol: append, never renumber."""

    all_reduce = 1
    broadcast = 2
    reduce = 3
    all_gather = 4
    reduce_scatter = 5
    barrier = 6
    send = 7
    recv = 8
    new_group = 9
    gather = 10
    scatter = 11
    all_to_all = 12


class Parts(enum.Enum):
    """The content of an argument."""

    NONE = "nothing"
    ONE = "one part"
    EACH = "a part for each member"


class Uneven(enum.Enum):
    """The ways in which the parts of an operation may differ in size."""

    NEVER = "all parts are alike"
    AGREED = "all members know the size of every part"
    PAIRS = "each pair of members has a size of its own, which only those two know"


@dataclass(frozen=True, slots=True)
class Roles:
    """The contents of one operation's arguments.

    Args:
        source: what a rank that gives has.
        target: what a rank that gets has room for.
        root_gives: only the root gives; else every rank.
        root_gets: only the root gets; else every rank.
        reduces: the target is the reduction of all sources, in the order of ranks.
        uneven: whether parts may differ in size.
        message: one rank sends and one receives; all others are collective.
    """

    source: Parts
    target: Parts
    root_gives: bool = False
    root_gets: bool = False
    reduces: bool = False
    uneven: Uneven = Uneven.NEVER
    message: bool = False

    @property
    def rooted(self) -> bool:
        """Whether there is a root."""
        return self.root_gives or self.root_gets

    @property
    def root_name(self) -> str:
        """The callers' name of the root: 'src' or 'dst'; '' without one."""
        return "src" if self.root_gives else "dst" if self.root_gets else ""

    @property
    def cut(self) -> bool:
        """Whether a tensor of it is cut into a part for each member."""
        return self.source is Parts.EACH or self.target is Parts.EACH

    @property
    def agrees_on_part(self) -> bool:
        """Whether members agree on the shape of one part; else on that of the whole tensor."""
        return self.cut and not self.reduces and self.source is not self.target

    @property
    def one_tensor(self) -> bool:
        """Whether a rank passes one tensor, read on the root and written elsewhere (broadcast)."""
        return self.root_gives and self.source is self.target

    def gives(self, rank: int, root: int) -> bool:
        """Whether a member gives something."""
        return self.source is not Parts.NONE and (not self.root_gives or rank == root)

    def gets(self, rank: int, root: int) -> bool:
        """Whether a member is given something. The root of a broadcast has it already."""
        if self.target is Parts.NONE or (self.root_gets and rank != root):
            return False
        return not (self.one_tensor and rank == root)


ROLES: dict[Kind, Roles] = {
    Kind.all_reduce: Roles(Parts.ONE, Parts.ONE, reduces=True),
    Kind.broadcast: Roles(Parts.ONE, Parts.ONE, root_gives=True),
    Kind.reduce: Roles(Parts.ONE, Parts.ONE, root_gets=True, reduces=True),
    Kind.all_gather: Roles(Parts.ONE, Parts.EACH, uneven=Uneven.AGREED),
    Kind.reduce_scatter: Roles(Parts.EACH, Parts.ONE, reduces=True, uneven=Uneven.AGREED),
    Kind.barrier: Roles(Parts.NONE, Parts.NONE),
    Kind.send: Roles(Parts.ONE, Parts.NONE, message=True),
    Kind.recv: Roles(Parts.NONE, Parts.ONE, message=True),
    Kind.new_group: Roles(Parts.NONE, Parts.NONE),
    Kind.gather: Roles(Parts.ONE, Parts.EACH, root_gets=True, uneven=Uneven.AGREED),
    Kind.scatter: Roles(Parts.EACH, Parts.ONE, root_gives=True, uneven=Uneven.AGREED),
    Kind.all_to_all: Roles(Parts.EACH, Parts.EACH, uneven=Uneven.PAIRS),
}


def origins(kind: Kind, rank: int, size: int, root: int) -> list[range]:
    """The postcondition of a collective: whose values each part is made of that a member gets.

    Composed exchanges, simulated values, divisors of averages, random programs and proofs follow from it.

    Args:
        kind: a collective.
        rank: the member, of `size`.
        root: of those that have one.

    Returns:
        For each part the ranks whose values it holds, several where it reduces; [] where the member gets
        nothing.
    """
    roles = ROLES[kind]
    if not roles.gets(rank, root):
        return []
    if roles.reduces:
        return [range(size)]
    if roles.target is Parts.ONE:
        return [range(root, root + 1)]
    return [range(member, member + 1) for member in range(size)]


@lru_cache(maxsize=4096)
def receivers(kind: Kind, rank: int, size: int, root: int) -> tuple[int, ...]:
    """The members that get what a member gives, itself among them where it keeps a part; see `origins`."""
    every = range(size)
    return tuple(to for to in every if any(rank in part for part in origins(kind, to, size, root)))
