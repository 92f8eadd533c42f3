"""The line by which the host of a store tells where it is, by means that are somebody else's. Pure.

    host:port instance proof

The instance names the very store (`StoreCard`): whoever reads the line connects to that one and no other.
The proof is an HMAC with the job's secret over the line and all that it is about: what is announced, the job,
and which of the job's meetings it is. So nobody who may write where it lies (torchrun's store is open to
everybody who reaches it) can make up a line, or use one of another meeting. A line of a store that is gone
leads nowhere: nobody can prove to be that store any more. Without a secret the proof proves nothing.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from aiodist.base.environment import split_address
from aiodist.base.errors import AuthenticationError
from aiodist.base.sanitize import one_line
from aiodist.net.sockets import join_address
from aiodist.net.wire.handshake import SAME_SECRET
from aiodist.rendezvous.store_card import INSTANCE_BYTES

_PROOF_BYTES = 32


@dataclass(frozen=True)
class About:
    """The facts that reader and writer of a line both know.

    Args:
        what: is announced, for errors too: "the address of rank 0".
        job: the job's name.
        meeting: which of the job's meetings it is.
        secret: the job's; b'' for none.
    """

    what: str
    job: str
    meeting: str
    secret: bytes = field(repr=False)

    def proof(self, line: str) -> str:
        """The proof of a line, which stands behind it."""
        parts = [part.encode() for part in ("aiodist announces", self.what, self.job, self.meeting, line)]
        framed = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hmac.digest(self.secret, framed, "sha256").hex()


@dataclass(frozen=True)
class Announcement:
    """A store that is announced.

    Args:
        host: by which it is reached.
        port: likewise.
        instance: 16 bytes that name it.
    """

    host: str
    port: int
    instance: bytes

    def text(self, about: About) -> str:
        """The line."""
        line = f"{join_address(self.host, self.port)} {self.instance.hex()}"
        return f"{line} {about.proof(line)}"

    @staticmethod
    def read(text: str, about: About) -> Announcement:
        """Read a line.

        Raises:
            AuthenticationError: it is none, or not of this meeting of this job, or of another secret.
            UsageError: what it says is no address.
        """
        line, _, proof = text.rpartition(" ")
        address, _, instance = line.rpartition(" ")
        if len(instance) != 2 * INSTANCE_BYTES or len(proof) != 2 * _PROOF_BYTES or not text.isascii():
            raise AuthenticationError(
                f"the text that was published as {about.what} is not valid: {one_line(text, 80)!r}",
                hint="Install the same aiodist on every host, and check which other programs can write there",
            )
        if not hmac.compare_digest(proof, about.proof(line)):
            raise AuthenticationError(
                f"{about.what} was published with another secret than this process has, or by a process of "
                "another job",
                hint=SAME_SECRET,
            )
        return Announcement(*split_address(address, about.what), bytes.fromhex(instance))
