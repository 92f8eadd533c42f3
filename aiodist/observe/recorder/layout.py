"""The memory of a recorder.

    0        header      what process this is, and how it goes
    4 KiB    pending     the 64 operations that the loop has slept for longest
    8 KiB    ring        the last 2,048 operations, each in the next place; some twice: once with their end
    136 KiB  sums        how many operations of each sort there were, and how long they took
    160 KiB  text        lines of JSON: the job, groups, sorts of operations, lines of the program, events
    288 KiB  text        the place to which they go when the one is full of groups that are closed
    416 KiB  links       how much has gone to peers, by TCP

One thread writes. Others read at any time, also in other processes: a place that changes while they read it
is left out (`reading`). Times are seconds of the monotonic clock, which all processes of a host share.
"""

from __future__ import annotations

import struct

MAGIC = b"aiodist record 5"

HEADER = struct.Struct("<16sQQQQdQdd")
"""Magic; process id, rank, number of ranks, epoch; wall clock minus monotonic clock, in seconds; bytes of
text; when the memory was made; when its process left its job in good order, 0.0: not yet."""

BEGAN = 7  # the place in it of when the memory was made

RANK_AT = struct.calcsize("<16sQ")
TEXT_BYTES_AT = struct.calcsize("<16sQQQQd")
LEFT_AT = TEXT_BYTES_AT + 16

VITALS = struct.Struct("<dQddQQ")
"""When all this was written last; beats of the loop, and when the last one was seen; the longest time by
which a beat was late of late; operations that were issued; those that failed."""

VITALS_AT = 128

TURN_AT = 2048
"""How often the text was written anew, times two; and one more while that is being done: what is read then is
read again. The text lies in the first place where that is even, else in the second (`text_at`)."""

CLOCK = struct.Struct("<Qdddd")
"""What is known of a neighbour's clock: its rank; seconds to add to a time of this process's clock to have
the neighbour's; seconds by which that grows in a second; by how many it may be wrong; the time of this clock
for which it holds (0.0: nothing is known)."""

CLOCKS_AT, CLOCK_PLACES = 2064, 40

PLACE = struct.Struct("<QQIdddddI")
"""One operation: its sort, number and line; when it was issued; when the loop began to sleep for it (0.0: it
ended before, or nobody knows); when all peers had arrived; when data came first; when it ended. The end of a
failure is below 0.0. Last, how many numbers up to its own are further steps of the user's calls."""

SORT, NUMBER, LINE, ISSUED, PENDING, ARRIVED, FIRST, ENDED = range(8)

SUM = struct.Struct("<QQQddQ")
"""Of one sort of operations: how many were issued; how many the loop has slept for, and how many of these
failed; seconds that these waited for peers; seconds that they took from then on; bytes of all that were
issued."""

PENDING_AT, PENDING_PLACES = 4096, 64
RING_AT, RING_PLACES = 8192, 2048
SUMS_AT = RING_AT + RING_PLACES * PLACE.size
SUM_PLACES = 512
TEXT_AT, TEXT_BYTES = 160 * 1024, 128 * 1024

LINK = struct.Struct("<QQddQd")
"""One connection: the rank at its other end; as `net.traffic.Traffic`."""

LINKS_AT, LINK_PLACES = 416 * 1024, 170
SIZE = 424 * 1024


def text_at(turn: int) -> int:
    """Where the text lies, by the word at `TURN_AT`."""
    return TEXT_AT + (turn >> 1 & 1) * TEXT_BYTES
