"""The kernel and the processors."""

from __future__ import annotations

from collections.abc import Sequence

from aiodist.base.environment.busy import Disturbance, reasons
from aiodist.cli.doctor.finding import Finding
from aiodist.cli.doctor.probes.system import Kernel, Room

_X86 = ("x86_64", "amd64")
# Of each rank, where every rank has talked to every other: memory, bells, sockets, and watched processes.
_FILES_PER_RANK, _OWN_FILES = 11, 64


def check_kernel(kernel: Kernel) -> Sequence[Finding]:
    """Say what the operating system gives."""
    linux = kernel.system == "Linux"
    machine = kernel.machine.lower()
    found = [
        Finding("platform", "ok", f"{kernel.system} {kernel.release}")
        if linux
        else Finding(
            "platform",
            "limited",
            f"{kernel.system} {kernel.release}",
            "ranks share no memory, and a death is noticed by the end of its connections alone",
            "run it on Linux, in a container say",
        ),
        Finding("processor", "ok", kernel.machine)
        if machine in _X86
        else Finding(
            "processor",
            "limited",
            kernel.machine,
            "ranks of one host send messages; only on x86-64 they work in each other's memory",
        ),
    ]
    if not linux:
        return found
    gib = kernel.memory_bytes / (1 << 30)
    return [
        *found,
        _feature(
            "shared memory",
            kernel.memory,
            f"a sealed memfd of {gib:g} GiB of address space, written and read",
            "all messages between ranks of this host go through sockets",
            "ulimit -v unlimited",
        ),
        _feature(
            "descriptors over sockets",
            kernel.descriptors,
            "sent and received",
            "ranks cannot show each other their memory; all messages go through sockets",
            "run outside of this sandbox",
        ),
        _feature(
            "pidfd",
            kernel.pidfd,
            "a process can be watched",
            "a death is noticed by the end of its connections alone, which a forked child may hold open",
            "use Linux 5.3 or later, and a container that allows pidfd_open",
        ),
        _feature(
            "pidfd of threads",
            kernel.thread_pidfd,
            "a thread can be watched",
            "the death of a process with much memory is noticed 10 to 60 ms later",
            "use Linux 6.9 or later",
        ),
        _feature(
            "TCP_USER_TIMEOUT",
            kernel.user_timeout,
            "can be set",
            "a host that falls silent is noticed after minutes (AIODIST_EVICT_SILENT_AFTER), not in a second",
            "run outside of this sandbox",
        ),
    ]


def check_cores(room: Room, ranks: int) -> Finding:
    """Whether each rank has a core."""
    quota = "no quota" if room.quota is None else f"quota {room.quota:g}"
    value = f"{room.cores:g} for {_ranks(ranks)} (affinity {room.affinity} of {room.cpus} CPUs, {quota})"
    if ranks <= room.cores:
        return Finding("cores", "ok", value)
    return Finding(
        "cores",
        "limited",
        value,
        "ranks take turns on a core: a rank that waits for another waits for its turn, too",
        f"aiodist run --nproc-per-node {max(1, int(room.cores))} …",
    )


def check_busy(seen: Disturbance | None) -> Finding:
    """Whether others take the cores.

    Args:
        seen: the time that they take at present; None where the system does not say.
    """
    if seen is None:
        return Finding("idle", "ok", "this system does not say what others take")
    load = f"load {seen.load:.1f}"
    if why := reasons(seen):
        return Finding(
            "idle",
            "limited",
            f"{why} ({load})",
            "ranks wait for their turn on a core, and figures of aiodist bench are not to be trusted",
            "end what runs beside, or wait for its end" if seen.worst else "",
        )
    return Finding("idle", "ok", f"other processes take {100 * seen.others:.0f} % of the cores ({load})")


def check_open_files(room: Room, ranks: int) -> Finding:
    """Whether each rank may have as many descriptors as it needs."""
    needed = _FILES_PER_RANK * ranks + _OWN_FILES
    allowed = "no limit" if room.open_files < 0 else str(room.open_files)
    value = f"{allowed}; each of {_ranks(ranks)} needs up to {needed}"
    if room.open_files < 0 or room.open_files >= needed:
        return Finding("open files", "ok", value)
    can_raise = room.open_files_hard < 0 or room.open_files_hard >= needed
    return Finding(
        "open files",
        "limited",
        value,
        "ranks that cannot open a connection or map a local peer's memory do not start",
        f"ulimit -n {needed}" if can_raise else f"ulimit -Hn {needed}, as root, and ulimit -n {needed}",
    )


def _feature(name: str, trouble: str, value: str, cost: str, fix: str) -> Finding:
    return Finding(name, "missing", trouble, cost, fix) if trouble else Finding(name, "ok", value)


def _ranks(ranks: int) -> str:
    return f"{ranks} rank" if ranks == 1 else f"{ranks} ranks"
