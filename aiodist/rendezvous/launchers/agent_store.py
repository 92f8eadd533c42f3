"""A client of torch's TCPStore: as much of it as ranks under torchrun need to find each other, and no torch.

There the store of torchrun's agent listens on MASTER_ADDR:MASTER_PORT. So rank 0 listens on another port, and
leaves its address in that store. What goes over the wire, numbers in the byte order of the machine, text as
its length in bytes (u64) and these:

    VALIDATE  00, u32 magic                  no answer; comes first, once
    SET       01, text key, text value       no answer
    GET       03, text key                   text value; where there is no such key, an empty one or the end
    WAIT      06, u64 1, text key            00 once there is such a key
    PING      0d, u32 nonce                  u32 nonce; since torch 2.5

Requests are answered in their order. A PING behind a SET says that the value is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
from collections.abc import AsyncIterator
from datetime import timedelta

from aiodist.base.errors import RendezvousError, RendezvousTimeout, UsageError, WireError
from aiodist.base.timeouts import seconds, spoken
from aiodist.net.sockets import connect, describe, join_address, port_owner
from aiodist.net.wire.handshake import TORCH_OPENS
from aiodist.rendezvous.hosting import place_at
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.launchers.address_exchange import meet_by
from aiodist.rendezvous.meeting_point import MeetingPoint

# torch's store looks up the name of each client before it answers its first request (torch 2.13, for a log).
# Where the name server is silent, the resolver gives up after 5 s, twice for each of up to three servers.
ECHO_SECONDS = 35.0  # what stays silent for longer is no store
LATE_SECONDS = 5.0  # then one log line says what is awaited
MAX_TEXT = 4 << 10  # bytes of a key or a value, either way: addresses are short

_log = logging.getLogger("aiodist.rendezvous")

_SET, _GET, _WAIT_FOR_ONE, _PING = b"\x01", b"\x03", struct.pack("=BQ", 0x06, 1), b"\x0d"
_STOP_WAITING = b"\x00"
_LENGTH = struct.Struct("=Q")
_NONCE_BYTES = 4


async def meet(invitation: Invitation, point: MeetingPoint) -> Meeting:
    """Meet where rank 0 says, by what it leaves in the agent's store, at MASTER_ADDR:MASTER_PORT."""
    # Without TORCHELASTIC_RESTART_COUNT: an agent does not count the restarts that another's failure led to.
    store = await AgentStore.connect(*point.address, invitation.timeout)
    async with contextlib.aclosing(store):
        place = await place_at(invitation, *point.address)
        return await meet_by(store, "torchrun's store", invitation, point.address[0], place)


class AgentStore:
    """A connection to the store of torchrun's agent. Make it with `await AgentStore.connect(…)`.

    It asks one thing after the other. What fails or is cancelled half-way ends the connection, for nobody
    could tell whose the next answer is.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str) -> None:
        self._own: str = writer.get_extra_info("sockname")[0]  # this host's address
        self._reader = reader
        self._writer = writer
        self._where = where
        self._patience = 0.0
        self._turn = asyncio.Lock()

    @classmethod
    async def connect(cls, host: str, port: int, timeout: float | timedelta) -> AgentStore:
        """Connect to a store, and see that it is one.

        Args:
            timeout: for connecting, and for `set` afterwards.

        Raises:
            RendezvousTimeout: the host did not answer in time.
            RendezvousError: nobody listens there, or something that is no store of torch.
        """
        where = join_address(host, port)
        patience = seconds(timeout)
        try:
            async with asyncio.timeout(patience) as limit:
                sock = await connect(host, port)
        except OSError as error:  # a TimeoutError is one, too
            if limit.expired():
                raise _no_answer(where, patience) from None
            raise RendezvousError(
                f"cannot reach torchrun's store at {where} ({describe(error)})",
                hint="See whether torchrun runs there. MASTER_ADDR and MASTER_PORT must be as it set them",
            ) from None
        reader, writer = await asyncio.open_connection(sock=sock)
        self = cls(reader, writer, where)
        self._patience = patience
        try:
            await self._greet(patience)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def set(self, key: str, value: str) -> None:
        """Leave a value; when this returns, the store has it.

        Raises:
            RendezvousTimeout: the store did not confirm it in the time that `connect` was given.
            RendezvousError: the connection ended.
        """
        request = _SET + _key(key) + _text(value)
        try:
            async with self._exchange(self._patience):
                await self._ping(request)
        except TimeoutError:
            raise RendezvousTimeout(
                f"torchrun's store at {self._where} did not confirm '{key}' within {spoken(self._patience)}",
                hint="See whether torchrun's agent there still runs and can be reached",
            ) from None
        except (OSError, WireError) as error:
            raise self._lost(error) from None

    async def read(self, key: str) -> str:
        """Wait for a value, as long as `connect` was given; as `get`."""
        return await self.get(key, self._patience)

    async def get(self, key: str, timeout: float | timedelta) -> str:
        """Wait for a value, until somebody has left it.

        Raises:
            RendezvousTimeout: nobody did in time. This ends the connection.
            RendezvousError: the connection ended, or the value is none of ours.
        """
        patience, name = seconds(timeout), _key(key)
        try:
            async with self._exchange(patience):
                self._writer.write(_WAIT_FOR_ONE + name)
                if (answer := await self._reader.readexactly(1)) != _STOP_WAITING:
                    raise WireError(f"it answered {answer!r} to a wait")
                self._writer.write(_GET + name)
                (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if not 0 < length <= MAX_TEXT:
                    raise WireError(f"it answered with {length} bytes, where 1 to {MAX_TEXT} are expected")
                return (await self._reader.readexactly(length)).decode()
        except TimeoutError:
            raise RendezvousTimeout(
                f"rank 0 left no '{key}' in torchrun's store at {self._where} within {spoken(patience)}",
                hint="See rank 0's output: it leaves its address there as soon as it listens",
            ) from None
        except UnicodeDecodeError:
            raise self._lost(WireError("it answered with bytes that are no text")) from None
        except (OSError, WireError) as error:
            raise self._lost(error) from None

    async def aclose(self) -> None:
        """End the connection. What was set has been confirmed, so there is nothing to wait for."""
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _greet(self, patience: float) -> None:
        late = asyncio.get_running_loop().call_later(LATE_SECONDS, self._say_late)
        try:
            async with self._exchange(min(patience, ECHO_SECONDS)):
                await self._ping(TORCH_OPENS)
        except (OSError, WireError) as error:
            silent = isinstance(error, TimeoutError)
            if silent and patience < ECHO_SECONDS:  # too soon to say what it is
                raise _no_answer(self._where, patience) from None
            how = f"it gave no answer within {spoken(ECHO_SECONDS)}" if silent else describe(error)
            raise RendezvousError(
                f"what listens on {self._where}{self._owner()} is not torchrun's store: {how}",
                hint="MASTER_ADDR and MASTER_PORT must be as torchrun (torch 2.5 or later) set them; "
                "without torchrun, choose a free MASTER_PORT",
            ) from None
        finally:
            late.cancel()

    def _say_late(self) -> None:
        _log.warning(
            "what listens on %s%s has not answered for %s: either its host's name server is slow "
            "(torch's store asks for the name of each client first), or it is not torchrun's store",
            self._where,
            self._owner(),
            spoken(LATE_SECONDS),
        )

    async def _ping(self, request: bytes) -> None:
        """Send a request that has no answer, and see that the store has taken it."""
        nonce = os.urandom(_NONCE_BYTES)
        self._writer.write(request + _PING + nonce)
        if (answer := await self._reader.readexactly(_NONCE_BYTES)) != nonce:
            raise WireError(f"it answered {answer!r} to a ping")

    @contextlib.asynccontextmanager
    async def _exchange(self, patience: float) -> AsyncIterator[None]:
        """The connection for one request and its answer, or `TimeoutError` after `patience` seconds."""
        try:
            async with asyncio.timeout(patience) as limit, self._turn:
                if self._writer.is_closing():
                    raise RendezvousError(
                        f"the connection to torchrun's store at {self._where} is over", hint="Connect again"
                    )
                try:
                    yield
                except BaseException:
                    self._writer.transport.abort()
                    raise
        except asyncio.IncompleteReadError:
            raise ConnectionError("it ended the connection") from None
        except TimeoutError as error:
            if limit.expired():
                raise
            raise ConnectionError(describe(error)) from None  # the network's, which has an errno

    def _lost(self, error: OSError | WireError) -> RendezvousError:
        return RendezvousError(
            f"lost torchrun's store at {self._where}: {describe(error)}",
            hint="See whether torchrun's agent there still runs",
        )

    def _owner(self) -> str:
        """Name the process that listens, where that is on this host, and known."""
        peer = self._writer.get_extra_info("peername")
        owner = port_owner(peer[1]) if peer and peer[0] == self._own else ""
        return f", {owner}," if owner else ""


def _no_answer(where: str, patience: float) -> RendezvousTimeout:
    return RendezvousTimeout(
        f"no answer from {where}, where torchrun's store should be, within {spoken(patience)}",
        hint="See whether this host can reach the one that MASTER_ADDR names",
    )


def _key(key: str) -> bytes:
    """The key as torch's own clients send it: they begin every one with a slash."""
    return _text(f"/{key}")


def _text(text: str) -> bytes:
    data = text.encode()
    if not 0 < len(data) <= MAX_TEXT:
        raise UsageError(
            f"torchrun's store is given texts of 1 to {MAX_TEXT} bytes, this one has {len(data)}"
        )
    return _LENGTH.pack(len(data)) + data
