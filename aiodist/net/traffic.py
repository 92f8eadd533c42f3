"""What the kernel has counted on a TCP connection (TCP_INFO of Linux)."""

from __future__ import annotations

import socket
import struct
import sys
from typing import NamedTuple

_SIZE = 192
_RTT, _RETRANSMITS, _ACKED, _RATE, _BUSY, _LIMITED = 68, 100, 120, 160, 168, 176  # offsets in struct tcp_info


class Traffic(NamedTuple):
    """How a connection goes, since it began.

    Args:
        sent: bytes that the peer has acknowledged.
        busy: seconds in which bytes were under way, and the peer had room for them.
        rtt: seconds there and back, smoothed.
        again: segments that were sent again.
        rate: bytes in a second, as the kernel measured them last between a segment and what acknowledged it;
            where the program had too little to send, the most of these.
    """

    sent: int
    busy: float
    rtt: float
    again: int
    rate: float = 0.0


def traffic_of(sock: socket.socket) -> Traffic | None:
    """How a connection goes; None where the system does not tell, or it is not TCP."""
    if sys.platform != "linux" or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _SIZE)
    except OSError:
        return None  # it has been closed
    if len(info) < _SIZE:
        return None  # a kernel before 4.10
    rtt, again = (struct.unpack_from("=I", info, at)[0] for at in (_RTT, _RETRANSMITS))
    places = (_ACKED, _RATE, _BUSY, _LIMITED)
    acked, rate, busy, limited = (struct.unpack_from("=Q", info, at)[0] for at in places)
    return Traffic(acked, max(0, busy - limited) / 1e6, rtt / 1e6, again, float(rate))
