"""Channels: directed message paths between processes, over memory, TCP or shared memory.

`base` says what a channel is; `sending` and `receiving` match messages over any `link`; `stream` (TCP,
Unix), `mapped` (shared memory) and `memory_link` (in one process) move the frames; the endpoints in
`endpoint` and `memory` make the links.
"""

from aiodist.environment.tuning import EAGER_BUDGET
from aiodist.transport.base import (
    CONTROL_MESSAGE,
    EAGER_MESSAGE,
    FRAGMENT,
    Done,
    Fold,
    Into,
    Key,
    Observer,
    Route,
    Sink,
    Taken,
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
    "Endpoint",
    "Fold",
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
    "Taken",
]
