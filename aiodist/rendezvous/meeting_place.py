"""Where a process was told to meet the others of its job: it tells apart jobs of one name and secret. Pure.

The process that hosts the store says it in every handshake, authenticated (`StoreCard`), and each client
compares it with what it was told itself. So somebody on the path who leads a client to the store of another
job gains nothing. Nothing is compared where either end cannot say: a launcher's store was told nothing, and a
host that listens on every address, or behind an address that is not its own, knows nothing of the addresses
by which others come. Those jobs are told apart by their names and secrets alone.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, replace

from aiodist.base.environment import is_loopback
from aiodist.base.environment.process import host_key
from aiodist.base.errors import AuthenticationError
from aiodist.net.sockets import join_address

_HOST = " on host "
_LONGEST = 480  # characters of either field, which fit into the card of a handshake

SAME_PLACE = (
    "Give all ranks the same MASTER_ADDR and MASTER_PORT. If rank 0's host is reached by an address that is "
    "not its own, set AIODIST_HOST there to one that is"
)


@dataclass(frozen=True)
class MeetingPlace:
    """A place where a job meets, as one process knows it.

    Args:
        configured: what it was told, 'host:port' or the name of a launcher's step; '' for nothing.
        found: the numeric address that this is to it; '' where it cannot say. Of a name the name itself.
        apart: it is found on the loopback, and others of the job may be on hosts that call it otherwise.
    """

    configured: str = ""
    found: str = ""
    apart: bool = False

    @staticmethod
    def named(name: str) -> MeetingPlace:
        """A place that all processes of the job know by the same name, which is no other job's."""
        return MeetingPlace(name[:_LONGEST], name[:_LONGEST])

    @staticmethod
    def at(host: str, port: int, numeric: str = "") -> MeetingPlace:
        """A place that is an address.

        Args:
            host: as the process was told.
            numeric: what that is, where it is known.
        """
        place = MeetingPlace(_label(host.lower(), port))
        return place.seen_at(numeric, port) if numeric else place

    def seen_at(self, numeric: str, port: int) -> MeetingPlace:
        """This place, found at a numeric address. All addresses ('0.0.0.0') are none."""
        if not self.configured or ipaddress.ip_address(numeric.partition("%")[0]).is_unspecified:
            return self
        return replace(self, found=_label(numeric, port))

    def is_where(self, other: MeetingPlace) -> bool:
        """Whether both may be one place; False where they are known to be two."""
        if not (self.configured and other.configured) or self.configured == other.configured:
            return True
        if not (self.found and other.found) or self.found == other.found:
            return True
        return any(one.apart and _HOST not in two.found for one, two in ((self, other), (other, self)))

    def check(self, other: MeetingPlace, what: str) -> None:
        """Refuse a store that was told to be elsewhere.

        Args:
            other: where it was told to be.
            what: is refused, for the error.

        Raises:
            AuthenticationError: it is.
        """
        if not self.is_where(other):
            raise AuthenticationError(
                f"{what} is that of a job which meets at {other.shown}, and this process was told to meet at "
                f"{self.shown}",
                hint=SAME_PLACE,
            )

    @property
    def shown(self) -> str:
        """It, for people."""
        return self.configured.partition(_HOST)[0]


NOWHERE = MeetingPlace()
"""No place: nothing is compared."""


def _label(host: str, port: int) -> str:
    """An address; one of the loopback together with the host whose it is."""
    address = join_address(host, port)
    return (f"{address}{_HOST}{host_key()}" if is_loopback(host) else address)[:_LONGEST]
