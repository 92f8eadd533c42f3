"""The store as a pure state machine: `handle(event, now) → effects`. No I/O, no clock, no randomness.

Rules:
- A request that waits (wait, multi_get, gather) is answered when it can be, or fails at its deadline,
  which the machine keeps: so the failure can say what was missing.
- A request happens once, however often it is sent: what changes the store leaves its answer behind under
  (client, id) until the client says that it has it. A client may therefore be away for up to
  `SESSION_GRACE` seconds and carry on.
- A lease says that its holder lives. It ends when it was not renewed for its ttl. One that a key has for
  itself (a claim, or a ttl of its own) also ends `RETURN_GRACE` seconds after its holder was cut off without
  goodbye: processes that die are missed soon. One of many keys does not: its holder counts on the ttl.
- Only a `Tick` ends what is due. Whoever feeds the machine hands it all requests that have arrived first,
  so a machine that was held up for seconds takes no lease from a holder that has renewed it in time.
- Each change has a revision, counted over the whole store; watches report it.
- All times are `now`, in seconds, of any clock that only goes forward.
- Once it was told that it has `restarted`, it says what changed (`take_changes`). From these changes another
  makes the same store (`replay`); times are not among them, so a lease begins anew.
- What clients can make it keep is bounded: by `limit` bytes, and a number of waiting calls.

A gather is the one meeting primitive: each rank of a world leaves a value under a name and all get
everybody's, in rank order, in one round trip. A barrier is a gather of nothing. When all have come, the name
is free for the next round.

`StoreMachine` (in `store_machine`) takes events in and owns the parts, each of which stands alone:

    budget      the bounds: bytes, and calls that wait
    changes     what changed, and the revision that counts it
    timers      what ends when
    sessions    clients, and the answers that are kept for them
    entries     what a key holds
    leases      who holds leases, and until when
    keys        keys and values, and the keys of leases
    waits       who waits for keys
    watches     who is told of changes
    gathers     meetings
"""

from aiodist.rendezvous.machine.budget import DEFAULT_LIMIT
from aiodist.rendezvous.machine.changes import Change
from aiodist.rendezvous.machine.sessions import SESSION_GRACE
from aiodist.rendezvous.machine.store_machine import RETURN_GRACE, StoreMachine

__all__ = ["DEFAULT_LIMIT", "RETURN_GRACE", "SESSION_GRACE", "Change", "StoreMachine"]
