"""The host backend: two ranks that meet on this host, and add and pass on numbers."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from aiodist.cli.doctor.system import shares_memory
from aiodist.cli.doctor.topic import Answers, Finding, Machine, ProcessAnswer, ProcessQuestion

_MEETING = 10.0  # seconds for the pair: less than there are, so that a rank which waits in vain can say so
# What one of them says when the other has failed: that one's reason is the better one.
_OF_THE_OTHER = ("no answer", "RendezvousTimeout", "RendezvousError", "PeerLost")


def questions(machine: Machine) -> dict[str, ProcessQuestion]:
    """Each rank is a process of its own. They meet at a place that nobody else knows."""
    folder = machine.folder
    # A file is surer: nobody else can take it.
    where = (Path(folder) / "meeting").as_uri() if folder else f"tcp://127.0.0.1:{_free_port()}"
    limit = f"{min(_MEETING, machine.limit / 2):g}"
    return {f"rank {rank}": ProcessQuestion("two ranks", examine, (rank, where, limit)) for rank in "01"}


def examine(rank: str, where: str, limit: str) -> dict[str, object]:
    """Add and pass on numbers → 'right': the results are; 'shared': it was done in shared memory.

    Args:
        rank: '0' or '1'.
        where: they meet, a URL.
        limit: seconds.
    """
    import numpy as np

    from aiodist.group.runtime.init import init_process_group
    from aiodist.group.runtime.running import run

    async def pair() -> dict[str, object]:
        group = await init_process_group("host", where, timeout=float(limit), world_size=2, rank=int(rank))
        async with group as pg:
            mine = np.arange(1000, dtype=np.float64) + 10000 * pg.rank
            theirs = np.zeros_like(mine)
            sent = pg.send(mine, 1 - pg.rank)
            await pg.recv(theirs, 1 - pg.rank)
            await sent
            total = mine.copy()
            await pg.all_reduce(total)
            expected = np.arange(1000, dtype=np.float64) + 10000 * (1 - pg.rank)
            right = bool((theirs == expected).all() and (total == mine + theirs).all())
            return {"right": right, "shared": _mapped() > 1}

    return run(pair())


def findings(answers: Answers, machine: Machine) -> Iterator[Finding]:
    """Say whether the two did the right thing, and whether they shared memory where that is expected."""
    expected = machine.environ.get("AIODIST_TRANSPORT") != "tcp" and shares_memory()
    yield check([answers["rank 0"], answers["rank 1"]], expected)


def check(pair: Sequence[ProcessAnswer], shared_memory: bool) -> Finding:
    """Whether aiodist works at all.

    Args:
        pair: the answers of both ranks.
        shared_memory: they were expected to use it.
    """
    cost = "nothing works until this does"
    for answer in sorted(pair, key=lambda answer: answer.trouble.startswith(_OF_THE_OTHER)):
        if answer.trouble:
            return Finding("host", "missing", answer.trouble, cost, "repair what is named here or above")
    if not all(answer.facts["right"] for answer in pair):
        return Finding("host", "missing", "two ranks got wrong results", cost, "report it, with this output")
    value = "two ranks met; send, recv and all_reduce are right"
    if all(answer.facts["shared"] for answer in pair):
        return Finding("host", "ok", f"{value}, in shared memory")
    value = f"{value}, over sockets"
    if not shared_memory:
        return Finding("host", "ok", value)
    return Finding("host", "limited", value, "ranks of this host could share memory, and do not")


def _free_port() -> int:
    """A port of loopback that was free a moment ago; 1, where nobody listens, if there is none."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port: int = sock.getsockname()[1]
            return port
    except OSError:
        return 1


def _mapped() -> int:
    """The number of processes whose shared segment is mapped here: this one's, and the peer's."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return 0
    return len({line.split()[4] for line in lines if "/memfd:aiodist" in line})
