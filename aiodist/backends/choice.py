"""The choice of backends in one job: `backend=` taken apart, checked, and agreed on.

parse ─▶ check (are the libraries here?) ─▶ card, common_to (does it fit all ranks?) ─▶ make (for each group)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aiodist.backends.base import Carrier
from aiodist.backends.carriers import Carriers
from aiodist.backends.cuda import library
from aiodist.backends.foreign import Engine, ForeignBackend
from aiodist.backends.host.backend import HostBackend
from aiodist.backends.registry import HOST, find_engine
from aiodist.backends.staged import StagedBackend
from aiodist.base.errors import BackendUnavailable, RendezvousError, UsageError, name_ranks

logger = logging.getLogger("aiodist")

CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """The backends that a job uses, by place; see the module.

    Attributes:
        asked: what `backend=` was, in one spelling; '' for None.
        host: tensors on the host go to the host engine.
        engines: those that carry other operations out, by place.
        staged: tensors on devices go through the host's memory, and the host engine.
        automatic: nobody asked for what carries out operations on devices: what does not fit is left out.
        device: index of this process's CUDA device, once it is known.
        missing: why tensors on devices go through the host, where this process alone knows.
    """

    asked: str = ""
    host: bool = True
    engines: Mapping[str, type[Engine]] = field(default_factory=dict)
    staged: bool = False
    automatic: bool = False
    device: int | None = None
    missing: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """The name that `get_backend` gives: what carries operations out, perhaps less than was asked for."""
        names = {place: engine.name for place, engine in self.engines.items()}
        if self.host:
            names[CPU] = "host"
        if self.staged:
            names[CUDA] = "host"
        if len(set(names.values())) == 1 and names != {CUDA: "host"}:  # which takes no tensors on the host
            return next(iter(names.values()))
        return ",".join(f"{place}:{name}" for place, name in sorted(names.items()))

    @property
    def aliases(self) -> frozenset[str]:
        """The names by which a new group may be asked for: all that was asked for, and each part there is."""
        texts = {self.asked, self.name} - {""}
        parts = {item.rpartition(":")[2] for text in texts for item in text.split(",")}
        return frozenset(texts | parts | ({"gloo"} if "host" in parts else set()))

    @property
    def plain(self) -> bool:
        """Whether there is the host engine, and nothing else."""
        return not self.engines and not self.staged

    def check(self, device_id: Any = None) -> BackendChoice:
        """Look whether the libraries are here. Imports them, so it may take long: off the loop.

        Raises:
            BackendUnavailable: names the one thing to install.
        """
        device = None
        choice = self
        if CUDA in self.engines or self.staged:
            try:
                device = library.choose_device(device_id, os.environ)
            except BackendUnavailable as error:
                if not self.automatic:
                    raise
                logger.info("device tensors cannot be used here: %s", error)
                return BackendChoice(self.asked)
        for engine in self._distinct():
            try:
                engine.check()
            except BackendUnavailable as error:
                if not self.automatic:
                    raise
                left = {place: other for place, other in choice.engines.items() if other is not engine}
                choice = replace(choice, engines=left, staged=True, missing=str(error))
        return replace(choice, device=device)

    def _distinct(self) -> list[type[Engine]]:
        """Each engine once."""
        return list(dict.fromkeys(self.engines.values()))

    def card(self) -> dict[str, Any]:
        """The card for the other ranks."""
        return {
            "asked": self.asked,
            "engines": {place: engine.name for place, engine in self.engines.items()},
            "told": {place: engine.tell(self.device) for place, engine in self.engines.items()},
        }

    def common_to(self, cards: Sequence[Mapping[str, Any]], tells: bool = True) -> BackendChoice:
        """The choice that all ranks can use, from what each can. The same on all.

        Args:
            cards: of all ranks.
            tells: log what is left out; one rank of the job does.

        Raises:
            RendezvousError: they were told to use different ones.
            BackendUnavailable: an engine that was asked for cannot serve these ranks.
        """
        choice = self
        if self.missing and tells:
            logger.warning("device tensors go through the host: %s", self.missing)
        for rank, card in enumerate(cards):
            if card["asked"] != cards[0]["asked"]:
                mine, first = (card["asked"] or None, cards[0]["asked"] or None)
                raise RendezvousError(
                    f"rank {rank} has backend={mine!r}, rank 0 has {first!r}",
                    hint="Set it alike on every rank",
                )
        for place, engine in self.engines.items():
            without = [r for r, card in enumerate(cards) if card["engines"].get(place) != engine.name]
            why = (
                f"{name_ranks(without)} cannot use it"
                if without
                else _misfit(engine, [card["told"][place] for card in cards])
            )
            if not why:
                continue
            if place != CUDA:
                raise BackendUnavailable(f"backend {engine.name!r} cannot serve this job: {why}")
            if tells:
                logger.warning("device tensors go through the host, not %s: %s", engine.name, why)
            left = {other: engine for other, engine in choice.engines.items() if other != place}
            choice = replace(choice, engines=left, staged=True)
        return choice

    def make(self, host: HostBackend) -> Carriers:
        """The carriers of a world's group, on its host engine."""
        made = {engine: ForeignBackend(host, engine, self.device) for engine in self._distinct()}
        parts: dict[str, Carrier] = {place: made[engine] for place, engine in self.engines.items()}
        if self.staged:
            assert self.device is not None
            parts[CUDA] = StagedBackend(host, self.device)
        return Carriers(self.name, self.aliases, host, parts, self.host, self.device)


def parse(backend: str | None, gpu: bool | None = None) -> BackendChoice:
    """Take `backend=` apart.

    Args:
        backend: a name; 'cpu:host,cuda:nccl'; None: what the machine has.
        gpu: whether a driver of GPUs is here; None looks.

    Raises:
        UsageError: it has no meaning. BackendUnavailable: the package that brings it cannot be imported.
    """
    gpu = library.has_driver() if gpu is None else gpu
    if backend is None:
        if not gpu:
            return BackendChoice()
        return BackendChoice(engines={CUDA: find_engine("nccl")}, automatic=True)
    if not isinstance(backend, str) or not backend.strip():
        raise UsageError(f"backend must be a name, got {backend!r}", hint="Use backend='host', or None")
    text = backend.strip().lower()
    if ":" not in text:
        if text in HOST:
            return BackendChoice("host", staged=gpu, automatic=True)
        engine = find_engine(text)
        return BackendChoice(text, False, dict.fromkeys(sorted(engine.places), engine))
    routes = _routes(text)
    engines = {place: find_engine(name) for place, name in routes.items() if name not in HOST}
    for place, engine in engines.items():
        if place not in engine.places:
            raise UsageError(
                f"backend {engine.name!r} takes no tensors on {place!r}",
                hint=f"It takes those on {', '.join(sorted(engine.places))}",
            )
    staged = routes.get(CUDA) in HOST
    name = ",".join(f"{place}:{'host' if name in HOST else name}" for place, name in routes.items())
    if name == "cpu:host":
        return parse("host", gpu)
    return BackendChoice(name, routes.get(CPU) in HOST, engines, staged)


def _misfit(engine: type[Engine], sent: Sequence[bytes]) -> str:
    try:
        return engine.fits(sent)
    except Exception as error:  # it reads what other processes sent
        raise RendezvousError(
            f"what ranks sent about backend {engine.name!r} cannot be read ({type(error).__name__})",
            hint="Install the same version of it, and of aiodist, on every host",
        ) from error


def _routes(text: str) -> dict[str, str]:
    routes: dict[str, str] = {}
    for item in text.split(","):
        place, _, name = (part.strip() for part in item.partition(":"))
        if place not in (CPU, CUDA) or not name or place in routes:
            raise UsageError(
                f"backend={text!r} cannot be read", hint="Write it like 'cpu:host,cuda:nccl', each place once"
            )
        routes[place] = name
    return dict(sorted(routes.items()))
