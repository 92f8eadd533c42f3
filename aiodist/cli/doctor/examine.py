"""All probes and all checks: from a machine to sections of findings."""

from __future__ import annotations

import contextlib
import platform
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from aiodist.base.environment import (
    Placement,
    placement,
    secret,
    secret_origin,
    store_address,
    store_url,
    tls,
    tuning,
)
from aiodist.base.environment.busy import disturbance_now
from aiodist.base.environment.placement import LAUNCHERS
from aiodist.base.errors import UsageError
from aiodist.cli.doctor.checks import backends, devices, libraries, network, packages, settings, system
from aiodist.cli.doctor.finding import Finding, Section
from aiodist.cli.doctor.probes.asking import Answer, Question, ask
from aiodist.cli.doctor.probes.network import Told, free_port, loopback, told
from aiodist.cli.doctor.probes.system import Kernel, kernel, room
from aiodist.cli.doctor.text import describe
from aiodist.net.sockets import outward

LIMIT = 20.0
"""Seconds for drivers and libraries to answer."""

Environ = Mapping[str, str]
T = TypeVar("T")

# Of a process that mpirun or srun started: a child with them would take itself for that rank.
_OF_MPI = ("PMI_", "PMIX_", "PRTE_", "OMPI_COMM_", "OMPI_UNIVERSE_", "HYDRA_", "HYDI_", "MPI_LOCAL", "SLURM_")
_LOOK = 0.3  # seconds for which the cores are looked at, before the probes take them
_MEETING = 10.0  # seconds for the pair: less than LIMIT, so that who waits in vain can say so


def examine(
    environ: Environ,
    *,
    ranks: int | None,
    limit: float,
    waiting: Callable[[str, int, int], object],
) -> list[Section]:
    """Look at everything.

    Args:
        environ: the environment variables.
        ranks: how many ranks this host is to have; None: as many as a launcher says, else one for each core.
        limit: seconds for drivers and libraries to answer.
        waiting: called with the name of the probe that is waited for, how many have answered, of how many.
    """
    place = _tried(lambda: placement(environ))
    space, system_seen, addresses = room(), kernel(), told(environ)
    others = disturbance_now(_LOOK)
    ranks = ranks or _ranks(place) or max(1, int(space.cores))
    with _folder() as folder:
        questions = _questions(environ, addresses, limit, folder)
        answers = dict(zip(questions, ask(list(questions.values()), limit, waiting), strict=True))
    count = len(answers["driver"].facts.get("devices", ()))
    return [
        _section("system", lambda: system.check_kernel(system_seen)),
        _section("python", lambda: _packages(answers)),
        _section(
            "room",
            lambda: [
                system.check_cores(space, ranks),
                system.check_busy(others),
                system.check_open_files(space, ranks),
            ],
        ),
        _section("network", lambda: _network(addresses, answers["address"])),
        _section("settings", lambda: _settings(environ, place)),
        _section("gpu", lambda: devices.check_devices(answers["driver"], answers["cupy"], ranks)),
        _section(
            "libraries",
            lambda: [libraries.check_torch(answers["torch"], count), libraries.check_mpi(answers["mpi"])],
        ),
        _section("backends", lambda: _backends(answers, system_seen, environ)),
    ]


def _questions(environ: Environ, addresses: Told, limit: float, folder: str) -> dict[str, Question]:
    free = _without_launcher(environ)
    where = f"tcp://127.0.0.1:{free_port()}"
    if folder:
        where = (Path(folder) / "meeting").as_uri()  # surer: nobody else can take it
        free.setdefault("CUPY_CACHE_DIR", folder)  # CuPy makes one, else in the home
    meeting = (where, f"{min(_MEETING, limit / 2):g}")
    with_secret = _with_secret(free)
    return {
        "rank 0": Question("pair", ("0", *meeting), with_secret),
        "rank 1": Question("pair", ("1", *meeting), with_secret),
        "driver": Question("driver", (), free),
        "cupy": Question("cupy", (), free),
        "torch": Question("torch", (), free),
        "mpi": Question("mpi", (), _without_mpi(free)),
        "backends": Question("backends", (), _without_mpi(free)),
        "address": Question("address", (addresses.own, addresses.there), free),
        **{name: Question("package", (name,), free) for name in packages.NAMES},
    }


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A folder for what the probes write; '' where nothing can be written."""
    try:
        made = tempfile.TemporaryDirectory(prefix="aiodist-doctor-")
    except OSError:
        yield ""
        return
    with made as folder:
        yield folder


def _ranks(place: Placement | UsageError) -> int | None:
    if isinstance(place, UsageError) or place.launcher == "alone":
        return None
    return place.local_world_size


def _packages(answers: Mapping[str, Answer]) -> Iterable[Finding]:
    yield Finding("python", "ok", f"{platform.python_version()}, {sys.executable}")
    for name in packages.NAMES:
        yield packages.check_package(name, answers[name])


def _network(addresses: Told, answer: Answer) -> Iterable[Finding]:
    yield network.check_loopback(loopback())
    yield from network.check_address(addresses, outward(), answer)


def _settings(environ: Environ, place: Placement | UsageError) -> Iterable[Finding]:
    yield settings.check_placement(place)
    tuned = _tried(lambda: tuning(environ))
    where = _tried(lambda: store_url(environ) or store_address(environ))
    for value in (tuned, where):
        yield from settings.check_tuning(value if isinstance(value, UsageError) else None)
    origin = secret_origin(environ)
    # Where there is none yet, reading it would make it.
    key = _tried(lambda: secret(environ)) if origin.startswith(("set", "unusable")) else b""
    insecure = not isinstance(tuned, UsageError) and tuned.allow_insecure
    yield settings.check_secret(origin, key if isinstance(key, UsageError) else None, insecure)
    keys = _tried(lambda: tls(environ))
    yield settings.check_tls(keys is not None, keys if isinstance(keys, UsageError) else None)
    yield from settings.check_variables(environ)


def _backends(answers: Mapping[str, Answer], seen: Kernel, environ: Environ) -> Iterable[Finding]:
    shared_memory = not (seen.memory or seen.descriptors) and environ.get("AIODIST_TRANSPORT") != "tcp"
    yield backends.check_host([answers["rank 0"], answers["rank 1"]], shared_memory)
    yield from backends.check_backends(answers["backends"])


def _section(title: str, checks: Callable[[], Iterable[Finding]]) -> Section:
    """A section of findings; a check that fails itself is one, too: the others' are worth showing."""
    try:
        return Section(title, list(checks()))
    except Exception as error:
        return Section(title, [Finding(title, "limited", f"could not be looked at: {describe(error)}")])


def _tried(read: Callable[[], T]) -> T | UsageError:
    try:
        return read()
    except UsageError as error:
        return error


def _without_launcher(environ: Environ) -> dict[str, str]:
    """The environment of a process that no launcher started."""
    theirs = {"AIODIST_STORE", "AIODIST_NEWCOMER", "MASTER_ADDR", "MASTER_PORT"}
    for row in LAUNCHERS:
        theirs.update(
            row.evidence, row.any_of, row.rank, row.world_size, row.local_rank, row.local_world_size
        )
        theirs.update(row.node_rank, row.node_count)
    return {name: value for name, value in environ.items() if name not in theirs}


def _without_mpi(environ: Environ) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(_OF_MPI)}


def _with_secret(environ: Environ) -> dict[str, str]:
    """The environment, with a secret for this occasion if it has none: nothing is made in the user's home."""
    if environ.get("AIODIST_SECRET") or environ.get("AIODIST_SECRET_FILE"):
        return dict(environ)
    return {**environ, "AIODIST_SECRET": secrets.token_hex(16)}
