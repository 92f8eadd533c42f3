"""What collectives take, against sums by hand."""

from __future__ import annotations

import numpy as np
import pytest

from aiodist.base.types import Kind
from aiodist.sim.collectives import Collectives, Wanted
from aiodist.sim.constants import Constants
from aiodist.sim.cost import HEADER, Fabric, parts
from aiodist.sim.network import network

NOTHING = Constants(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
KINDS = [Kind.all_reduce, Kind.broadcast, Kind.reduce, Kind.all_gather, Kind.reduce_scatter, Kind.gather]
KINDS += [Kind.scatter, Kind.all_to_all, Kind.barrier]


def takes(words: str, kind: Kind, nbytes: int, size: int, constants: Constants = NOTHING) -> float:
    """Seconds until all are through that come together."""
    made = Collectives(Fabric(network(words, size), constants), range(size))
    root = 0 if kind in (Kind.broadcast, Kind.reduce, Kind.gather, Kind.scatter) else -1
    return float(made.ends(Wanted(kind, nbytes, 4, root), np.zeros(size)).at.max())


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        (Kind.all_reduce, 3),
        (Kind.all_reduce, 7),
        (Kind.all_gather, 3),
        (Kind.all_gather, 7),
        (Kind.all_gather, 100),
    ],
)
def test_a_ring_takes_what_the_formula_says(kind: Kind, size: int) -> None:
    chunk, rounds = 1 << 20, (size - 1) * (2 if kind is Kind.all_reduce else 1)
    made = Collectives(Fabric(network("link=1Gbit/s:50us,payload=1", size), NOTHING), range(size))
    wanted = Wanted(kind, chunk * size, 4)
    assert made.by(wanted) == "ring"
    alpha, beta = 2 * 50e-6, 8 / 1e9
    # A large message waits for its receiver's word, which travels as long as the message's first byte.
    formula = rounds * (2 * alpha + beta * (chunk + HEADER))
    assert float(made.ends(wanted, np.zeros(size)).at.max()) == pytest.approx(formula, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [4, 12, 96])
@pytest.mark.parametrize("nbytes", [96 * 4, 96 << 14])
def test_a_better_network_is_never_slower(kind: Kind, size: int, nbytes: int) -> None:
    plain = takes("link=1Gbit/s:50us", kind, nbytes, size, Constants())
    assert takes("link=2Gbit/s:50us", kind, nbytes, size, Constants()) <= plain
    assert takes("link=1Gbit/s:25us", kind, nbytes, size, Constants()) < plain


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not Kind.barrier])
def test_one_slow_link_slows_all(kind: Kind) -> None:
    even, odd = (takes(f"link=1Gbit/s:20us{more}", kind, 8 << 20, 8) for more in ("", ",link.5=100Mbit/s"))
    linear = kind in (Kind.gather, Kind.scatter)  # an eighth of the bytes goes over it
    assert odd > (1.2 if linear else 2) * even


def test_a_late_member_delays_by_as_much() -> None:
    made = Collectives(Fabric(network("link=1Gbit/s:50us", 6), Constants()), range(6))
    wanted, at = Wanted(Kind.all_reduce, 6 << 20, 4), np.zeros(6)
    first = made.ends(wanted, at, commit=False).at.max()
    at[:] = 1.0
    assert made.ends(wanted, at, commit=False).at.max() == pytest.approx(first + 1.0)


def test_two_at_once_share_the_links() -> None:
    made = Collectives(Fabric(network("link=1Gbit/s:10us", 4), NOTHING), range(4))
    wanted = Wanted(Kind.all_reduce, 32 << 20, 4)
    first, second = (float(made.ends(wanted, np.zeros(4)).at.max()) for _ in range(2))
    assert second == pytest.approx(2 * first, rel=0.05)


def test_a_burst_spares_its_bytes() -> None:
    plain, fast = (
        takes(f"link=100Mbit/s:10us{burst},payload=1", Kind.broadcast, 1 << 20, 2)
        for burst in ("", ":512KiB")
    )
    assert plain - fast == pytest.approx((512 << 10) * 8 / 100e6, rel=0.05)


def test_parts_are_all_of_it() -> None:
    assert parts(40, 3, 4).tolist() == [16.0, 12.0, 12.0]
    assert parts(0, 3).tolist() == [0.0, 0.0, 0.0]
