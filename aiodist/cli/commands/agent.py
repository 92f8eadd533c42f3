"""What ssh starts on a host: says which aiodist is here, is told its task, and becomes that host's agent.

    python -m aiodist.cli.commands.agent

It is started with nothing but a login's environment, and no argument.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aiodist.base.environment import is_link_local, is_loopback
from aiodist.base.errors import AiodistError, RendezvousError, UsageError
from aiodist.cli.commands.run import make_config
from aiodist.cli.version import installed_version
from aiodist.launch.remote.link import Link, say
from aiodist.launch.remote.messages import MARK, SILENCE, Hello, Over, Task
from aiodist.net.sockets import outward, towards_most

_BROKEN = 1
_LAST_CALL = 2.0  # seconds for more hosts than the job needs: all that there are have been started already
_FIRST = " "  # of a line of a worker where the operator wants no prefix: no line of output is a message


def main() -> int:
    """Run the agent; its exit code is the job's."""
    os.write(1, b"\n")  # a login script may have written half a line
    address = _address(os.environ)
    say(Hello(installed_version(), address))
    link = Link(_own_stdin())
    task = link.task()
    if task is None:
        return _BROKEN
    try:
        return _carry_out(task, address, link)
    except asyncio.CancelledError:  # the launcher is gone, and with it all that this node did
        return _BROKEN
    except (AiodistError, OSError) as error:
        code = 2 if isinstance(error, UsageError) else _BROKEN
        say(Over(code, f"aiodist launch: {task.name}: {error}"))
        return code


def _address(environ: Mapping[str, str]) -> str:
    """This host's address as ssh came to it; '' where it did not.

    Where that is a loopback address, as of a host whose own name is 127.0.1.1 to it, or one of a link, others
    need another one.
    """
    connection = environ.get("SSH_CONNECTION", "").split()
    address = connection[2] if len(connection) == 4 else ""
    return (outward() or address) if is_loopback(address) or is_link_local(address) else address


def _carry_out(task: Task, address: str, link: Link) -> int:
    os.environ.update(task.environ)
    try:
        os.chdir(task.folder)
    except OSError as error:
        raise RendezvousError(
            f"there is no folder {task.folder} on it ({error.strerror})",
            hint="Make it there, or name one that is there with --chdir",
        ) from None
    # The words are all that was asked for: this host's own PET_* are not meant.
    config = make_config(task.argv, {k: v for k, v in os.environ.items() if not k.startswith("PET_")})
    config = replace(
        config,
        told_by="aiodist launch",
        node_rank=None if task.most and task.node else task.node,
        nnodes=task.nodes,
        max_nodes=task.most,
        last_call=_LAST_CALL,
        node_timeout=SILENCE,
        local_addr=config.local_addr or (_listening(task.others, address) if task.node == 0 else "") or None,
        host=task.name,
        prefix=_FIRST + config.prefix if config.prefix[:1] in ("", MARK.decode()) else config.prefix,
    )
    from aiodist.launch.agent import run  # asyncio only once the command line is right

    return run(config, link)


def _listening(others: Sequence[str], address: str) -> str:
    """Where node 0 is reached by the others: where its routes to them begin, else where the launcher's ssh
    came in; '': neither is known."""
    found = towards_most(others)
    usable = found and not is_loopback(found)
    return found if usable or not address or is_loopback(address) else address


def _own_stdin() -> int:
    """A descriptor of stdin that no worker gets; theirs is empty."""
    stdin = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return stdin


if __name__ == "__main__":
    sys.exit(main())
