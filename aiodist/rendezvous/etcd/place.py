"""The address of etcd and the credentials for it, from `etcd://a:2379,b:2379` and the environment."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from aiodist.base.environment import is_loopback, split_address
from aiodist.base.environment.files import read_private
from aiodist.base.environment.tls import read_ca
from aiodist.base.errors import UsageError
from aiodist.net.sockets import join_address

SCHEMES = ("etcd", "etcds")
DEFAULT_PORT = 2379
DEFAULT_PREFIX = "aiodist"


@dataclass(frozen=True)
class EtcdPlace:
    """An etcd cluster, and how to be let in.

    Attributes:
        endpoints: host and port of members, in the order of the URL.
        prefix: what every key begins with, between slashes.
        tls: whether the members speak TLS.
        ca: path of the certificates that sign theirs; '' means those of the system.
        cert: path of this client's certificate; '' for none.
        key: path of its key.
        user: name in etcd; '' where it asks for none.
        password: of the user; never shown.
    """

    endpoints: tuple[tuple[str, int], ...]
    prefix: str = DEFAULT_PREFIX
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def tells_password(self) -> bool:
        """Whether whoever listens on the network learns the password."""
        return (
            bool(self.password) and not self.tls and not all(is_loopback(host) for host, _ in self.endpoints)
        )

    def __str__(self) -> str:
        return ", ".join(join_address(host, port) for host, port in self.endpoints)

    def ssl_context(self) -> ssl.SSLContext | None:
        """Make the TLS context to dial with; None without TLS.

        Raises:
            UsageError: a file cannot be read, or holds something else, or everybody may read the key.
        """
        if not self.tls:
            return None
        import ssl

        try:
            if self.key:
                read_private(f"the key for etcd, {self.key},", self.key, shared=True, most=0)
            trusted = read_ca(f"the CA for etcd, {self.ca},", self.ca) if self.ca else None
            context = ssl.create_default_context(cadata=trusted)
            if self.cert:
                # Without a password OpenSSL would ask for one on the terminal.
                context.load_cert_chain(self.cert, self.key or None, password="")
        except OSError as error:  # also what OpenSSL raises
            reason = getattr(error, "reason", None) or error.strerror
            files = ", ".join(path for path in (self.ca, self.cert, self.key) if path)
            raise UsageError(
                f"the TLS files for etcd ({files}) cannot be used ({reason})",
                hint="AIODIST_ETCD_CA, AIODIST_ETCD_CERT and AIODIST_ETCD_KEY name files in PEM form",
            ) from None
        return context


def place(url: str, environ: Mapping[str, str]) -> EtcdPlace:
    """Read a URL `etcd://host:port,…[/prefix]` (`etcds://` with TLS), and the variables

    AIODIST_ETCD_USER, AIODIST_ETCD_PASSWORD: of an etcd with authentication;
    AIODIST_ETCD_CA, AIODIST_ETCD_CERT, AIODIST_ETCD_KEY: paths, for `etcds://`; where none of them is set,
    the job's AIODIST_TLS_CA, AIODIST_TLS_CERT, AIODIST_TLS_KEY are used.

    Raises:
        UsageError: it is no such URL. One with a password in it is not shown.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise UsageError(f"'{scheme}://' does not lead to etcd", hint="Write etcd://host:port")
    rest = rest.partition("#")[0].partition("?")[0]
    if "@" in rest:
        raise UsageError(
            f"the {scheme}:// address holds a user or a password, which logs would show",
            hint="Set AIODIST_ETCD_USER and AIODIST_ETCD_PASSWORD instead",
        )
    hosts, _, prefix = rest.partition("/")
    endpoints = tuple(_endpoint(text) for text in hosts.split(","))
    ca, cert, key = _files(environ) if scheme == "etcds" else ("", "", "")
    if bool(cert) != bool(key):
        raise UsageError("a certificate for etcd needs its key, and the other way round")
    user, password = environ.get("AIODIST_ETCD_USER", ""), environ.get("AIODIST_ETCD_PASSWORD", "")
    if password and not user:
        raise UsageError("AIODIST_ETCD_PASSWORD is set, and AIODIST_ETCD_USER is not")
    prefix = unquote(prefix).strip("/") or DEFAULT_PREFIX
    return EtcdPlace(endpoints, prefix, scheme == "etcds", ca, cert, key, user, password)


def _files(environ: Mapping[str, str]) -> tuple[str, str, str]:
    for family in ("AIODIST_ETCD", "AIODIST_TLS"):
        ca, cert, key = (environ.get(f"{family}_{what}", "") for what in ("CA", "CERT", "KEY"))
        if ca or cert or key:
            return ca, cert, key
    return "", "", ""


def _endpoint(text: str) -> tuple[str, int]:
    has_port = text.rpartition("]")[2].rpartition(":")[1]
    host, port = split_address(text if has_port else f"{text}:{DEFAULT_PORT}", "the address of etcd")
    if port == 0:
        raise UsageError("the address of etcd names port 0", hint=f"etcd's own is {DEFAULT_PORT}")
    return host, port
