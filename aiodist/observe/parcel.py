"""Ranks' views as bytes, for a job's store: compressed JSON. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import replace

from aiodist.errors import WireError
from aiodist.observe.view import RankView

LARGEST = 64 << 20
"""Bytes that are unpacked at most: a small parcel may hold as many zeros as it likes."""


def pack(views: Iterable[RankView], most: int) -> bytes:
    """The views as bytes.

    Args:
        most: operations of each rank that are told, the last ones.
    """
    told = []
    for view in views:
        cut = replace(view.recording, last=view.recording.last[-most:])
        told.append(replace(view, recording=cut).to_json())
    return zlib.compress(json.dumps(told, separators=(",", ":")).encode(), 1)


def unpack(data: bytes) -> list[RankView]:
    """The views of a parcel.

    Raises:
        WireError: it is none.
    """
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(data, LARGEST)
        if unpacking.unconsumed_tail:
            raise WireError(f"a parcel of more than {LARGEST >> 20} MiB")
        return [RankView.from_json(one) for one in json.loads(text)]
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise WireError(f"this is no parcel of views: {error}") from error
