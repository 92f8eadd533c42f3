"""The store beside torch's TCPStore: rates of one client, and a crowd of clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from aiodist.cli.bench.measures import show_seconds
from benchmarks.harness.cases import Case
from benchmarks.harness.crew import Crew, CrewError, free_port
from benchmarks.harness.link import AbsentError
from benchmarks.harness.peers import AIODIST_STORE, TORCH_STORE, Peer
from benchmarks.harness.run import Run, Step
from benchmarks.harness.turns import prepare

OPERATIONS = ("store_get", "store_set", "store_add")


def store(run: Run) -> list[Step]:
    """Each server in a process of its own, with one client process."""
    clients = 200 if run.settings.quick else 1000
    return [
        Step("store", "get, set, add", partial(_rates, run)),
        Step("store", f"{clients} clients", partial(_crowd, run, clients)),
    ]


def _peers(run: Run) -> list[Peer]:
    return [AIODIST_STORE, *[TORCH_STORE] * bool(run.peers("gloo"))]


def _open(peer: Peer) -> Crew:
    crew = Crew(peer, 2)
    try:
        port = free_port()
        crew.call("host", [0], port=port)
        crew.call("dial", [1], port=port)
    except BaseException:
        crew.close()
        raise
    return crew


def _rates(run: Run) -> None:
    crews: dict[str, Crew] = {}
    try:
        for peer in _peers(run):
            crews[peer.name] = _open(peer)
        for what in OPERATIONS:
            clients = {name: client_of(crew) for name, crew in crews.items()}
            plans = {
                name: prepare(client, Case(what), run.settings.budget) for name, client in clients.items()
            }
            taken: dict[str, list[float]] = {name: [] for name in crews}
            for _ in range(run.settings.turns):
                for name, client in clients.items():
                    run.progress.show(f"{name} {what}")
                    samples, inner, _most = plans[name]
                    taken[name] += client("turn", samples=samples, inner=inner)[0]
            for name, values in taken.items():
                run.results.add("store", what, name, values)
    finally:
        for crew in crews.values():
            crew.close()


def client_of(crew: Crew) -> Callable[..., list[Any]]:
    """Orders for rank 1 alone."""
    return lambda do, **arguments: crew.call(do, [1], **arguments)


def _crowd(run: Run, clients: int) -> None:
    for peer in _peers(run):
        run.progress.show(peer.name)
        try:
            with _open(peer) as crew:
                turns = 3 if peer is AIODIST_STORE else 1  # the other's takes long
                limit = 20 if run.settings.quick else 60
                times = [client_of(crew)("crowd", clients=clients, limit=limit)[0] for _ in range(turns)]
        except (AbsentError, CrewError) as error:
            run.results.note(f"store, {clients} clients of {peer.name}: {error}")
            continue
        run.results.add("store", f"{clients} clients", peer.name, times)
        run.progress.show(show_seconds(times[0]))
