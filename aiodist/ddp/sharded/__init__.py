"""ZeRO-1: an optimiser whose state is shared among the ranks (`optimizer`).

Pure are `partition` (which rank has which elements, and what moves), `entries` (an optimiser's state,
described) and `options` (of parameter groups, as plain values). `model` and `shares` have the memory,
`updates` the optimisers. `resharding` brings shares to other members, and `state_dict` to and from
checkpoints.
"""

from __future__ import annotations

from aiodist.ddp.sharded.optimizer import ShardedOptimizer

__all__ = ["ShardedOptimizer"]
