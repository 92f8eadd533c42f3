"""Loopback, and the address that peers are told."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.base.environment import is_loopback
from aiodist.cli.doctor.finding import Finding
from aiodist.cli.doctor.probes.asking import Answer
from aiodist.cli.doctor.probes.network import Told


def check_loopback(trouble: str) -> Finding:
    """Whether processes of this host reach each other."""
    if not trouble:
        return Finding("loopback", "ok", "127.0.0.1 answers")
    return Finding(
        "loopback",
        "missing",
        f"127.0.0.1: {trouble}",
        "ranks of one host cannot meet, unless MASTER_ADDR is an address of another interface",
        "ip link set lo up",
    )


def check_address(told: Told, outward: str, answer: Answer) -> Sequence[Finding]:
    """Say which address of this host its peers will use.

    Args:
        told: what the environment says.
        outward: this host's address towards others.
        answer: of the probe `address`, about both hosts in `told`.
    """
    found = [_own(told, outward, answer)]
    trouble = answer.trouble or answer.facts["unreachable"]
    if told.there and trouble:
        fix = "export MASTER_ADDR=ADDRESS, of the host of rank 0"
        place = f"{told.there}: {trouble}"
        found.append(Finding("meeting place", "missing", place, "this process cannot meet the others", fix))
    return found


def _own(told: Told, outward: str, answer: Answer) -> Finding:
    choose = f"export AIODIST_HOST={outward or 'ADDRESS'}"
    trouble = told.trouble or answer.trouble or answer.facts["unusable"]
    if told.variable and trouble:
        value = told.trouble or f"{told.own} ({told.variable}) is no address of this host: {trouble}"
        cost = "no rank can listen here, so none can start"
        return Finding("address", "missing", value, cost, f"unset {told.variable}")
    if told.variable:
        return Finding("address", "ok", f"{told.own}, as {told.variable} says")
    own = "" if answer.trouble else answer.facts["own"]
    if own and is_loopback(own) and not is_loopback(told.there):
        value = f"{own}, since {told.there} is a name of loopback here"
        return Finding("address", "limited", value, "ranks of other hosts cannot reach this one", choose)
    if own:
        return Finding("address", "ok", f"{own}, which leads to {told.there}")
    if outward:
        return Finding("address", "ok", f"127.0.0.1 for jobs of this host; {outward} leads to others")
    value = "127.0.0.1 for jobs of this host; it has no route to others"
    return Finding("address", "limited", value, "jobs over several hosts cannot use this one", choose)
