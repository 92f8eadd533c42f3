"""The secret of a job that our launcher starts."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from aiodist.base.environment import given_secret, home_secret, is_loopback, switch
from aiodist.base.errors import UsageError


def job_secret(environ: Mapping[str, str], nnodes: int, master_addr: str) -> str:
    """The secret of this job's agents and workers.

    As `environment.secret` finds it, but that one node alone gets a random one, made for this job, where
    none is given. With none, only loopback, unless AIODIST_ALLOW_INSECURE=1.

    Raises:
        UsageError: a file that should hold it cannot be trusted or read; or there is no secret.
    """
    key = given_secret(environ)
    if not key and nnodes == 1:
        return secrets.token_hex(32)
    key = key or home_secret(environ)
    if not key and not is_loopback(master_addr) and not switch(environ, "AIODIST_ALLOW_INSECURE"):
        raise UsageError(
            "the nodes have no common secret, and ~/.aiodist/secret cannot be made or read",
            hint="Set AIODIST_SECRET to the same value on every node, or AIODIST_ALLOW_INSECURE=1",
        )
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise UsageError("the job's secret is not text", hint="Write a line of letters and digits") from None
