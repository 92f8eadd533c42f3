"""`aiodist env`: which rank and meeting point aiodist detects in this environment, and why."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from aiodist.base.errors import UsageError
from aiodist.base.terminal import painter, takes_colour
from aiodist.cli.parser import Parser
from aiodist.cli.show import show

_REFUSED = "refused"


def main(argv: Sequence[str]) -> int:
    """Print `name  value` lines; `UsageError` where the environment contradicts itself."""
    parser = Parser("aiodist env", description=__doc__)
    parser.parse_args(list(argv))
    from aiodist import _engine
    from aiodist.base.environment import job_id, placement, secret_origin, tuning
    from aiodist.base.environment.lone_process import chosen, company_of_rank, company_of_script
    from aiodist.base.environment.variables import shown

    place = placement(os.environ)
    company = None
    if place.launcher == "alone":
        company = company_of_script(os.environ)
    elif place.world_size == 1 and not os.environ.get("AIODIST_STORE"):
        company = company_of_rank(os.environ)
    rows = {name: str(value) for name, value in asdict(place).items()}
    if company is not None and not chosen(os.environ):
        rows["others"] = f"{company.said}: {_REFUSED if company.certain else 'warned of'}. {company.hint}"
    else:
        rows["meets"] = _meets(os.environ)
    rows["job"] = job_id(os.environ)
    store = os.environ.get("AIODIST_STORE", "")
    rows["store"] = shown("AIODIST_STORE", store) or "none: rank 0 hosts it"
    rows["secret"] = secret_origin(os.environ)
    rows["tls"] = "on" if tuning(os.environ).tls else "off"
    rows["engine"] = _engine.describe()
    width = max(map(len, rows))
    paint = painter(takes_colour(sys.stdout.isatty(), os.environ))
    trouble = {name for name in ("others", "meets") if _REFUSED in rows.get(name, "")}
    lines = [
        f"{paint('dim', f'{name:<{width}}')}  {paint('yellow', value) if name in trouble else value}"
        for name, value in rows.items()
    ]
    show("\n".join(lines))
    return 0


def _meets(environ: Mapping[str, str]) -> str:
    """Where `init_process_group()` would meet the others; or why it would be refused, and what to do."""
    from aiodist.net.sockets import join_address
    from aiodist.rendezvous.invitation import Invitation
    from aiodist.rendezvous.meeting_point import meeting_point

    try:
        point = meeting_point(Invitation.of("env://", -1, -1, 300, environ))
    except UsageError as error:
        return f"nowhere, init_process_group() would be {_REFUSED}: {error}"
    host, port = point.address
    return f"{point.way.value}, {join_address(host, port)}" if host else point.way.value
