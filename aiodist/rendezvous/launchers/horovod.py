"""horovodrun: rank 0 leaves its address in the key-value store that it serves to its processes, over HTTP.

    PUT /aiodist/<key>   the text
    GET /aiodist/<key>   the text; 404 where there is none yet

Its handler takes a scope and a key, and no more: slashes of the key are escaped.
"""

from __future__ import annotations

import asyncio
import http.client
from urllib.parse import quote

from aiodist.base.errors import RendezvousError
from aiodist.net.sockets import describe, join_address
from aiodist.rendezvous.hosting import place_at
from aiodist.rendezvous.invitation import Invitation, Meeting
from aiodist.rendezvous.launchers.address_exchange import meet_by
from aiodist.rendezvous.meeting_point import MeetingPoint

_ANSWER = 30.0  # seconds for one answer
_MAX_TEXT = 4096


async def meet(invitation: Invitation, point: MeetingPoint) -> Meeting:
    """Meet where rank 0 says, by what it leaves in horovodrun's store."""
    texts = _HorovodStore(*point.address)
    place = await place_at(invitation, *point.address)
    return await meet_by(texts, "horovodrun's store", invitation, point.address[0], place)


class _HorovodStore:
    """horovodrun's store as `Texts`."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port

    async def set(self, key: str, value: str) -> None:
        status, _ = await self._ask("PUT", key, value.encode())
        if status != http.client.OK:
            raise self._fails(f"it answers {status} to a PUT")

    async def read(self, key: str) -> str | None:
        status, text = await self._ask("GET", key)
        if status not in (http.client.OK, http.client.NOT_FOUND):
            raise self._fails(f"it answers {status} to a GET")
        return text.decode(errors="replace") if status == http.client.OK else None

    async def _ask(self, method: str, key: str, body: bytes | None = None) -> tuple[int, bytes]:
        return await asyncio.to_thread(self._exchange, method, f"/aiodist/{quote(key, safe='')}", body)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self._address, timeout=_ANSWER)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read(_MAX_TEXT)
        except (OSError, http.client.HTTPException) as error:
            raise self._fails(describe(error) if isinstance(error, OSError) else repr(error)) from None
        finally:
            connection.close()

    def _fails(self, why: str) -> RendezvousError:
        return RendezvousError(
            f"horovodrun's store at {join_address(*self._address)} fails: {why}",
            hint="See whether horovodrun still runs, and HOROVOD_GLOO_RENDEZVOUS_ADDR leads to it",
        )
