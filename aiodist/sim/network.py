"""The network that a simulation assumes: hosts, their ranks, their links, and which ranks are slow. Pure.

Every host has one link to a switch that is never in the way, and its ranks share it, each direction apart. So
a message between hosts passes two links: the sender's outwards, the receiver's inwards; it takes the latency
of both. Ranks of one host move data through memory.

It is written as a TOML file, or in short:

    hosts=512x8,link=1Gbit/s:50us,local=20GB/s:2us
    hosts=4x2,link=100Mbit/s:20us:256KiB,link.3=10Mbit/s
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from aiodist.base.errors import UsageError, shown

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_RANKS = 1 << 16

_BITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BINARY = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*)\s*")


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """What moves data.

    Args:
        bandwidth: bytes a second; of a host's link each way.
        latency: seconds that a byte takes from one end to the other.
        burst: bytes that an idle link takes at once, ahead of its bandwidth, as a token bucket (`tc tbf`)
            does.
    """

    bandwidth: float
    latency: float = 0.0
    burst: float = 0.0


LINK = LinkSpec(10e9 / 8, 20e-6)
"""A host's link where nothing is said of it: 10 Gbit/s, 20 µs."""


@dataclass(frozen=True)
class Network:
    """Hosts and their ranks.

    Args:
        host_of: the host of each rank, from 0, without gaps.
        links: of each host.
        local: between ranks of a host: what one of them moves through memory; None: as `constants` has it.
        stragglers: by how many times a rank computes longer, by rank; 1.0 for all others.
        payload: the part of what a link carries that is a message's bytes, headers aside.
        cores: so many cores carry the software of all hosts together, which are rehearsed on one machine;
            0.0: each rank has its own.
    """

    host_of: tuple[int, ...]
    links: tuple[LinkSpec, ...]
    local: LinkSpec | None = None
    stragglers: Mapping[int, float] = field(default_factory=dict)
    payload: float = 1448 / 1514
    cores: float = 0.0

    def __post_init__(self) -> None:
        if not self.host_of:
            raise UsageError("a network without ranks")
        if len(self.host_of) > MOST_RANKS:
            raise UsageError(f"{len(self.host_of)} ranks are more than a simulation takes: {MOST_RANKS}")
        for rank, factor in self.stragglers.items():
            if not 0 <= rank < self.size:
                raise UsageError(
                    f"straggler {rank} is not a rank", hint=f"Ranks count from 0 to {self.size - 1}"
                )
            if not 0 < factor < math.inf:
                raise UsageError(f"straggler {rank} computes {factor} times as long; that is not a factor")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.host_of)

    def turns(self, ranks: int) -> float:
        """The factor by which software takes longer if so many ranks work at once; 1.0: none share one."""
        return max(1.0, ranks / self.cores) if self.cores else 1.0

    def describe(self) -> str:
        """'4096 ranks on 512 hosts, links of 1 Gbit/s and 50 µs'."""
        hosts, links = len(self.links), list(dict.fromkeys(self.links))
        words = " or ".join(
            f"{rate_text(link.bandwidth)} and {time_text(link.latency)}" for link in links[:3]
        )
        ranks = f"{self.size} ranks" if self.size > 1 else "1 rank"
        return f"{ranks} on {hosts} host{'s' * (hosts > 1)}, links of {words}{', …' * (len(links) > 3)}"


def rate_text(bandwidth: float) -> str:
    """'1 Gbit/s'."""
    bits = bandwidth * 8
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= size:
            return f"{bits / size:.4g} {unit}"
    return f"{bits:.4g} bit/s"


def time_text(seconds: float) -> str:
    """'340 µs', '12.3 s'."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────


def network(text: str | None, ranks: int | None, stragglers: Sequence[str] = ()) -> Network:
    """The network that a command line describes.

    Args:
        text: a file's name, or the short form; None: every rank on a host of its own, with `LINK`.
        ranks: their number; None: as the hosts say.
        stragglers: '17:1.2', rank and factor.

    Raises:
        UsageError: it cannot be read, or contradicts itself.
    """
    if ranks is not None and ranks < 1:
        raise UsageError(f"--ranks {ranks}: there has to be one, at least")
    found: Network
    if text is None or not text.strip():
        found = _made([(None, 1, LINK)], ranks, None, {}, {})
    elif "=" in text:
        found = _short(text, ranks)
    else:
        found = _from_file(text, ranks)
    slow = dict(found.stragglers)
    for word in stragglers:
        rank, _, factor = word.partition(":")
        try:
            slow[int(rank)] = float(factor)
        except ValueError:
            raise UsageError(
                f"--straggler {shown(word)} is not a rank and a factor", hint="Write for example 17:1.2"
            ) from None
    return replace(found, stragglers=slow)


def _short(text: str, ranks: int | None) -> Network:
    link, local, each, hosts = LINK, None, 1, None
    links: dict[int, LinkSpec] = {}
    more: dict[str, float] = {}
    for word in text.split(","):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals:
            raise UsageError(f"{shown(word)} in --network is not known", hint=_EXAMPLE)
        if name == "hosts":
            count, times, size = value.partition("x")
            hosts, each = _whole(count, "hosts"), _whole(size, "ranks of a host") if times else 1
        elif name == "link":
            link = _link(value, link)
        elif name.startswith("link."):
            links[_whole(name[5:], "a host's number", 0)] = _link(value, link)
        elif name == "local":
            local = _link(value, LINK)
        elif name in ("payload", "cores"):
            more[name] = _plain(value, name)
        else:
            raise UsageError(f"--network knows no {shown(name)}", hint=_EXAMPLE)
    return _made([(hosts, each, link)], ranks, local, links, more)


_EXAMPLE = "Write for example hosts=512x8,link=1Gbit/s:50us,local=20GB/s:2us, or name a TOML file"
_KNOWN = {"hosts", "local", "stragglers", "payload", "cores"}


def _from_file(name: str, ranks: int | None) -> Network:
    try:
        data = tomllib.loads(Path(name).read_text())
    except OSError as error:
        raise UsageError(f"cannot read {shown(name)}: {error.strerror}", hint=_EXAMPLE) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} is not valid TOML: {error}") from None
    unknown = sorted(set(data) - _KNOWN)
    if unknown:
        raise UsageError(
            f"{name} has an unknown entry, {unknown[0]!r}", hint=f"It may have {', '.join(_KNOWN)}"
        )
    rows: list[tuple[int | None, int, LinkSpec]] = []
    tables = data.get("hosts")
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{name} has no [[hosts]]", hint="Each such table says count, ranks and link")
    for table in tables:
        unknown = sorted(set(table) - {"count", "ranks", "link"})
        if unknown:
            raise UsageError(f"{name}: hosts have no {unknown[0]!r}", hint="They have count, ranks and link")
        count, each = (_whole(str(table.get(what, 1)), what) for what in ("count", "ranks"))
        rows.append((count, each, _link(str(table["link"]), LINK) if "link" in table else LINK))
    local = _link(str(data["local"]), LINK) if "local" in data else None
    more: dict[str, float] = {
        what: _plain(str(data[what]), what) for what in ("payload", "cores") if what in data
    }
    made = _made(rows, ranks, local, {}, more)
    try:
        slow = {int(rank): float(factor) for rank, factor in dict(data.get("stragglers", {})).items()}
    except (TypeError, ValueError):
        raise UsageError(
            f"{name}: stragglers must be ranks and factors", hint="Write for example 17 = 1.2"
        ) from None
    return replace(made, stragglers=slow)


def _made(
    rows: Sequence[tuple[int | None, int, LinkSpec]],
    ranks: int | None,
    local: LinkSpec | None,
    links: Mapping[int, LinkSpec],
    more: Mapping[str, float],
) -> Network:
    host_of: list[int] = []
    found: list[LinkSpec] = []
    for count, each, link in rows:
        if count is None:  # as many as the ranks need
            if ranks is None:
                raise UsageError(
                    "nothing says how many ranks are to be simulated",
                    hint="Give --ranks, or hosts= in --network",
                )
            count = -(-ranks // each)
        if count * each > MOST_RANKS:
            raise UsageError(f"{count * each} ranks are more than a simulation takes: {MOST_RANKS}")
        for _ in range(count):
            host_of += [len(found)] * each
            found.append(link)
    if ranks is not None and ranks != len(host_of):
        raise UsageError(
            f"--ranks {ranks}, but the network has {len(host_of)} ranks",
            hint="Leave --ranks out, or let them agree",
        )
    for host, link in links.items():
        if host >= len(found):
            raise UsageError(f"link.{host}: there are {len(found)} hosts, which count from 0")
        found[host] = link
    return Network(tuple(host_of), tuple(found), local, payload=_share(more), cores=more.get("cores", 0.0))


def _share(more: Mapping[str, float]) -> float:
    payload = more.get("payload", 1448 / 1514)
    if not 0 < payload <= 1:
        raise UsageError(
            f"payload={payload} is not a fraction of a link", hint="Write for example payload=0.95"
        )
    return payload


def _link(text: str, default: LinkSpec) -> LinkSpec:
    """'1Gbit/s:50us:256KiB': bandwidth, latency, burst; what is left out is the default's, without burst."""
    parts = text.split(":")
    if len(parts) > 3:
        raise UsageError(
            f"{shown(text)} is not a link", hint="Write bandwidth:latency:burst, 1Gbit/s:50us:256KiB say"
        )
    bandwidth = _rate(parts[0]) if parts[0].strip() else default.bandwidth
    latency = _seconds(parts[1]) if len(parts) > 1 and parts[1].strip() else default.latency
    return LinkSpec(bandwidth, latency, _count(parts[2]) if len(parts) > 2 else 0.0)


def _rate(text: str) -> float:
    whole = text.strip()
    for ending in ("/s", "ps"):
        whole = whole.removesuffix(ending)
    number, unit = _split(whole, text, "a bandwidth", "1Gbit/s or 20GB/s")
    if unit.lower() in _BITS:
        number *= _BITS[unit.lower()] / 8
    elif unit.lower() in _BYTES | _BINARY:
        number *= (_BYTES | _BINARY)[unit.lower()]
    else:
        raise UsageError(f"{shown(text)} is not a bandwidth", hint="Write for example 1Gbit/s or 20GB/s")
    if number <= 0:
        raise UsageError("a link of no bandwidth")
    return number


def _seconds(text: str) -> float:
    number, unit = _split(text, text, "a time", "50us or 1.5ms")
    if unit not in _TIMES:
        raise UsageError(f"{shown(text)} is not a time", hint="Write for example 50us or 1.5ms")
    return number * _TIMES[unit]


def _count(text: str) -> float:
    number, unit = _split(text, text, "a number of bytes", "256KiB")
    sizes = {"": 1, **_BYTES, **_BINARY}
    if unit.lower() not in sizes:
        raise UsageError(f"{shown(text)} is not a number of bytes", hint="Write for example 256KiB")
    return number * sizes[unit.lower()]


def _split(text: str, whole: str, what: str, example: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise UsageError(f"{shown(whole)} is not {what}", hint=f"Write for example {example}")
    return float(found[1]), found[2]


def _plain(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(f"{what}={text} is not a number")
    return number


def _whole(text: str, what: str, least: int = 1) -> int:
    if not text.strip().isdecimal() or int(text) < least:
        raise UsageError(f"{shown(text)} is not a number of {what}", hint=_EXAMPLE)
    return int(text)


def table(found: Network, members: Sequence[int]) -> Any:
    """Group ranks of some members, host by host."""
    hosts: dict[int, list[int]] = {}
    for at, rank in enumerate(members):
        hosts.setdefault(found.host_of[rank], []).append(at)
    return list(hosts.values())
