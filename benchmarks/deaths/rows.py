"""The tests: what is injected, what is expected, and who counts it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from benchmarks.deaths import (
    churn,
    clogs,
    crashes,
    elsewhere,
    endings,
    frozen,
    holes,
    kills,
    mistakes,
    newcomers,
    regroups,
)
from benchmarks.deaths.figures import Figures
from benchmarks.deaths.scale import Scale


@dataclass(frozen=True)
class Row:
    """One test.

    Attributes:
        inject: what is done.
        expected: what has to happen.
        run: does it; None where nothing here can.
        reason: why not, then.
    """

    inject: str
    expected: str
    run: Callable[[Scale], Coroutine[Any, Any, list[Figures]]] | None
    reason: str = ""


ROWS: dict[int, Row] = {
    1: Row(
        "SIGKILL of any rank in the middle of all_reduces",
        "every pending Work of every survivor raises `PeerLost`, with rank, operation and number",
        kills.run,
    ),
    2: Row("a crash at every step of a life", "the same; no wrong result is reported as right", crashes.run),
    3: Row(
        "SIGSTOP past the limit, then SIGCONT",
        "`PeerLost` at the limit; the resumed rank gets `Evicted`",
        frozen.stopped,
    ),
    4: Row(
        "a call that holds the interpreter, also for longer than AIODIST_EVICT_AFTER",
        "nobody is given up; who waits longer than AIODIST_WARN_AFTER is told",
        frozen.held,
    ),
    5: Row("a host that the network swallows", "an error within 1.5 s", holes.run),
    6: Row(
        "FIN, RST, half-close, a frame cut off",
        "an error at once; queued Works fail; the CPU is idle",
        endings.run,
    ),
    7: Row(
        "partitions, both ways and one way",
        "at most one part goes on; the others get `QuorumLost` or `Evicted`",
        regroups.partitions,
    ),
    8: Row(
        "a second and a third death while regrouping", "the same members on all survivors", regroups.deaths
    ),
    9: Row(
        "SIGKILL of a GPU rank in the middle of a NCCL operation",
        "the stream is free within 2 s; the rebuilt group works",
        None,
        "it needs a GPU, and none was here",
    ),
    10: Row("all killed but one", "it goes on alone, or gets `QuorumLost`, by policy", regroups.all_but_one),
    11: Row(
        "a newcomer in the middle of an operation; one that dies on its way in",
        "operations go on; members stay members",
        newcomers.run,
    ),
    12: Row("ways that clog, slow down and come free", "nothing fails", clogs.run),
    13: Row(
        "deaths, freezes and newcomers, one every 0.2 to 1 s",
        "exact sums in every epoch; what survivors hold does not grow",
        churn.run,
    ),
    14: Row(
        "SIGKILL of the store under load, and a restart",
        "no acknowledged write is lost; `add` counts once",
        elsewhere.store_kills,
    ),
    15: Row(
        "a torn tail of its log, a flipped bit, a full disk, a failing fsync",
        "a torn tail is cut; damage in the middle refuses to start; what failed is not acknowledged",
        elsewhere.suite(
            15,
            "tests of the log",
            "tests/rendezvous/test_journal.py",
            "tests/rendezvous/test_disk.py",
            "tests/rendezvous/test_durable_server.py",
        ),
    ),
    16: Row(
        "the store's host lost for good",
        "a clear end, or a standby; the old server is fenced",
        elsewhere.suite(
            16,
            "tests of a store in etcd",
            "tests/rendezvous/etcd/test_store.py",
            "tests/rendezvous/etcd/test_faults.py",
        ),
    ),
    17: Row(
        "the wall clock is set, a loop pauses",
        "no lease is lost wrongly",
        elsewhere.suite(17, "tests of leases", "tests/rendezvous/test_lease.py"),
    ),
    18: Row(
        "no secret, a wrong one, replay, reflection, flipped MAC, downgrade",
        "closed before anything is parsed; the reason is logged; the job goes on",
        elsewhere.suite(
            18,
            "tests of the handshake and admission",
            "tests/security/test_attacks.py",
            "tests/net/wire/test_handshake.py",
            "tests/net/wire/test_local_message.py",
            "tests/net/test_secure.py",
        ),
    ),
    19: Row(
        "fuzzed bytes; thousands of silent connections",
        "a clean close; bounded memory; others are served",
        elsewhere.fuzz,
    ),
    20: Row(
        "operations that disagree, awaits cancelled, loops ended, forks",
        "`CollectiveMismatch` naming ranks; peers complete; no task is left over",
        mistakes.run,
    ),
    21: Row(
        "an event loop that is blocked for 60 s",
        "nobody is given up; who waits longer than AIODIST_WARN_AFTER is told the rank and the line",
        frozen.blocked,
    ),
}
