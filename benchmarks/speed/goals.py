"""The project's goals, as a table: see `bars` for what each line means."""

from __future__ import annotations

from benchmarks.harness.cases import COLLECTIVES
from benchmarks.speed.bars import ALL, Bar, Compared, Floor, Limited

_KIB, _MIB = 1 << 10, 1 << 20
_SMALL, _LARGE = (0, _KIB), (_MIB, ALL[1])
_REDUCE = ("all_reduce",)
_MESSAGES = ("p2p",)
_REQUESTS = tuple(f"{count} {what}" for what in ("objects", "tensors") for count in (32, 256))
_CALLS = tuple(f"{count} {what}" for what in ("calls", "functions") for count in (32, 256))
_STAGED = Floor("passes-staged")

SMALL: tuple[Bar, ...] = (
    Compared(
        "collectives ≤ 1 KiB: time / Open MPI, on average",
        (*COLLECTIVES, "barrier"),
        "openmpi",
        1.6,
        1,
        faster=False,
        sizes=_SMALL,
        mean=True,
    ),
    Compared(
        "collectives ≤ 1 KiB: time / Open MPI",
        (*COLLECTIVES, "barrier"),
        "openmpi",
        2.5,
        faster=False,
        sizes=_SMALL,
        floor=_STAGED,
    ),
    Compared(
        "five small collectives in a row: time / Open MPI",
        ("five",),
        "openmpi",
        2,
        1,
        faster=False,
        sizes=_SMALL,
    ),
    Compared(
        "collectives ≤ 1 KiB: gloo's time / ours",
        (*COLLECTIVES, "barrier", "five"),
        "gloo",
        20,
        sizes=_SMALL,
        floor=_STAGED,
    ),
    Compared(
        "collectives of 64 KiB: time / Open MPI",
        COLLECTIVES,
        "openmpi",
        1.3,
        faster=False,
        sizes=(64 * _KIB, 64 * _KIB),
        floor=_STAGED,
    ),
    Compared(
        "a call of a new shape: time / the same call again",
        ("all_reduce", "broadcast", "all_gather"),
        "aiodist-warm",
        3,
        faster=False,
        suite="cold",
    ),
)

MESSAGES: tuple[Bar, ...] = (
    Compared(
        "messages of 8 B, half there and back: time / Open MPI",
        _MESSAGES,
        "openmpi",
        3,
        faster=False,
        sizes=(8, 8),
    ),
    Compared("messages of 8 B: gloo's time / ours", _MESSAGES, "gloo", 15, sizes=(8, 8)),
    Compared(
        "messages of 8 B: time / asyncio's streams",
        _MESSAGES,
        "streams",
        0.1,
        faster=False,
        sizes=(8, 8),
    ),
    Compared(
        "messages of 64 MiB: speed / Open MPI",
        _MESSAGES,
        "openmpi",
        1,
        sizes=(64 * _MIB, 64 * _MIB),
        floor=_STAGED,
    ),
    Compared(
        "32 and 256 calls at once: time / asyncio's streams",
        _CALLS,
        "streams",
        0.9,
        0.6,
        faster=False,
        suite="service",
    ),
    Compared(
        "32 and 256 calls at once: processor time / asyncio's streams",
        tuple(f"{what}, processor" for what in _CALLS),
        "streams",
        1.1,
        faster=False,
        suite="service",
    ),
    Compared(
        "32 and 256 messages there and back: rate / asyncio's streams",
        _REQUESTS,
        "streams",
        1.5,
        suite="service",
    ),
    Compared(
        "32 and 256 messages there and back: processor time / asyncio's streams",
        tuple(f"{what}, processor" for what in _REQUESTS),
        "streams",
        1,
        faster=False,
        suite="service",
    ),
)

LARGE: tuple[Bar, ...] = (
    Compared("all_reduce ≥ 1 MiB: speed / Open MPI", _REDUCE, "openmpi", 1.2, 2, sizes=_LARGE, floor=_STAGED),
    Compared(
        "broadcast, all_gather, all_to_all, scatter, gather ≥ 1 MiB: speed / Open MPI",
        ("broadcast", "all_gather", "all_to_all", "scatter", "gather"),
        "openmpi",
        1,
        sizes=_LARGE,
        floor=_STAGED,
    ),
    Compared(
        "reduce_scatter ≥ 1 MiB: speed / Open MPI",
        ("reduce_scatter",),
        "openmpi",
        1.5,
        sizes=_LARGE,
        floor=_STAGED,
    ),
    Compared(
        "all_reduce ≥ 1 MiB from pg.empty: time of the passes / ours",
        _REDUCE,
        "passes",
        0.9,
        ours="aiodist-empty",
        sizes=_LARGE,
    ),
)

CROWDED: tuple[Bar, ...] = (
    Compared("4 and 8 ranks, all_reduce: speed / gloo", _REDUCE, "gloo", 5, ranks=(4, 8), floor=_STAGED),
    Compared(
        "4 and 8 ranks, all_reduce of 8 B: time / Open MPI",
        _REDUCE,
        "openmpi",
        3,
        faster=False,
        ranks=(4, 8),
        sizes=(8, 8),
    ),
    Compared(
        "4 and 8 ranks, all_reduce ≥ 64 KiB: speed / Open MPI",
        _REDUCE,
        "openmpi",
        1,
        ranks=(4, 8),
        sizes=(64 * _KIB, ALL[1]),
        floor=_STAGED,
    ),
)

HALVES: tuple[Bar, ...] = tuple(
    Compared(
        f"{dtype} all_reduce ≥ 1 MiB: busbw / gloo",
        _REDUCE,
        "gloo",
        1,
        3,
        suite="halves",
        dtypes=(dtype,),
        sizes=_LARGE,
    )
    for dtype in ("float16", "bfloat16")
)

TCP: tuple[Bar, ...] = (
    Compared(
        "TCP only ≤ 64 KiB: speed / gloo",
        _REDUCE,
        "gloo",
        2.5,
        ours="aiodist-tcp",
        suite="tcp",
        sizes=(0, 64 * _KIB),
    ),
    Compared(
        "TCP only > 64 KiB: speed / gloo",
        _REDUCE,
        "gloo",
        1.2,
        ours="aiodist-tcp",
        suite="tcp",
        sizes=(64 * _KIB + 1, ALL[1]),
    ),
    Compared(
        "TCP only > 64 KiB: speed / raw sockets",
        _REDUCE,
        "sockets",
        0.95,
        ours="aiodist-tcp",
        suite="tcp",
        sizes=(64 * _KIB + 1, ALL[1]),
    ),
)

HOSTS: tuple[Bar, ...] = tuple(
    Compared(
        f"4 hosts × 2 ranks, cables of {rate}: speed / raw sockets",
        ("all_reduce", "broadcast", "all_gather"),
        "sockets",
        0.95,
        ranks=(8,),
        suite=f"hosts, {rate}",
    )
    for rate in ("100 Mbit/s", "1 Gbit/s")
)

MPI: tuple[Bar, ...] = (
    Limited(
        "backend mpi, all_reduce of 8 B: time above a barrier of the host backend",
        "mpi",
        ("aiodist-openmpi above a barrier", "aiodist-mpich above a barrier"),
        10e-6,
    ),
    *(
        Compared(
            f"backend mpi, all_reduce ≥ 16 MiB: speed / {title}",
            _REDUCE,
            name,
            0.95,
            ours=f"aiodist-{name}",
            suite="mpi",
            sizes=(16 * _MIB, ALL[1]),
        )
        for name, title in (("openmpi", "Open MPI"), ("mpich", "MPICH"))
    ),
)

BESIDE: tuple[Bar, ...] = (
    Limited(
        "all_reduce beside NumPy products: both / what the cores allow",
        "overlap",
        ("numpy 1×", "numpy 3×"),
        1.3,
        unit="ratio",
    ),
    Limited(
        "all_reduce beside pure Python: both / what the cores allow",
        "overlap",
        ("python 1×", "python 3×"),
        2,
        unit="ratio",
    ),
    Compared("64 all_reduces of 1 KiB in flight: rate / gloo", ("inflight",), "gloo", 100),
    Limited("lateness of a 1 ms ticker, p99", "lateness", ("p99",), 5e-3, 2e-3),
    Limited("lateness with 1,000 of 1 KiB in flight over 10 groups, p99", "load", ("p99",), 5e-3),
)

MEETING: tuple[Bar, ...] = (
    *(
        Compared(
            f"init + first all_reduce, 2 to 128 ranks: time / gloo's {'best' if best else 'median'}",
            ("init + first all_reduce",),
            "gloo",
            1,
            faster=False,
            ranks=(2, 16, 64, 128),
            suite="init",
            best=best,
        )
        for best in (False, True)
    ),
    Limited(
        "descriptors of a rank for each peer of its host, 16 ranks",
        "init",
        ("descriptors for each peer, most",),
        3,
        unit="",
    ),
    Limited(
        "ranks of 256 that meet and compute with 1,024 descriptors each",
        "init",
        ("ranks that met",),
        256,
        unit="",
        faster=True,
        ranks=(256,),
    ),
    *(
        Limited(
            f"memory of a rank above its tensors, {ranks} ranks",
            "memory",
            ("above tensors",),
            16 << 20,
            unit="B",
            ranks=(ranks,),
        )
        for ranks in (4, 64)
    ),
)

JOBS: tuple[Bar, ...] = (
    Compared("store get: rate / TCPStore", ("store_get",), "tcpstore", 2, ranks=(), suite="store"),
    Compared("store add: rate / TCPStore", ("store_add",), "tcpstore", 1.3, ranks=(), suite="store"),
    Limited("1,000 clients connect and pass a barrier", "store", ("1000 clients",), 1.0),
    Compared(
        "one-collective job: aiodist run / torchrun",
        ("launch to exit",),
        "gloo",
        1 / 3,
        faster=False,
        suite="launch",
    ),
    Compared(
        "one-collective job: aiodist run / mpirun (Open MPI)",
        ("launch to exit",),
        "openmpi",
        0.7,
        faster=False,
        suite="launch",
    ),
)

BARS: tuple[Bar, ...] = (
    *SMALL,
    *MESSAGES,
    *LARGE,
    *CROWDED,
    *HALVES,
    *TCP,
    *HOSTS,
    *MPI,
    *BESIDE,
    *MEETING,
    *JOBS,
)
