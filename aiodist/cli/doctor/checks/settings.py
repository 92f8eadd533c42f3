"""Findings on the environment: who this process is, the secret, TLS, tuning, and what nobody reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiodist.base.environment import Placement
from aiodist.base.environment.variables import KNOWN, shown, unknown
from aiodist.base.errors import UsageError
from aiodist.cli.doctor.finding import Finding

_REFUSED = "no rank with these variables can start"


def check_placement(found: Placement | UsageError) -> Finding:
    """Say which rank this process would be."""
    if isinstance(found, UsageError):
        return Finding("placement", "missing", found.message, _REFUSED, found.hint)
    if found.launcher == "alone":
        return Finding("placement", "ok", "no launcher's variables are set: a process here would be alone")
    where = f"rank {found.rank} of {found.world_size}"
    return Finding("placement", "ok", f"{where}, by {found.launcher} ({found.evidence})")


def check_tuning(trouble: UsageError | None) -> Sequence[Finding]:
    """A value that means nothing."""
    if trouble is None:
        return []
    return [Finding("settings", "missing", trouble.message, _REFUSED, trouble.hint)]


def check_secret(origin: str, trouble: UsageError | None, allow_insecure: bool) -> Finding:
    """Say where the secret comes from; never the secret.

    Args:
        origin: of `environment.secret_origin`.
        trouble: why it is not to be used, if so.
        allow_insecure: the user does without.
    """
    if trouble is not None:
        return Finding("secret", "missing", trouble.message, _REFUSED, trouble.hint)
    if not origin.startswith("none:"):
        return Finding("secret", "ok", origin)
    if allow_insecure:
        cost = "everybody who reaches a port of the job can join it"
        return Finding("secret", "limited", "none, as AIODIST_ALLOW_INSECURE says", cost, _SECRET)
    return Finding("secret", "limited", origin, "jobs over several hosts are refused", _SECRET)


_SECRET = "export AIODIST_SECRET=$(openssl rand -hex 32), the same on every host"


_NO_TLS = "off: connections prove the secret; tensors are not authenticated, nothing is encrypted"


def check_tls(on: bool, trouble: UsageError | None) -> Finding:
    """Whether connections between hosts are encrypted."""
    if trouble is not None:
        return Finding("TLS", "missing", trouble.message, _REFUSED, trouble.hint)
    return Finding("TLS", "ok", "on" if on else _NO_TLS)


def check_variables(environ: Mapping[str, str]) -> Sequence[Finding]:
    """Every AIODIST_* variable that is set; those that do not exist, too, without their values."""
    found = [Finding(name, "ok", shown(name, environ[name])) for name in sorted(KNOWN & environ.keys())]
    for name, meant in unknown(environ).items():
        value = f"there is no such variable; did you mean {meant}?" if meant else "there is no such variable"
        fix = f'export {meant}="${name}"; unset {name}' if meant else f"unset {name}"
        found.append(Finding(name, "limited", value, "nobody reads it", fix))
    return found
