"""Errors of etcd: whether to ask again, and else what to tell the user. Pure."""

from __future__ import annotations

from aiodist.base.errors import AuthenticationError, RendezvousError, UsageError
from aiodist.base.sanitize import one_line
from aiodist.net.wire.bounded_json import load_json

# Codes of gRPC.
_CANCELLED, _UNKNOWN, _INVALID, _DEADLINE, _NOT_FOUND, _DENIED, _INTERNAL, _UNAVAILABLE, _UNAUTHENTICATED = (
    *(1, 2, 3, 4, 5, 7, 13, 14, 16),
)
_MOST = 32 << 20  # bytes of an answer
_WORDS = 200  # characters of what etcd says that are shown
_PASSING = (_CANCELLED, _UNKNOWN, _DEADLINE, _INTERNAL, _UNAVAILABLE)


class EtcdAway(Exception):
    """The lack of an answer, for now: another attempt, or another member, may get one. Says briefly why."""


class Compacted(EtcdAway):
    """The end of a watch whose changes are forgotten: watch again from what is there now."""


class TokenOver(EtcdAway):
    """The token has run out, or etcd was restarted: log in again."""


class NoLease(Exception):
    """The lease that a request names has run out. `again`: etcd may have been asked before."""

    again = False


class LeaseExists(Exception):
    """The lease that was to be made is there: an earlier attempt made it."""


class NoAuthentication(Exception):
    """The answer that etcd wants no user."""


def refusal(status: int, body: str) -> Exception:
    """The exception for an answer that is none.

    Args:
        status: of HTTP.
        body: of the answer: etcd's JSON, or whatever another server says.
    """
    try:
        said = load_json(body.encode(errors="replace"), _MOST)
        if isinstance(said.get("error"), dict):  # of a stream
            said = said["error"]
        message = one_line(str(said.get("message") or said["error"]), _WORDS)
        code = int(said.get("code", said.get("grpc_code", _UNKNOWN)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _from_another_server(status, body)
    text = message.removeprefix("etcdserver: ")
    if "request is too large" in text or "larger than max" in text:
        return UsageError(
            f"the value is too large for etcd ({text})",
            hint="Keep it under 1 MiB (etcd's --max-request-bytes), or put it into a file and its name here",
        )
    if "too many operations" in text:
        return UsageError(f"too many keys in one call for etcd ({text})", hint="Use several calls")
    if "database space exceeded" in text:
        return RendezvousError(f"etcd is full ({text})", hint="Compact it, and disarm its alarm with etcdctl")
    if code == _UNAUTHENTICATED or "auth token" in text or "auth store is old" in text:
        return TokenOver(text)
    if code == _DENIED:
        return AuthenticationError(
            f"etcd does not let this user in ({text})",
            hint="Grant its role read and write below the prefix /aiodist/",
        )
    if "authentication failed" in text:
        return AuthenticationError(
            "etcd refused user and password",
            hint="Look at AIODIST_ETCD_USER and AIODIST_ETCD_PASSWORD",
        )
    if "user name is empty" in text:
        return AuthenticationError(
            "etcd wants a user and a password",
            hint="Set AIODIST_ETCD_USER and AIODIST_ETCD_PASSWORD",
        )
    if "authentication is not enabled" in text:
        return NoAuthentication(text)
    if "lease not found" in text:
        return NoLease(text)
    if "lease already exists" in text:
        return LeaseExists(text)
    if code in _PASSING or status >= 500 or "too many requests" in text:
        return EtcdAway(text)
    return RendezvousError(f"etcd refused a request ({text})")


def tls_failure(where: str, said: str) -> Exception:
    """The exception for a connection that TLS ended, by what OpenSSL says."""
    reason = one_line(said.rpartition("] ")[2].partition(" (_ssl")[0], _WORDS)
    if "WRONG_VERSION_NUMBER" in said or "RECORD_LAYER_FAILURE" in said:
        return RendezvousError(
            f"etcd at {where} speaks no TLS there ({reason})", hint="Write etcd:// instead of etcds://"
        )
    if "alert" in reason and any(word in reason for word in ("certificate", "unknown ca", "access denied")):
        return AuthenticationError(
            f"etcd at {where} wants another certificate of this client ({reason})",
            hint="Set AIODIST_ETCD_CERT and AIODIST_ETCD_KEY to one that its trusted CA has signed",
        )
    return EtcdAway(reason)


def _from_another_server(status: int, body: str) -> Exception:
    if "HTTP request to an HTTPS server" in body:
        return RendezvousError("etcd speaks TLS there", hint="Write etcds:// instead of etcd://")
    if status == 404:
        return RendezvousError(
            "what answers there is not etcd's JSON gateway",
            hint="Use etcd 3.4 or later, without --enable-grpc-gateway=false, and its client port",
        )
    if 300 <= status < 400:
        return RendezvousError(
            "the server redirects to another address, which aiodist does not follow: that one would get the "
            "password",
            hint="Name the members of etcd themselves",
        )
    return EtcdAway(f"it answered with HTTP status {status}")
