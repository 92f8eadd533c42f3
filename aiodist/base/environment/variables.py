"""The AIODIST_* variables that mean something, and names that are nearly those of variables."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping

_log = logging.getLogger("aiodist.base.environment")

PREFIX = "AIODIST_"

# Without the prefix. A test compares them with the strings in the source.
_NAMES = """
    ALLOW_INSECURE ALONE BLOCK DEPTH DIRECT EAGER ENGINE ETCD_CA ETCD_CERT ETCD_KEY ETCD_PASSWORD ETCD_USER
    EVICT_AFTER EVICT_SILENT_AFTER HEARTBEAT HIERARCHY HOST INLINE JOB LOCAL LOCAL_RANK
    LOCAL_WORLD_SIZE LOG_DIR NEWCOMER NNODES NODE_RANK POLL RANK RESTART_COUNT RUN SECRET SECRET_FILE
    SHARE_PORT SOCKET_IFNAME STAGING STALL_AFTER STORE TIMEOUT TLS_CA TLS_CERT TLS_KEY TORCH TRACEBACK
    TRANSPORT     WARN_AFTER WORLD_SIZE
"""
KNOWN = frozenset(PREFIX + name for name in _NAMES.split())

_PLAIN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
"""Variables of torch's names that are looked for under others; shorter ones are near to too much."""

_CLOSE = 0.85  # of 1: below, a name is nobody's typing error

_warned: set[str] = set()

_HUSHED = frozenset({"AIODIST_SECRET", "AIODIST_ETCD_PASSWORD"})


def shown(name: str, value: str) -> str:
    """The value of a known variable, for people: never a secret, also not one in a URL."""
    if name in _HUSHED:
        return "set"
    scheme, slashes, rest = value.partition("://")
    place, slash, path = rest.partition("/")
    user, at, host = place.rpartition("@")
    return f"{scheme}://…@{host}{slash}{path}" if slashes and at and user else value


def unknown(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that begin like ours and are none → the one that was meant, perhaps, or ''."""
    strange = sorted(name for name in environ if name.upper().startswith(PREFIX) and name not in KNOWN)
    return {name: _closest(name) for name in strange}


def near_misses(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that are set under nearly the name of one that is not set → (the name, the one meant)."""
    for name in sorted(environ):
        if name.upper().startswith(PREFIX) and name not in KNOWN:
            meant = _closest(name, _CLOSE)
        else:
            meant = next((one for one in _PLAIN if name != one and _one_slip(name.upper(), one)), "")
        if meant and meant not in environ:
            yield name, meant


def warn_of_near_misses(environ: Mapping[str, str]) -> None:
    """Log a line for each near miss, once a process, and only in the first process of a node."""
    if environ.get("LOCAL_RANK", "0") != "0":
        return
    for name, meant in near_misses(environ):
        if name not in _warned:
            _warned.add(name)
            _log.warning("%s is set, and means nothing; did you mean %s?", name, meant)


def _closest(name: str, least: float = 0.6) -> str:
    """The closest name, by what follows the beginning that all have."""
    endings = [known.removeprefix(PREFIX) for known in KNOWN]
    close = difflib.get_close_matches(name.upper().removeprefix(PREFIX), endings, 1, least)
    return PREFIX + close[0] if close else ""


def _one_slip(name: str, meant: str) -> bool:
    """Whether a name is another but for underscores, or one letter that is missing, too much, wrong, or has
    changed places with the next."""
    if name.replace("_", "") == meant.replace("_", ""):
        return True
    if abs(len(name) - len(meant)) > 1:
        return False
    same = next((i for i, (a, b) in enumerate(zip(name, meant, strict=False)) if a != b), len(meant))
    mine, other = name[same:], meant[same:]
    swapped = mine[:2] == other[1::-1] and mine[2:] == other[2:]
    return swapped or mine[1:] in (other, other[1:]) or mine == other[1:]
