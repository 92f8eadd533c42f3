"""The parts of a recorder's memory lie one after the other, and each has room for what is written there."""

from __future__ import annotations

from aiodist.observe.recorder import layout
from aiodist.observe.recorder.layout import CLOCK, HEADER, LINK, PLACE, SUM, VITALS
from aiodist.observe.recorder.recorder import MOST_SORTS


def test_no_part_reaches_into_the_next() -> None:
    parts = [
        (0, HEADER.size),
        (layout.VITALS_AT, VITALS.size),
        (layout.TURN_AT, 8),
        (layout.CLOCKS_AT, layout.CLOCK_PLACES * CLOCK.size),
        (layout.PENDING_AT, layout.PENDING_PLACES * PLACE.size),
        (layout.RING_AT, layout.RING_PLACES * PLACE.size),
        (layout.SUMS_AT, layout.SUM_PLACES * SUM.size),
        (layout.TEXT_AT, 2 * layout.TEXT_BYTES),
        (layout.LINKS_AT, layout.LINK_PLACES * LINK.size),
        (layout.SIZE, 0),
    ]
    ends = [start + size for start, size in parts]
    assert all(end <= start for end, (start, _) in zip(ends, parts[1:], strict=False))


def test_words_that_change_alone_are_words_of_the_machine() -> None:
    """Who reads one while it is written has the old value or the new one only where it is aligned."""
    places = (layout.RANK_AT, layout.TEXT_BYTES_AT, layout.LEFT_AT, layout.TURN_AT)
    assert all(at % 8 == 0 for at in places)
    assert PLACE.size == 64 and layout.RING_AT % 64 == layout.PENDING_AT % 64 == 0  # a line of the cache
    assert layout.SUM_PLACES > MOST_SORTS


def test_single_fields_are_where_the_header_has_them() -> None:
    header = HEADER.pack(layout.MAGIC, 1, 2, 3, 4, 5.0, 6, 7.0, 8.0)
    assert HEADER.unpack(header)[layout.BEGAN] == 7.0
    assert int.from_bytes(header[layout.RANK_AT :][:8], "little") == 2
    assert int.from_bytes(header[layout.TEXT_BYTES_AT :][:8], "little") == 6
    assert header[layout.LEFT_AT : layout.LEFT_AT + 8] == header[-8:]
