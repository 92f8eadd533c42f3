"""The other settings of the environment: the job, and what the user wants to be different."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from aiodist.base.environment.address import plain_host
from aiodist.base.environment.thresholds import Thresholds, thresholds
from aiodist.base.environment.tls import tls_files
from aiodist.base.errors import UsageError

Environ = Mapping[str, str]

DEFAULT_JOB = "aiodist"
Transport = Literal["auto", "shm", "tcp"]
EngineChoice = Literal["auto", "compiled", "python"]

EAGER_BUDGET = 64 * 1024
"""Bytes, frame headers counted, that a (channel, context) may have sent eagerly and unmatched."""

_YES = ("1", "true", "yes", "on")
_NO = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Tuning:
    """The AIODIST_* variables that tune a job, checked.

    Attributes:
        transport: AIODIST_TRANSPORT: 'auto', 'shm' or 'tcp'.
        engine: AIODIST_ENGINE: 'auto', 'compiled' or 'python'; read when aiodist is imported (`_engine`).
        eager: AIODIST_EAGER: whether a small send may complete before its receive; 0 is for tests.
        timeout: AIODIST_TIMEOUT: seconds, for meeting and for operations that say nothing else.
        host: AIODIST_HOST: the address that peers are told, and that is listened on; None: found out.
        interface: AIODIST_SOCKET_IFNAME: take the address of this network interface instead.
        allow_insecure: AIODIST_ALLOW_INSECURE: serve other hosts and users without a secret.
        tls: whether TCP connections use TLS; see `tls`.
        heartbeat: AIODIST_HEARTBEAT: seconds between two signs of life on a control link. A host that falls
            silent is noticed so much later than its kernel's acknowledgements stop.
        warn_after: AIODIST_WARN_AFTER: seconds after which ranks that wait for a process with a blocked event
            loop are told so. That ends nothing.
        evict_after: AIODIST_EVICT_AFTER: seconds after which a process that is stopped counts as lost. Raise
            it to hold a rank in a debugger.
        evict_silent_after: AIODIST_EVICT_SILENT_AFTER: seconds after which a process counts as lost that
            gives no sign of life, where nobody can see whether it is stopped. It may be in a call that holds
            the interpreter. As long as `evict_after` at least.
        stall_after: AIODIST_STALL_AFTER: seconds for which an operation is pending before the job says why it
            stands still; 0: it never does. That ends nothing.
        limits: where one way of doing things gives way to another; see `thresholds`.
    """

    transport: Transport = "auto"
    eager: bool = True
    timeout: float = 300.0
    host: str | None = None
    interface: str | None = None
    allow_insecure: bool = False
    tls: bool = False
    heartbeat: float = 0.25
    warn_after: float = 5.0
    evict_after: float = 30.0
    evict_silent_after: float = 600.0
    stall_after: float = 30.0
    limits: Thresholds = field(default_factory=Thresholds)
    engine: EngineChoice = "auto"

    @property
    def eager_budget(self) -> int:
        """Bytes that may be under way to one peer, in one group, without a place to go."""
        return EAGER_BUDGET if self.eager else 0

    @property
    def agreed(self) -> dict[str, str]:
        """The variables that every rank must set alike, by name."""
        return {
            "AIODIST_TRANSPORT": self.transport,
            "AIODIST_EAGER": str(int(self.eager)),
            "AIODIST_TLS": str(int(self.tls)),
            **{f"AIODIST_{name.upper()}": f"{getattr(self, name):g}" for name in _LIVENESS},
            **self.limits.agreed,
        }


_LIVENESS = ("heartbeat", "warn_after", "evict_after", "evict_silent_after")
_USUAL = Tuning()


def tuning(environ: Environ) -> Tuning:
    """Read and check the tuning variables; an empty one counts as absent.

    Raises:
        UsageError: a value that means nothing; says which do.
    """
    host, interface = own_host(environ), environ.get("AIODIST_SOCKET_IFNAME") or None
    if host and interface:
        raise UsageError(
            f"AIODIST_HOST={host} and AIODIST_SOCKET_IFNAME={interface} are both set", hint="Set one of them"
        )
    heartbeat = _seconds(environ, "AIODIST_HEARTBEAT", _USUAL.heartbeat)
    warn_after = _seconds(environ, "AIODIST_WARN_AFTER", max(_USUAL.warn_after, 4 * heartbeat))
    evict_after = _seconds(environ, "AIODIST_EVICT_AFTER", _USUAL.evict_after)
    for name, value in (("AIODIST_WARN_AFTER", warn_after), ("AIODIST_EVICT_AFTER", evict_after)):
        if value < 4 * heartbeat:
            raise UsageError(
                f"{name}={value:g} is less than four times AIODIST_HEARTBEAT={heartbeat:g}",
                hint="A rank would be taken for dead because one heartbeat is late",
            )
    least = max(_USUAL.evict_silent_after, evict_after)
    evict_silent_after = _seconds(environ, "AIODIST_EVICT_SILENT_AFTER", least)
    if evict_silent_after < evict_after:
        raise UsageError(
            f"AIODIST_EVICT_SILENT_AFTER={evict_silent_after:g} is less than"
            f" AIODIST_EVICT_AFTER={evict_after:g}",
            hint="Less is known of a silent process than of a stopped one: give it more time",
        )
    return Tuning(
        transport=cast("Transport", _one_of(environ, "AIODIST_TRANSPORT", get_args(Transport))),
        engine=cast("EngineChoice", _one_of(environ, "AIODIST_ENGINE", get_args(EngineChoice))),
        eager=switch(environ, "AIODIST_EAGER", True),
        timeout=_seconds(environ, "AIODIST_TIMEOUT", _USUAL.timeout),
        host=host,
        interface=interface,
        allow_insecure=switch(environ, "AIODIST_ALLOW_INSECURE", False),
        tls=tls_files(environ) is not None,
        heartbeat=heartbeat,
        warn_after=warn_after,
        evict_after=evict_after,
        evict_silent_after=evict_silent_after,
        stall_after=_stall_after(environ),
        limits=thresholds(environ),
    )


def job_id(environ: Environ) -> str:
    """The name that sets this job apart from another at the same address; `UsageError` if it is no text."""
    for name in ("AIODIST_JOB", "TORCHELASTIC_RUN_ID"):
        if environ.get(name):
            return job_name(name, environ[name])
    return DEFAULT_JOB


def job_name(origin: str, text: str) -> str:
    """A job's name, if it can be sent: what a shell passed on may not be UTF-8. Otherwise `UsageError`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{origin}={text!r} is not UTF-8", hint="Name the job in plain letters") from None
    return text


def own_host(environ: Environ) -> str | None:
    """AIODIST_HOST: the address of this host that peers are told; None: nothing says."""
    text = environ.get("AIODIST_HOST", "")
    return plain_host(text, "AIODIST_HOST") if text else None


def store_url(environ: Environ) -> str | None:
    """The URL of a store that nobody of the job hosts (AIODIST_STORE=etcd://…), None where it is no URL."""
    text = environ.get("AIODIST_STORE", "")
    return text if "://" in text else None


def _one_of(environ: Environ, name: str, choices: tuple[str, ...]) -> str:
    """A variable that names one of several choices; the first where it is not set; otherwise `UsageError`."""
    value = environ.get(name, "").strip().lower() or choices[0]
    if value not in choices:
        raise UsageError(f"{name}={environ[name]!r} is not known", hint=f"It can be: {', '.join(choices)}")
    return value


def switch(environ: Environ, name: str, default: bool = False) -> bool:
    """A variable that says yes or no, `default` where it says nothing; otherwise `UsageError`."""
    value = environ.get(name, "").strip().lower()
    if not value:
        return default
    if value not in _YES + _NO:
        raise UsageError(f"{name}={environ[name]!r} is neither yes nor no", hint="Write 1 or 0")
    return value in _YES


def _stall_after(environ: Environ) -> float:
    name = "AIODIST_STALL_AFTER"
    return (
        0.0 if environ.get(name, "").strip() in ("0", "0.0") else _seconds(environ, name, _USUAL.stall_after)
    )


def _seconds(environ: Environ, name: str, default: float) -> float:
    text = environ.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise UsageError(
            f"{name}={text!r} is not a positive number of seconds", hint=f"{name}={default:g} is the default"
        )
    return value
