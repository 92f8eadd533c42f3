"""Stores at which this process has formed a group.

Where it meets next, at the same address or file, is another one: who is early there must not take the one
before, which its host may still be closing.
"""

from __future__ import annotations

_instances: set[bytes] = set()


def remember(instance: bytes) -> None:
    """Note that a group was formed at this very store."""
    _instances.add(instance)


def met_before(instance: bytes) -> bool:
    """Whether one was."""
    return instance in _instances
