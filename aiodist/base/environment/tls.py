"""TLS for a job's TCP connections: AIODIST_TLS_CERT, AIODIST_TLS_KEY and AIODIST_TLS_CA, all or none.

Version 1.3 only, and mutual: whoever has no certificate of the job's CA is refused by both roles. Names in
certificates are not compared, since ranks are dialed by address: the CA says who belongs, so it must be one
that signs for nobody else. The job's secret is asked for as well, inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from aiodist.base.environment.files import read_file, read_private
from aiodist.base.errors import UsageError

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

_BEGIN = "-----BEGIN "
NAMES = ("AIODIST_TLS_CERT", "AIODIST_TLS_KEY", "AIODIST_TLS_CA")


@dataclass(frozen=True, eq=False)
class Tls:
    """The contexts and certificate that this process needs to speak TLS.

    Attributes:
        server: for connections that it accepted.
        client: for connections that it dialed.
        certificate: its own, DER.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    certificate: bytes


def tls_files(environ: Mapping[str, str]) -> tuple[str, str, str] | None:
    """The paths of certificate, key and CA; None where no variable is set. An empty one counts as absent.

    Raises:
        UsageError: some are set and some are not.
    """
    cert, key, ca = (environ.get(name, "") for name in NAMES)
    if not (cert or key or ca):
        return None
    missing = [name for name, path in zip(NAMES, (cert, key, ca), strict=True) if not path]
    if missing:
        raise UsageError(
            f"{' and '.join(missing)} not set, though another AIODIST_TLS_* variable is",
            hint=f"Set all of {', '.join(NAMES)}, or none",
        )
    return cert, key, ca


def tls(environ: Mapping[str, str]) -> Tls | None:
    """Read the files; None where TLS is not asked for.

    Raises:
        UsageError: a file is missing or is not what it should be; the key does not belong to the certificate,
            can be read by other users, or is, as the CA's certificate, one that others may have written.
    """
    files = tls_files(environ)
    if files is None:
        return None
    cert, key, ca = (f"{name}={path}" for name, path in zip(NAMES, files, strict=True))
    own = _reading(cert, lambda: read_file(cert, files[0], trusted=False))
    _reading(key, lambda: read_private(key, files[1], shared=True, most=0))
    trusted = _reading(ca, lambda: read_ca(ca, files[2]))
    contexts = [_context(is_server, files, trusted) for is_server in (True, False)]
    return Tls(contexts[0], contexts[1], _first_certificate(cert, own))


def _reading(what: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except OSError as error:
        raise UsageError(f"{what} cannot be read ({error.strerror})") from None


def read_ca(what: str, path: str) -> str:
    """The certificates in a PEM file, of the authorities that say who belongs.

    Args:
        what: what errors call it.
        path: of the file.

    Raises:
        UsageError: it holds none, or others may have written it, who could let in whom they like.
        OSError: it cannot be read.
    """
    text = read_file(what, path, trusted=True).decode("ascii", "ignore")  # there may be words between them
    if _BEGIN not in text:  # to `ssl` nothing would mean the system's
        raise UsageError(f"{what} holds no certificate in PEM form")
    return text


def _context(is_server: bool, files: tuple[str, str, str], trusted: str) -> ssl.SSLContext:
    import ssl

    cert, key, ca = files
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    if is_server:
        context.num_tickets = 0  # sessions are not resumed, so no connection skips the certificates
    try:
        context.load_verify_locations(cadata=trusted)
    except ssl.SSLError:
        raise UsageError(f"AIODIST_TLS_CA={ca} holds no certificate in PEM form") from None
    try:
        # Without a password OpenSSL would ask for one on the terminal.
        context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"AIODIST_TLS_KEY={key} is not the key of AIODIST_TLS_CERT={cert}") from None
        raise UsageError(
            f"AIODIST_TLS_CERT={cert} and AIODIST_TLS_KEY={key} cannot be used ({error.reason})",
            hint="Both in PEM form, the key without a password",
        ) from None
    return context


def _first_certificate(what: str, content: bytes) -> bytes:
    """The process's own certificate: the first of its file; those that follow are above it."""
    import ssl

    try:
        text = content.decode("ascii", "replace")
        start = text.index("-----BEGIN CERTIFICATE-----")
        stop = text.index("-----END CERTIFICATE-----", start) + len("-----END CERTIFICATE-----")
        return ssl.PEM_cert_to_DER_cert(text[start:stop] + "\n")
    except ValueError:
        raise UsageError(f"{what} holds no certificate in PEM form") from None
