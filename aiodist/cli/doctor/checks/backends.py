"""Findings on the backends that would carry out operations."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.cli.doctor.finding import Finding
from aiodist.cli.doctor.probes.asking import Answer

HOST = "host"
"""The finding that says whether aiodist works at all."""

# What one of them says when the other has failed: that one's reason is the better one.
_OF_THE_OTHER = ("no answer", "RendezvousTimeout", "RendezvousError", "PeerLost")


def check_host(pair: Sequence[Answer], shared_memory: bool) -> Finding:
    """Whether two ranks did the right thing.

    Args:
        pair: their answers.
        shared_memory: they were expected to use it.
    """
    cost = "nothing works until this does"
    for answer in sorted(pair, key=lambda answer: answer.trouble.startswith(_OF_THE_OTHER)):
        if answer.trouble:
            return Finding(HOST, "missing", answer.trouble, cost, "repair what is named here or above")
    if not all(answer.facts["right"] for answer in pair):
        return Finding(HOST, "missing", "two ranks got wrong results", cost, "report it, with this output")
    if all(answer.facts["shared"] for answer in pair):
        return Finding(HOST, "ok", "two ranks met; send, recv and all_reduce are right, in shared memory")
    value = "two ranks met; send, recv and all_reduce are right, over sockets"
    if not shared_memory:
        return Finding(HOST, "ok", value)
    return Finding(HOST, "limited", value, "ranks of this host could share memory, and do not")


def check_backends(answer: Answer) -> Sequence[Finding]:
    """Say what `backend=None` picks, and the backends of other packages; from the probe `backends`."""
    if answer.trouble:
        return [Finding("backend=None", "missing", answer.trouble, "the default is not known")]
    facts = answer.facts
    if facts["trouble"]:
        found = [
            Finding("backend=None", "missing", facts["trouble"], "only backends that are named can be used")
        ]
    else:
        device = facts["device"] or "not taken"
        found = [Finding("backend=None", "ok", f"host tensors: {facts['host']}; device tensors: {device}")]
    for other in facts["others"]:
        name, package, trouble = other["name"], other["package"], other["trouble"]
        if trouble:
            value = f"{package}: {trouble}"
            found.append(Finding(name, "missing", value, f"backend='{name}' cannot be used"))
        else:
            found.append(Finding(name, "ok", f"by {package}"))
    return found
