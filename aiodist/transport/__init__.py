"""Channels: directed message paths between processes, over memory, TCP or shared memory.

    base                what a channel is, and its largest pieces (over TCP, and lent: `net/wire/frame`)
    sending, receiving  matching and flow control, pure, over any `link`
    accounts            the fields of both ends that the engine reads and writes, too
    stream              frames over TCP or a Unix socket
    mapped              frames through `rings` in shared memory, bulk in blocks of the sender's segment
    lending             bulk that the receiver reads in the sender's own memory
    memory, memory_link both ends in one process, over a `pipe`, for tests and simulation
    ending              how links end, data and control alike, goodbye included: a table of states
    endpoint, peers     makes channels: `dialing`, `listening`, `greeting` (the handshake)
    local_peers         which peers are on this host; `local_handshake` proves it by shared memory
    line                a stream of bytes between two processes, under connections of services and under
                        `control_link`: messages of the control plane, with its bounds and timeouts
    shm/                shared memory: segments, rings, other processes' memory

It knows processes by number, not groups or operations. Contract: docs/architecture.md, "The life of one
await", and docs/states.md for `ending`.
"""

from aiodist.base.environment.tuning import EAGER_BUDGET
from aiodist.transport.base import (
    CONTROL_MESSAGE,
    EAGER_MESSAGE,
    FRAGMENT,
    Done,
    EagerHandler,
    Fold,
    Handled,
    Into,
    Key,
    Observer,
    Route,
    Sink,
)
from aiodist.transport.control_link import ControlLink
from aiodist.transport.endpoint import SocketEndpoint
from aiodist.transport.memory import MemoryEndpoint, MemoryNetwork
from aiodist.transport.peers import Endpoint
from aiodist.transport.receiving import Incoming
from aiodist.transport.sending import Outgoing

__all__ = [
    "CONTROL_MESSAGE",
    "EAGER_BUDGET",
    "EAGER_MESSAGE",
    "FRAGMENT",
    "ControlLink",
    "Done",
    "EagerHandler",
    "Endpoint",
    "Fold",
    "Handled",
    "Incoming",
    "Into",
    "Key",
    "MemoryEndpoint",
    "MemoryNetwork",
    "Observer",
    "Outgoing",
    "Route",
    "Sink",
    "SocketEndpoint",
]
