"""The memory of a recorder.

    0        header      what process this is
    4 KiB    pending     the 64 operations that the loop has slept for longest
    8 KiB    ring        the last 2,048 operations, each in the next place; some twice: once with their end
    136 KiB  text        lines of JSON that only grow: groups, sorts of operations, lines of the program

One thread writes. Others read at any time, also in other processes: a place that changes while they read it
is left out (`reading`). Times are seconds of the monotonic clock, which all processes of a host share.
"""

from __future__ import annotations

import struct

MAGIC = b"aiodist record 1"

HEADER = struct.Struct("<16sQQQQdQdd")
"""Magic; process id, rank, number of ranks, epoch; wall clock minus monotonic clock, in seconds; bytes of
text; when the memory was made; when its process left its job in good order, 0.0: not yet."""

RANK_AT = struct.calcsize("<16sQ")
TEXT_BYTES_AT = struct.calcsize("<16sQQQQd")
LEFT_AT = TEXT_BYTES_AT + 16

PLACE = struct.Struct("<QQQddddd")
"""One operation: its sort, number and line; when it was issued; when the loop began to sleep for it (0.0: it
ended before, or nobody knows); when all peers had arrived; when data came first; when it ended. The end of a
failure is below 0.0."""

SORT, NUMBER, LINE, ISSUED, PENDING, ARRIVED, FIRST, ENDED = range(8)

PENDING_AT, PENDING_PLACES = 4096, 64
RING_AT, RING_PLACES = 8192, 2048
TEXT_AT = RING_AT + RING_PLACES * PLACE.size
SIZE = 256 * 1024
