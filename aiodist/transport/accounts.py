"""The fields of a channel's ends that are asked for each small message: with the engine they are C's.

`sending` and `receiving` say what they are. Without the engine they are plain attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiodist import _engine

if TYPE_CHECKING:
    SendAccount = _engine.SendAccount
    ReceiveAccount = _engine.ReceiveAccount
elif _engine.compiled is not None:
    SendAccount = _engine.compiled.SendAccount
    ReceiveAccount = _engine.compiled.ReceiveAccount
else:
    SendAccount = ReceiveAccount = object
