"""The environment: which rank this process is, the secret, TLS, tuning, and variables that nobody reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from aiodist.base.environment import (
    placement,
    secret,
    secret_origin,
    split_address,
    switch,
    tls,
    tuning,
)
from aiodist.base.environment.variables import KNOWN, shown, unknown
from aiodist.base.errors import UsageError
from aiodist.cli.doctor.topic import Answers, Finding, Machine

Environ = Mapping[str, str]

_REFUSED = "no rank with these variables can start"
_NEW_SECRET = "export AIODIST_SECRET=$(openssl rand -hex 32), the same on every host"
_NO_TLS = "off: connections prove the secret; tensors are not authenticated, nothing is encrypted"


def findings(answers: Answers, machine: Machine) -> Iterator[Finding]:
    """Say what the variables mean, and which of them mean nothing."""
    environ = machine.environ
    for name, check in _CHECKS:
        try:
            found = check(environ)
        except UsageError as error:
            found = Finding(name, "missing", error.message, _REFUSED, error.hint)
        if found is not None:
            yield found
    yield from check_variables(environ)


def check_variables(environ: Environ) -> Iterator[Finding]:
    """Every AIODIST_* variable that is set; those that do not exist, too, without their values."""
    for name in sorted(KNOWN & environ.keys()):
        yield Finding(name, "ok", shown(name, environ[name]))
    for name, meant in unknown(environ).items():
        value = f"there is no such variable; did you mean {meant}?" if meant else "there is no such variable"
        fix = f'export {meant}="${name}"; unset {name}' if meant else f"unset {name}"
        yield Finding(name, "limited", value, "nobody reads it", fix)


def _placement(environ: Environ) -> Finding:
    found = placement(environ)
    if found.launcher == "alone":
        return Finding("placement", "ok", "no launcher's variables are set: a process here would be alone")
    where = f"rank {found.rank} of {found.world_size}"
    return Finding("placement", "ok", f"{where}, by {found.launcher} ({found.evidence})")


def _tuning(environ: Environ) -> None:
    tuning(environ)


def _store(environ: Environ) -> None:
    text = environ.get("AIODIST_STORE", "")
    if text and "://" not in text:
        split_address(text, "AIODIST_STORE")


def _secret(environ: Environ) -> Finding:
    """Where the secret comes from; never the secret."""
    origin = secret_origin(environ)
    if origin.startswith(("set", "unusable")):  # where there is none yet, reading it would make it
        secret(environ)
    if not origin.startswith("none:"):
        return Finding("secret", "ok", origin)
    if switch(environ, "AIODIST_ALLOW_INSECURE"):
        cost = "everybody who reaches a port of the job can join it"
        return Finding("secret", "limited", "none, as AIODIST_ALLOW_INSECURE says", cost, _NEW_SECRET)
    return Finding("secret", "limited", origin, "jobs over several hosts are refused", _NEW_SECRET)


def _tls(environ: Environ) -> Finding:
    return Finding("TLS", "ok", _NO_TLS if tls(environ) is None else "on")


# Each raises `UsageError` where the variables are refused, and may have nothing to say where they are not.
_CHECKS: tuple[tuple[str, Callable[[Environ], Finding | None]], ...] = (
    ("placement", _placement),
    ("settings", _tuning),
    ("settings", _store),
    ("secret", _secret),
    ("TLS", _tls),
)
