"""The AIODIST_* variables that mean something, and those that look like one and do not."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

PREFIX = "AIODIST_"

# Without the prefix. A test compares them with the strings in the source.
_NAMES = """
    ALLOW_INSECURE ALONE BLOCK DEPTH DIRECT EAGER ETCD_CA ETCD_CERT ETCD_KEY ETCD_PASSWORD ETCD_USER
    EVICT_AFTER EVICT_SILENT_AFTER HEARTBEAT HIERARCHY HOST INLINE JOB LOCAL LOCAL_RANK
    LOCAL_WORLD_SIZE LOG_DIR NEWCOMER NNODES NODE_RANK POLL RANK RESTART_COUNT SECRET SECRET_FILE
    SHARE_PORT SOCKET_IFNAME STAGING STALL_AFTER STORE TIMEOUT TLS_CA TLS_CERT TLS_KEY TORCH TRANSPORT
    WARN_AFTER WORLD_SIZE
"""
KNOWN = frozenset(PREFIX + name for name in _NAMES.split())

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


def _closest(name: str) -> str:
    """The closest name, by what follows the beginning that all have."""
    endings = [known.removeprefix(PREFIX) for known in KNOWN]
    close = difflib.get_close_matches(name.upper().removeprefix(PREFIX), endings, 1)
    return PREFIX + close[0] if close else ""
