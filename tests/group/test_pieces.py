"""The pieces of a quantised all_reduce cover the tensor, once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aiodist.backends.arrays.kernels.blockwise import Blockwise
from aiodist.group import pieces as module
from aiodist.group.pieces import AT_ONCE, pieces

codecs = st.builds(Blockwise, st.sampled_from([8, 4]), st.integers(1, 600).map(lambda half: 2 * half))


@given(st.integers(0, 4 * AT_ONCE), st.integers(1, 40), codecs)
def test_shares_cover_the_tensor_in_order(count: int, size: int, codec: Blockwise) -> None:
    cut = pieces(count, size, codec)
    at = 0
    for piece in cut:
        assert len(piece.bounds) == size + 1 and len(piece.nbytes) == size
        assert piece.bounds[0] == at and list(piece.bounds) == sorted(piece.bounds)
        at = piece.bounds[-1]
        for rank in range(size):
            share = piece.share(rank)
            assert 0 <= piece.nbytes[rank] - codec.nbytes(share.stop - share.start) < 4
            assert piece.nbytes[rank] % 4 == 0
    assert at == count and cut


@given(st.integers(0, 10_000), st.integers(1, 9), codecs)
def test_no_block_belongs_to_two_ranks_where_there_are_enough(
    count: int, size: int, codec: Blockwise
) -> None:
    for piece in pieces(count, size, codec):
        if piece.bounds[-1] - piece.bounds[0] >= size * codec.block:
            inner = [bound for bound in piece.bounds[1:-1] if bound < piece.bounds[-1]]
            assert all((bound - piece.bounds[0]) % codec.block == 0 for bound in inner)


def test_a_long_tensor_has_several_pieces_of_whole_blocks() -> None:
    cut = pieces(10 * AT_ONCE, 3, Blockwise(8, 1024))
    lengths = [piece.bounds[-1] - piece.bounds[0] for piece in cut]
    assert len(cut) > 9 and max(lengths) <= AT_ONCE
    assert all(length % (3 * 1024) == 0 for length in lengths[:-1])
    assert module.pieces(10 * AT_ONCE, 3, Blockwise(8, 1024)) is cut
