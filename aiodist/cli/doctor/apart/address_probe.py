"""The address of this host that leads to another. A name server may not answer for long."""

from __future__ import annotations

import socket


def probe(own: str, there: str) -> dict[str, str]:
    """Check two hosts' names or addresses, each '' for none.

    Returns:
        'unusable': why this host cannot listen on `own`; 'own': this host's address towards `there`;
        'unreachable': why there is none. '' where nothing is to be said.
    """
    found = {"unusable": "", "own": "", "unreachable": ""}
    if own:
        try:
            family, _, _, _, address = socket.getaddrinfo(own.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
            with socket.socket(family) as sock:
                sock.bind(address)
        except (OSError, UnicodeError) as error:
            found["unusable"] = _why(error)
    if there:
        try:
            family, _, _, _, address = socket.getaddrinfo(there.strip("[]"), 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as sock:
                sock.connect(address)  # asks the routes; nothing is sent
                found["own"] = str(sock.getsockname()[0])
        except (OSError, UnicodeError) as error:
            found["unreachable"] = _why(error)
    return found


def _why(error: OSError | UnicodeError) -> str:
    if isinstance(error, UnicodeError):
        return "it cannot be a host's name"
    return error.strerror or str(error)
