"""`aiodist launch`: a job on several hosts, started from one."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from aiodist.base.environment import plain_host
from aiodist.base.errors import UsageError
from aiodist.cli.commands.run import add_worker_options, make_config
from aiodist.cli.parser import CommandOptions, Parser
from aiodist.cli.version import installed_version
from aiodist.launch.nodes.secret import job_secret
from aiodist.launch.place import ABOUT_A_WORKER
from aiodist.launch.remote.hosts import Host, chosen, from_file, from_option
from aiodist.launch.remote.plan import Plan

_EXAMPLE = "aiodist launch -H a:4,b:4 train.py"
_HANDED_ON = ("AIODIST_*", "NCCL_*", "OMP_*", "PYTHONPATH")
"""Variables that every agent gets, where they are set here; -x adds others."""

_TOTAL = "The number of all ranks is the sum of the hosts' numbers: -H a:4,b:4"
_EACH = "Write --nproc-per-node 4, or -H a:4,b:4"
_OTHERS = {
    **dict.fromkeys(("-n", "-np", "--np", "--nprocs", "--num-processes", "--world-size"), _TOTAL),
    **dict.fromkeys(("-ppn", "--num-gpus", "--map-by", "--oversubscribe", "-perhost", "-N"), _EACH),
    **dict.fromkeys(("-p", "--ssh-port", "-port"), "Write --ssh 'ssh -p 2222'"),
    **dict.fromkeys(("-env", "-genv", "--env", "-genvall", "--export"), "Write -x NAME=VALUE"),
    **dict.fromkeys(("-wdir", "--wdir"), "Write --chdir DIR"),
    **dict.fromkeys(
        ("--node-rank", "--master-addr", "--master-port", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf"),
        "aiodist launch sees to that: leave it out",
    ),
}
"""Options of mpirun, DeepSpeed, horovodrun and torchrun, and what to write here."""

_SSH, _START_TIMEOUT = "ssh", "60"
_EACH_ITS_OWN = ("auto", "cpu", "gpu")  # numbers of workers that each host finds out
_MPI_HOSTFILE = Path("/etc/mpi/hostfile")  # of the MPI Operator's launcher pod
_OURS = (*ABOUT_A_WORKER, "AIODIST_HOST", "AIODIST_ALONE")
"""Those of these variables that are about this process or this host: only -x hands them on."""


def main(argv: Sequence[str]) -> int:
    """Run the command; the job's exit code."""
    parser, options = _parser(os.environ)
    args = parser.parse_args(list(argv))
    words = [word for group in options for word in group.words(args)]
    words = [word for word in words if not word.startswith("--nproc-per-node")]
    words += [args.script, *args.script_args]
    hosts = _hosts(args)
    if not args.chdir:  # what is wrong is said before anything starts
        make_config([*_most_workers(args, hosts), *words], {}, elsewhere=True)
    if args.via:
        from aiodist.launch.remote.through import through

        _check_via(args, hosts)
        environ = environ_for(args, os.environ)
        through(args.via, hosts, words, environ, args.nproc_per_node, args.chdir)
    from aiodist.launch.remote import launcher

    return launcher.run(make_plan(args, hosts, words, os.environ))


def _most_workers(args: argparse.Namespace, hosts: Sequence[Host]) -> list[str]:
    """The largest number of workers of a host, as an option; nothing where each finds out its own."""
    if numbers := [host.slots for host in hosts if host.slots]:
        return [f"--nproc-per-node={max(numbers)}"]
    return [] if args.nproc_per_node in _EACH_ITS_OWN else [f"--nproc-per-node={args.nproc_per_node}"]


def _check_via(args: argparse.Namespace, hosts: Sequence[Host]) -> None:
    """Refuse what srun and mpirun would not be told."""
    useless = {
        "--python": args.python,
        "--nnodes": args.nnodes,
        "--host-discovery-script": args.host_discovery_script,
        "--ssh": args.ssh != _SSH,
        "--start-timeout": args.start_timeout != _START_TIMEOUT,
        "--include": args.include and not hosts,
        "--exclude": args.exclude and not hosts,
    }
    if args.local_addr:
        raise UsageError(
            f"--local-addr cannot be used with --via {args.via}",
            hint="AIODIST_SOCKET_IFNAME names the interface that each host is reached by",
        )
    if given := [name for name, value in useless.items() if value]:
        raise UsageError(f"{', '.join(given)} cannot be used with --via {args.via}", hint="Leave it out")


def make_plan(
    args: argparse.Namespace, hosts: list[Host], words: Sequence[str], environ: Mapping[str, str]
) -> Plan:
    """The plan that a command line asks for.

    Args:
        args: as parsed.
        hosts: that are to be used.
        words: of `aiodist run` on each host, but for the number of workers.
        environ: the environment here.

    Raises:
        UsageError: a command line without meaning.
    """
    least, most = _nodes(args, len(hosts))
    return Plan(
        hosts=hosts,
        argv=words,
        nproc=args.nproc_per_node,
        environ=environ_for(args, environ),
        folder=args.chdir or os.getcwd(),
        ssh=args.ssh,
        python=args.python or sys.executable,
        version=installed_version(),
        least=least,
        most=most,
        timeout=_seconds("--start-timeout", args.start_timeout),
        discovery=args.host_discovery_script,
        include=args.include,
        exclude=args.exclude,
        local_addr=args.local_addr and plain_host(args.local_addr, "--local-addr"),
    )


def environ_for(args: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the agents are given: the secret, what is handed on as a rule, and what -x names.

    Raises:
        UsageError: -x names a variable that is not set here.
    """
    found = {
        name: value
        for name, value in environ.items()
        if any(fnmatchcase(name, pattern) for pattern in _HANDED_ON) and name not in _OURS
    }
    found.pop("AIODIST_SECRET_FILE", None)
    found["AIODIST_SECRET"] = job_secret(environ, 1, "")  # the one that is given, or a random one
    for word in args.x:
        name, equals, value = word.partition("=")
        if not name or not (equals or name in environ):
            raise UsageError(f"-x {word}: {name or word} is not set here", hint="Write -x NAME=VALUE")
        found[name] = value if equals else environ[name]
    return found


def _hosts(args: argparse.Namespace) -> list[Host]:
    if args.hosts and args.hostfile:
        raise UsageError("-H and --hostfile exclude each other", hint="Give one of them")
    if args.hosts:
        found = from_option(args.hosts)
    elif args.hostfile:
        found = _from_file(Path(args.hostfile))
    elif args.host_discovery_script:
        import asyncio

        from aiodist.launch.remote.discovery import hosts_now

        found = asyncio.run(hosts_now(args.host_discovery_script))
    elif _MPI_HOSTFILE.exists():
        found = _from_file(_MPI_HOSTFILE)
    elif args.via:
        return []
    else:
        raise UsageError("no hosts given", hint=f"For example: {_EXAMPLE}")
    return chosen(found, args.include, args.exclude)


def _from_file(path: Path) -> list[Host]:
    try:
        return from_file(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"the hostfile {path} cannot be read: {why}") from None


def _nodes(args: argparse.Namespace, hosts: int) -> tuple[int, int]:
    """The number of nodes that are needed, and that are taken at most, 0 for no more."""
    if not args.nnodes:
        return (1, 4096) if args.host_discovery_script else (hosts, 0)
    least, colon, most = args.nnodes.partition(":")
    right = least.isdecimal() and (not colon or most.isdecimal())
    if not right or int(least) < 1 or (colon and int(most) < int(least)):
        raise UsageError(f"--nnodes {args.nnodes} is not valid", hint="Write MIN or MIN:MAX")
    if not args.host_discovery_script and (int(least) > hosts or (not colon and int(least) != hosts)):
        raise UsageError(
            f"--nnodes {args.nnodes} does not fit the number of hosts, {hosts}",
            hint="Leave it out: the job has all of them",
        )
    return int(least), int(most) if colon else 0


def _seconds(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise UsageError(f"{option} {text} is not a number of seconds")
    return value


def _parser(environ: Mapping[str, str]) -> tuple[Parser, list[CommandOptions]]:
    """The parser, and the options that the agents are handed."""
    parser = Parser(
        "aiodist launch",
        example=_EXAMPLE,
        others=_OTHERS,
        usage="aiodist launch -H host:N,… [options] script [argument …]",
        description="Start a job's workers on several hosts by ssh; stop all when one fails, and say why.",
        epilog=f"example: {_EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    hosts = parser.add_argument_group("hosts")
    hosts.add_argument(
        *("-H", "--host", "--hosts"),
        dest="hosts",
        default="",
        metavar="A:4,B:4",
        help="hosts, each with its number of workers",
    )
    where = CommandOptions(hosts, environ)
    where.value("--hostfile", "", "FILE", "a line for each host: 'a slots=4' or 'a:4'")
    where.value("--include", "", "A@B:0,2", "of these hosts only those; of b only workers 0 and 2")
    where.value("--exclude", "", "A@B:0,2", "of these hosts all but those")
    where.value("--host-discovery-script", "", "CMD", "prints the present hosts; hosts may come and go")
    where.value("--nnodes", "", "MIN:MAX", "hosts that the job needs, and takes (all)")
    start = CommandOptions(parser.add_argument_group("how the agents start"), environ)
    start.value("--ssh", _SSH, "CMD", "the ssh client, with options of yours (ssh)")
    start.value("--python", "", "PATH", "the interpreter there (the path of this one)")
    start.value("--chdir", "", "DIR", "folder to work in, there (the path of this one)")
    start.value("--start-timeout", _START_TIMEOUT, "S", "seconds for all agents to answer (60)")
    start.value("--via", "", "srun|mpirun", "have one of these start the agents, instead of ssh")
    where.value(
        "--local-addr",
        "",
        "ADDR",
        "address of the first host, where the others reach it (by its routes to them)",
    )
    parser.add_argument(
        "-x",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable to pass on; write -x again for more",
    )
    return parser, add_worker_options(parser, environ)
