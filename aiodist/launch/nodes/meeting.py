"""The meeting of a job's agents, before any worker starts.

Node 0, the head, hosts the agents' store and the workers', on ports that the system picks, and the
*admission store* on master_addr:master_port, where every other agent comes in (see `admission`). When all
have, it is closed again: MASTER_PORT is free for what the workers want to do with it. Where nodes may come
later, it stays, and the workers get another MASTER_PORT. One node alone needs no admission store, and its
MASTER_PORT is a free port that nobody holds.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from aiodist.base.environment import job_id, tls
from aiodist.base.errors import RendezvousError, UsageError
from aiodist.launch.config import LaunchConfig
from aiodist.launch.nodes.admission import request_place
from aiodist.launch.nodes.head import PATIENCE, Head, Say
from aiodist.launch.nodes.local_node import LocalNode
from aiodist.launch.nodes.nodes import Nodes
from aiodist.launch.nodes.ports import about_port, bind_address, check_free, reachable, short_host
from aiodist.launch.nodes.roster import Member, Roster
from aiodist.launch.nodes.secret import job_secret
from aiodist.launch.nodes.store_access import StoreAccess
from aiodist.launch.nodes.told import located, teller
from aiodist.net.sockets import is_in_use

if TYPE_CHECKING:
    from aiodist.rendezvous.launchers.address_exchange import Teller
    from aiodist.rendezvous.server import StoreServer
    from aiodist.rendezvous.store import Store

_RUN_BYTES = 6


async def meet(
    config: LaunchConfig, environ: Mapping[str, str], say: Say, means: Teller | None = None
) -> Nodes:
    """Meet the other nodes' agents and host or join the job's stores.

    Args:
        config: this node's.
        environ: for the job's secret.
        say: shows one line to the operator, for a wait that gets long.
        means: of the launcher that `config.told_by` names; None: `told.teller` makes them, if need be.

    Returns:
        This node's place, and the way to the other nodes; the caller closes it.

    Raises:
        UsageError: the nodes' command lines do not fit together.
        RendezvousError: they could not meet; names the port in use, or the nodes that are missing.
        OverError: the job ended before it needed this node.
    """
    secret = job_secret(environ, config.most, "" if config.told_by else config.master_addr)
    if config.most == 1:
        job = config.job or (job_id(environ) if environ.get("AIODIST_JOB") else secrets.token_hex(4))
        return await _alone(config, StoreAccess(job, secret, tls(environ)), say)
    access = StoreAccess(config.job or job_id(environ), secret, tls(environ))
    if config.told_by:
        means = means or await teller(config, environ)
        store, server = await located(config, access, means, first=config.node_rank == 0)
        config = replace(config, master_addr=store.host, master_port=store.port)
        if server is None:
            return await _join(config, access, say, store.instance)
        return await _host(config, access, server, say)
    try:
        server = await _serve_admission(config, access, say)
    except RendezvousError as error:
        if config.node_rank is not None or not is_in_use(error):
            raise
        server = None  # an agent on this machine was first: it is node 0
    if server is None:
        return await _join(config, access, say)
    return await _host(config, access, server, say)


async def _alone(config: LaunchConfig, access: StoreAccess, say: Say) -> Nodes:
    if config.master_port is not None:
        check_free(config.master_addr, config.master_port)
    head = Head(config, _me(config), access, "127.0.0.1", say)
    run = secrets.token_hex(_RUN_BYTES)
    local = LocalNode(0, "127.0.0.1", config.master_addr, access, _name(config), run)
    return Nodes(local, await head.alone(), None, head)


async def _serve_admission(config: LaunchConfig, access: StoreAccess, say: Say) -> StoreServer | None:
    """Host the admission store, if this node is to; None: it is not."""
    from aiodist.rendezvous.meeting_place import MeetingPlace

    if config.node_rank not in (0, None):
        return None
    address = bind_address(config.master_addr, config.local_addr)
    known = address is not None
    if address is None:
        if config.node_rank is None:
            return None
        # Behind a service's name or NAT: the operator says that it is us.
        address = config.local_addr or "0.0.0.0"
    if address == config.local_addr and bind_address(address) is None:
        raise UsageError(
            f"--local-addr {address} is no address of this node",
            hint="Name one of its own, or leave it out where --master-addr is one",
        )
    assert config.master_port is not None
    server = await access.serve(address, config.master_port)
    server.place = MeetingPlace.at(config.master_addr, config.master_port, server.host if known else "")
    if about := about_port(address, config.master_addr):
        say(about)
    return server


async def _host(config: LaunchConfig, access: StoreAccess, server: StoreServer, say: Say) -> Nodes:
    local = reachable(server.host)
    try:
        book = await access.enter(local, server.port, config.meet_timeout)
    except BaseException:
        await server.aclose()
        raise
    head = Head(config, _me(config), access, server.host, say)
    try:
        roster, store = await head.host(server, book, local)
    except BaseException:
        await head.aclose()
        raise
    # What we are bound to may not be what the others' name for us means here.
    named = config.master_addr if local != server.host else server.host
    place = LocalNode(0, named, config.master_addr, access, _name(config), _run(store))
    return Nodes(place, roster, store, head, lease=config.node_timeout)


async def _join(config: LaunchConfig, access: StoreAccess, say: Say, instance: bytes = b"") -> Nodes:
    """Join the others. `instance` names the admission store, where that was told."""
    assert config.master_port is not None
    dialled = asyncio.ensure_future(
        access.enter(
            *(config.master_addr, config.master_port, config.meet_timeout),
            instance=instance,
            told=not instance,
        )
    )
    try:
        await asyncio.wait({dialled}, timeout=PATIENCE)
        if not dialled.done():
            say(f"waiting for node 0 at {config.meeting_place}")
        book = await dialled
    finally:
        dialled.cancel()
    async with book:
        id, answer = await request_place(config, book, _name(config))
        store = await access.enter(
            config.master_addr, answer.port, config.meet_timeout, instance=answer.instance
        )
    try:
        data = await store.get(f"agents/{answer.attempt}/roster", timeout=config.meet_timeout)
        roster = Roster.from_json(data)
        node_rank = roster.node_rank(id)
        if node_rank is None:
            raise UsageError("node 0 gave this node no place", hint="Start its agent again")
        if not config.admits_later:  # else its lease says whether a node is there
            # The head's word for us may be over when the last one has come.
            await Nodes.expect(store, id, config.meet_timeout + config.node_timeout)
            await store.barrier("agents/here", len(roster.members), node_rank, timeout=config.meet_timeout)
    except BaseException:
        await store.aclose()
        raise
    local = LocalNode(id, config.master_addr, config.master_addr, access, _name(config), _run(store))
    return Nodes(local, roster, store, lease=config.node_timeout)


def _run(store: Store) -> str:
    """The number of this run: the agents' store is made for it."""
    return store.instance.hex()[: 2 * _RUN_BYTES]


def _name(config: LaunchConfig) -> str:
    return config.host or short_host()


def _me(config: LaunchConfig) -> Member:
    return Member(0, _name(config), config.nproc, config.node_rank)
