"""A part of a store, as if it were all of it."""

from __future__ import annotations

from typing import Any

from aiodist.rendezvous.methods import METHODS
from aiodist.rendezvous.shapes import KEY, check_key
from aiodist.rendezvous.store import Store
from aiodist.rendezvous.watch import Watch


class PrefixStore(Store):
    """A view of a store: every key and name has `prefix/` in front (as in torch). Closing it closes nothing.

    Args:
        prefix: what stands before every key.
        store: where the keys are; it must outlive the view.
    """

    def __init__(self, prefix: str, store: Store) -> None:
        super().__init__(store.timeout)
        self.address, self.instance = store.address, store.instance
        self._prefix = f"{prefix}/"
        self._store = store

    @property
    def underlying(self) -> Store:
        """The store behind the view."""
        return self._store

    async def _call(self, method: str, args: list[Any], timeout: float | None = None) -> Any:
        known = METHODS[method]
        full = [shape.under(self._prefix, arg) for shape, arg in zip(known.args, args, strict=False)]
        answer = await self._store._call(method, full, timeout)
        return answer if known.answer is None else known.answer.without(self._prefix, answer)

    def watch(self, prefix: str = "") -> Watch:
        return self._store.watch(KEY.under(self._prefix, check_key(prefix))).under(self._prefix)

    async def aclose(self) -> None:
        """Do nothing: whoever made the store behind it closes that."""
