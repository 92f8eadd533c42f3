"""Ranks' views as bytes, for a job's store: compressed lines of JSON, one for each. Pure.

Another host has made them. Each line is unpacked and parsed by itself, within bounds, so that neither the
memory nor the time for which a parser lets nobody else run is in its hands.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

from aiodist.base.errors import WireError
from aiodist.base.sanitize import one_line
from aiodist.net.wire.bounded_json import load_json
from aiodist.observe.view import RankView

LARGEST = 64 << 20
"""Bytes of all lines."""

LONGEST = 4 << 20
"""Bytes of one line; that of a rank with all its operations has about 0.6 MiB."""

TIMES = 200
"""How often a parcel its lines may be, in bytes, beyond a MiB; those of real ranks are it 15 to 65 times."""

_AT_ONCE = 256 << 10  # bytes that are unpacked in one go


def pack(views: Iterable[RankView], most: int) -> bytes:
    """The views as bytes.

    Args:
        most: operations of each rank that are told, the last ones.
    """
    lines = []
    for view in views:
        cut = replace(view.recording, last=view.recording.last[-most:])
        cut_view = replace(view, recording=cut).to_json()
        lines.append(json.dumps(cut_view, separators=(",", ":")).encode() + b"\n")
    return zlib.compress(b"".join(lines), 1)


def unpack(data: bytes) -> list[RankView]:
    """The views of a parcel. For a thread: it may take a second.

    Raises:
        WireError: it is none.
    """
    try:
        return [RankView.from_json(load_json(line, LONGEST)) for line in _lines(data)]
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"this is no parcel of views: {one_line(str(error))}") from error


def _lines(data: bytes) -> Iterator[bytes]:
    """The lines of a parcel, each as soon as it is unpacked."""
    unpacking, rest, line, most = zlib.decompressobj(), data, b"", min(LARGEST, (1 << 20) + TIMES * len(data))
    while not unpacking.eof:
        text = unpacking.decompress(rest, _AT_ONCE)
        rest = unpacking.unconsumed_tail
        if not text and not rest and not unpacking.eof:
            raise WireError("a parcel of views that is not all there")
        most -= len(text)
        if most < 0 or len(line) > LONGEST:
            raise WireError(f"a parcel of {len(data)} bytes with more views than it can hold")
        *whole, last = text.split(b"\n")
        if whole:
            yield line + whole[0]
            yield from whole[1:]
            line = b""
        line += last
    if line or unpacking.unused_data:
        raise WireError("a parcel of views with something behind them")
