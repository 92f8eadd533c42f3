"""How the agents of a job meet, before any worker starts.

Node 0 hosts two stores: the job's own on a port that the system picks, and the *doorbell* on
master_addr:master_port, where every agent checks in and learns the first one's address. When all have
moved over, the doorbell is closed again: MASTER_PORT is free for what the workers want to do with it.
One node alone needs no doorbell: its MASTER_PORT is a free port that nobody holds.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aiodist.environment import job_id
from aiodist.errors import RendezvousError, RendezvousTimeout, UsageError
from aiodist.launch.nodes import Nodes
from aiodist.launch.plan import Plan, Seat
from aiodist.launch.secret import is_loopback, job_secret

if TYPE_CHECKING:
    from aiodist.rendezvous.client import TcpStore
    from aiodist.rendezvous.server import StoreServer

_PATIENCE = 10.0  # seconds before we say whom we wait for
Say = Callable[[str], None]


async def meet(plan: Plan, environ: Mapping[str, str], say: Say) -> Nodes:
    """Meet the other nodes' agents and host or join the job's store.

    Args:
        plan: this node's.
        environ: for the job's secret.
        say: shows one line to the operator, for a wait that gets long.

    Returns:
        This node's seat and its tie to the other nodes; the caller closes it.

    Raises:
        UsageError: the nodes' command lines do not fit together.
        RendezvousError: they could not meet; names the port in use, or the nodes that are missing.
    """
    secret = job_secret(environ, plan.nnodes, plan.master_addr)
    if plan.nnodes == 1:
        return await _alone(plan, environ, secret)
    job = plan.job or job_id(environ)
    try:
        bell = await _ring(plan, job, secret)
    except RendezvousError:
        if plan.node_rank is not None:
            raise
        bell = None  # somebody else on this machine was first: it is node 0
    if bell is None:
        return await _join(plan, job, secret, say)
    try:
        return await _host(plan, job, secret, bell, say)
    finally:
        await bell.aclose()


def free_port(host: str) -> int:
    """A port that was free a moment ago."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def short_host() -> str:
    """This machine's name without its domain."""
    return socket.gethostname().partition(".")[0] or "localhost"


def bind_address(master_addr: str) -> str | None:
    """The address to listen on so that the others reach us as `master_addr`; None: it is another machine.

    A name that resolves to loopback here (Debian's 127.0.1.1) is still our name to the others, so we
    listen everywhere. Of the addresses of a name, the first that is ours counts.
    """
    try:
        found = socket.getaddrinfo(master_addr.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return None
    for family, kind, protocol, _name, address in found:
        host = str(address[0])
        if is_loopback(host) and not is_loopback(master_addr):
            return "::" if family == socket.AF_INET6 else "0.0.0.0"
        with socket.socket(family, kind, protocol) as probe:
            try:
                probe.bind((host, 0))
            except OSError:
                continue
        return host
    return None


async def _alone(plan: Plan, environ: Mapping[str, str], secret: str) -> Nodes:
    from aiodist.rendezvous.server import StoreServer

    job = plan.job or environ.get("AIODIST_JOB") or secrets.token_hex(4)
    if plan.master_port is not None:
        _check_free(plan.master_addr, plan.master_port)
    server = await StoreServer.start("127.0.0.1", 0, job, secret.encode())
    seat = Seat(
        node_rank=0,
        nnodes=1,
        first_rank=0,
        nproc=plan.nproc,
        world_size=plan.nproc,
        master_addr=plan.master_addr,
        master_port=plan.master_port or free_port("127.0.0.1"),
        store=f"127.0.0.1:{server.port}",
        job=job,
        secret=secret,
        host=short_host(),
    )
    return Nodes(seat, None, server)


def _check_free(host: str, port: int) -> None:
    """Refuse a MASTER_PORT that a worker could not bind; an address that is not ours is not checked."""
    address = bind_address(host)
    if address is None:
        return
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            raise UsageError(
                f"--master-port {port} cannot be used on {host}: {error.strerror}",
                hint="Leave it out: a free port is picked then",
            ) from None


async def _ring(plan: Plan, job: str, secret: str) -> StoreServer | None:
    """The doorbell, if this node hosts it."""
    from aiodist.rendezvous.server import StoreServer

    if plan.node_rank not in (0, None):
        return None
    address = bind_address(plan.master_addr)
    if address is None:
        if plan.node_rank is None:
            return None
        address = "0.0.0.0"  # behind a service name or NAT: the operator says that it is us
    assert plan.master_port is not None
    return await StoreServer.start(address, plan.master_port, job, secret.encode())


async def _host(plan: Plan, job: str, secret: str, bell: StoreServer, say: Say) -> Nodes:
    from aiodist.rendezvous.client import TcpStore
    from aiodist.rendezvous.server import StoreServer

    assert plan.master_port is not None
    server = await StoreServer.start(bell.host, 0, job, secret.encode())
    try:
        local = _reachable(bell.host)
        async with await TcpStore.connect(local, bell.port, job, secret.encode(), plan.meet_timeout) as book:
            await book.set("agents/nnodes", str(plan.nnodes))
            try:
                cards = await _gather_cards(plan, book, say)
            except (UsageError, RendezvousError) as error:
                await book.set("agents/plan", json.dumps({"error": str(error)}))
                raise
            first, offset = [], 0
            for card in cards:
                first.append(offset)
                offset += int(card["nproc"])
            agreed = {"first": first, "world": offset, "port": server.port}
            await book.set("agents/plan", json.dumps(agreed))
            store = await TcpStore.connect(local, server.port, job, secret.encode(), plan.meet_timeout)
            seat = _seat(plan, 0, agreed, job, secret)
            await _all_here(plan, store, 0)
            return Nodes(seat, store, server)
    except BaseException:
        await server.aclose()
        raise


async def _gather_cards(plan: Plan, book: TcpStore, say: Say) -> list[dict[str, Any]]:
    """Every node's card, ours included, in order of rank."""
    mine: dict[str, Any] = {"nproc": plan.nproc, "host": short_host()}
    cards: dict[int, dict[str, Any]] = {0: mine}
    await book.set("agents/node/0", json.dumps(mine))
    await book.add("agents/claim/0", 1)
    complaint = asyncio.ensure_future(book.get("agents/complaint", timeout=plan.meet_timeout + 60))
    waiting = {
        asyncio.ensure_future(book.get(f"agents/node/{node}", timeout=plan.meet_timeout + 60)): node
        for node in range(1, plan.nnodes)
    }
    loop = asyncio.get_running_loop()
    deadline = loop.time() + plan.meet_timeout
    patience = loop.time() + _PATIENCE
    try:
        while waiting:
            until = min(deadline, patience) if patience else deadline
            done, _ = await asyncio.wait(
                {complaint, *waiting}, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            if complaint in done:
                raise UsageError(complaint.result().decode())
            for task in done:
                cards[waiting.pop(task)] = json.loads(task.result())
            missing = sorted(waiting.values())
            if done or not missing:
                continue
            if loop.time() >= deadline:
                raise RendezvousTimeout(
                    f"{_nodes(missing)} of {plan.nnodes} did not come to "
                    f"{plan.master_addr}:{plan.master_port} within {plan.meet_timeout:g} s",
                    missing=missing,
                    hint="Start an agent there with the same --nnodes, --master-addr and --master-port",
                )
            patience = 0.0
            say(f"waiting for {_nodes(missing)} at {plan.master_addr}:{plan.master_port}")
    finally:
        for task in (complaint, *waiting):
            task.cancel()
        await asyncio.gather(complaint, *waiting, return_exceptions=True)
    return [cards[node] for node in range(plan.nnodes)]


async def _join(plan: Plan, job: str, secret: str, say: Say) -> Nodes:
    from aiodist.rendezvous.client import TcpStore

    assert plan.master_port is not None
    key = secret.encode()
    dialled = asyncio.ensure_future(
        TcpStore.connect(plan.master_addr, plan.master_port, job, key, plan.meet_timeout)
    )
    try:
        await asyncio.wait({dialled}, timeout=_PATIENCE)
        if not dialled.done():
            say(f"waiting for node 0 at {plan.master_addr}:{plan.master_port}")
        book = await dialled
    finally:
        dialled.cancel()
    async with book:
        node = await _check_in(plan, book)
        agreed = json.loads(await book.get("agents/plan", timeout=plan.meet_timeout + 10))
        if "error" in agreed:
            raise UsageError(f"node 0 gave up: {agreed['error']}")
        store = await TcpStore.connect(plan.master_addr, agreed["port"], job, key, plan.meet_timeout)
    try:
        await _all_here(plan, store, node)
    except BaseException:
        await store.aclose()
        raise
    return Nodes(_seat(plan, node, agreed, job, secret), store, None)


async def _check_in(plan: Plan, book: TcpStore) -> int:
    """Take our node rank; `UsageError`, for node 0 too, where the command lines disagree."""
    theirs = int(await book.get("agents/nnodes", timeout=plan.meet_timeout))
    host = short_host()
    if theirs != plan.nnodes:
        complaint = f"nodes disagree: node 0 says --nnodes {theirs}, {host} says --nnodes {plan.nnodes}"
        await book.set("agents/complaint", complaint)
        raise UsageError(complaint, hint="Give every agent the same --nnodes")
    node = plan.node_rank
    if node is None:
        node = await book.add("agents/arrivals", 1)
        if node >= plan.nnodes:
            raise UsageError(f"the job's {plan.nnodes} nodes are complete already", hint="Raise --nnodes")
    if await book.add(f"agents/claim/{node}", 1) > 1:
        owner = json.loads(await book.get(f"agents/node/{node}", timeout=plan.meet_timeout))["host"]
        raise UsageError(
            f"--node-rank {node} was taken already by an agent on {owner}",
            hint="Give every agent its own --node-rank",
        )
    await book.set(f"agents/node/{node}", json.dumps({"nproc": plan.nproc, "host": host}))
    return node


async def _all_here(plan: Plan, store: TcpStore, node: int) -> None:
    """All agents have moved to the job's store."""
    await store.barrier("agents/here", plan.nnodes, node, timeout=plan.meet_timeout)


def _seat(plan: Plan, node: int, agreed: Mapping[str, Any], job: str, secret: str) -> Seat:
    assert plan.master_port is not None
    address = f"[{plan.master_addr}]" if ":" in plan.master_addr.strip("[]") else plan.master_addr
    return Seat(
        node_rank=node,
        nnodes=plan.nnodes,
        first_rank=agreed["first"][node],
        nproc=plan.nproc,
        world_size=agreed["world"],
        master_addr=plan.master_addr,
        master_port=plan.master_port,
        store=f"{address}:{agreed['port']}",
        job=job,
        secret=secret,
        host=short_host(),
    )


def _reachable(bound: str) -> str:
    """Where to dial a server of our own that is bound to this address."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, bound)


def _nodes(nodes: list[int]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(map(str, nodes))}"
