"""Addresses as people write them: 'host', '::1', '[::1]', 'host:port', '[::1]:port'. Pure."""

from __future__ import annotations

import ipaddress

from aiodist.base.errors import UsageError
from aiodist.base.sanitize import LIMIT, one_line


def plain_host(text: str, what: str = "address") -> str:
    """A host's name or address without the brackets that an IPv6 address may stand in.

    Args:
        text: as it was written.
        what: says it: a variable, an option.

    Raises:
        UsageError: it is an IPv6 address of one link. Such an address means something together with an
            interface of one host only, so no other rank could be told it.
    """
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if is_link_local(host):
        raise UsageError(
            f"{what}={one_line(text, LIMIT)} is a link-local address, which means nothing on other hosts",
            hint="Give another address of that host: a global or a unique local one (2…, fd…), or a name",
        )
    return host


def is_link_local(host: str) -> bool:
    """Whether this is an IPv6 address of one link: fe80::…, with or without its interface."""
    try:
        return ipaddress.IPv6Address(host).is_link_local
    except ValueError:  # a name, an IPv4 address
        return False


def split_address(text: str, what: str = "address") -> tuple[str, int]:
    """'host:port' or '[v6]:port' → host, port. `UsageError` names `what` where it is neither."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = plain_host(host, what)
    shown = repr(text[:LIMIT])  # it may be what another process said
    odd = not host.isprintable() or " " in host or (":" in host and not bracketed)
    if not colon or not host or odd or not (port.isascii() and port.isdecimal()):
        raise UsageError(f"{what}={shown} is not host:port", hint="For IPv6 write [address]:port")
    if len(port) > 5 or int(port) > 65535:
        raise UsageError(f"{what}={shown} names no port", hint="Ports go from 1 to 65535")
    return host, int(port)
