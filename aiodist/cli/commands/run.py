"""`aiodist run`: torchrun's command line → a LaunchConfig."""

from __future__ import annotations

import argparse
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from aiodist.base.environment import is_loopback, job_name, plain_host, split_address
from aiodist.base.environment.cores import cores
from aiodist.base.environment.lone_process import chosen, company_of_agent
from aiodist.base.errors import UsageError
from aiodist.cli.commands.dashboard import need_aiohttp
from aiodist.cli.parser import CommandOptions, Parser
from aiodist.launch.config import DEFAULT_PREFIX, LaunchConfig
from aiodist.launch.under_srun import Inside, inside
from aiodist.net.sockets import interface_address

_DEFAULT_PORT = 29500  # torchrun's, where the meeting place is named without a port
_STREAMS = (0, 1, 2, 3)
_MOST_WORKERS = 4096
_FILES_PER_WORKER = 4  # of the agent: stdout, stderr, its end, and its store's connection
_LOGS_PER_WORKER = 2
_OWN_FILES = 32
_EXAMPLE = "aiodist run --nproc-per-node 4 train.py"


def main(argv: Sequence[str]) -> int:
    """Run the command; the job's exit code."""
    config = make_config(argv, os.environ)
    if warning := check_company(config, os.environ):
        print(f"aiodist run: {warning}", file=sys.stderr, flush=True)
    from aiodist.launch.agent import run  # asyncio only once the command line is right

    return run(config)


def make_config(argv: Sequence[str], environ: Mapping[str, str], *, elsewhere: bool = False) -> LaunchConfig:
    """The config that a command line asks for.

    Args:
        argv: after 'run'.
        environ: PET_<NAME> gives the default of --name, as for torchrun.
        elsewhere: the workers run on other hosts; the limits of this one do not count.

    Raises:
        UsageError: a command line without meaning, or a script that is not there or cannot be compiled.
        SystemExit: --help (0).
    """
    args = _parser(environ).parse_args(list(argv))
    around = _around(args, environ)
    nnodes, most = (1, 0) if args.standalone else _nnodes(args.nnodes or "1")
    if around is not None:
        nnodes = around.nnodes
    nproc = workers_per_node(args.nproc_per_node, environ)
    if not elsewhere:
        check_room(nproc)
    if args.rdzv_backend not in ("static", "c10d"):
        raise UsageError(f"--rdzv-backend {args.rdzv_backend} does not exist here", hint="Use static or c10d")
    if args.on_failure not in ("stop", "continue"):
        raise UsageError(f"--on-failure {args.on_failure} is not valid", hint="Use stop or continue")
    if args.torch and environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        raise UsageError(
            "--torch has no effect with TORCH_DEVICE_BACKEND_AUTOLOAD=0: torch would load no backend",
            hint="Unset that variable",
        )
    redirects = _per_rank("--redirects", args.redirects, nproc)
    tee = _per_rank("--tee", args.tee, nproc)
    if args.dashboard:
        need_aiohttp("--dashboard")
        tee = {local: tee.get(local, 0) | 3 & ~redirects.get(local, 0) for local in range(nproc)}
    if not elsewhere:
        check_room(nproc, len({*redirects, *tee}))
    conf = _pairs(args.rdzv_conf)
    address, port = _meeting_place(args, 1 if around is not None else max(nnodes, most))
    node_rank: int | None = 0
    local_addr = args.local_addr and plain_host(args.local_addr, "--local-addr")
    if not local_addr and not elsewhere and (interface := environ.get("AIODIST_SOCKET_IFNAME")):
        local_addr = interface_address(interface)
    if around is not None:
        node_rank = around.node_rank
        if around.launcher == "Slurm":
            address, own_port, local_addr = _at_step(environ, node_rank, local_addr)
            port = port or own_port
    elif nnodes > 1 or most:
        node_rank = None if args.node_rank is None else _integer("--node-rank", args.node_rank)
        if node_rank is None and args.rdzv_backend == "static" and not most:
            raise UsageError(
                f"a job of {nnodes} nodes needs --node-rank", hint=f"0 to {nnodes - 1}, another on each node"
            )
    elif args.node_rank is not None and not args.standalone:
        node_rank = _integer("--node-rank", args.node_rank)
    timeout = conf.get("timeout") or conf.get("join_timeout") or environ.get("AIODIST_TIMEOUT") or "300"
    return LaunchConfig(
        command=_command(args),
        nproc=nproc,
        nnodes=nnodes,
        max_nodes=most,
        last_call=_number("last_call_timeout in --rdzv-conf", conf.get("last_call_timeout") or "30"),
        node_rank=node_rank,
        max_restarts=_integer("--max-restarts", args.max_restarts),
        go_on=args.on_failure == "continue",
        master_addr=address,
        master_port=port,
        job=args.rdzv_id and job_name("--rdzv-id", args.rdzv_id),
        role=args.role,
        local_addr=local_addr,
        told_by=around.launcher if around is not None and around.launcher != "Slurm" else "",
        log_dir=args.log_dir and os.path.abspath(os.path.expanduser(args.log_dir)),
        redirects=redirects,
        tee=tee,
        shown=_ranks("--local-ranks-filter", args.local_ranks_filter, nproc),
        prefix=args.line_prefix_template,
        meet_timeout=_number("the timeout in --rdzv-conf or AIODIST_TIMEOUT", timeout),
        shutdown_timeout=_number("--shutdown-timeout", args.shutdown_timeout),
        signals=_signals(args.signals_to_handle),
        torch=args.torch,
        dashboard=args.dashboard,
        leave_daemons=args.leave_daemons,
    )


def check_company(config: LaunchConfig, environ: Mapping[str, str]) -> str:
    """Refuse to run one of several separate jobs, where another launcher has started several agents.

    Returns:
        A warning, where that may be innocent; or ''.

    Raises:
        UsageError: this agent is one of several, and was told of no other node.
    """
    if config.most > 1 or chosen(environ):
        return ""
    company = company_of_agent(environ, config.nproc)
    if company is None:
        return ""
    if company.certain:
        raise UsageError(
            f"{company.said}: this agent is one of several that were started together, and each would run a "
            "job of its own",
            hint=company.hint,
        )
    return f"{company.said}, but this is a job of one node, and of its own. {company.hint}"


def workers_per_node(text: str, environ: Mapping[str, str]) -> int:
    """--nproc-per-node: a number, 'cpu', 'gpu', or 'auto' (GPUs if there are any, else CPUs)."""
    if text in ("auto", "gpu"):
        gpus = _gpus(environ)
        if gpus:
            return gpus
        if text == "gpu":
            raise UsageError("--nproc-per-node gpu: there is no GPU here", hint="Give a number, or cpu")
    if text in ("auto", "cpu"):
        return max(1, round(cores()))
    return _integer("--nproc-per-node", text, "a number, auto, cpu or gpu")


def check_room(nproc: int, logged: int = 0) -> None:
    """Refuse more workers than this node can start; `UsageError` says which limit it is.

    Args:
        nproc: how many.
        logged: how many of them have log files.
    """
    files = _FILES_PER_WORKER * nproc + _LOGS_PER_WORKER * logged + _OWN_FILES
    if nproc > _MOST_WORKERS:
        raise UsageError(
            f"--nproc-per-node {nproc} is more than one node takes ({_MOST_WORKERS})",
            hint="One worker for each GPU or CPU is usual",
        )
    for limit, needed, flag, what in (
        (resource.RLIMIT_NPROC, 2 * nproc + 1, "-u", "processes"),
        (resource.RLIMIT_NOFILE, files, "-n", "open files"),
    ):
        allowed, _ = resource.getrlimit(limit)
        if allowed != resource.RLIM_INFINITY and needed > allowed:
            raise UsageError(
                f"--nproc-per-node {nproc} needs {needed} {what}, and the limit here is {allowed}",
                hint=f"Raise it with ulimit {flag}, or start fewer workers",
            )


def _gpus(environ: Mapping[str, str]) -> int:
    """NVIDIA GPUs that a worker would see; asks the kernel, since a CUDA call would cost a second."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return 0 if visible.strip() in ("", "-1", "NoDevFiles") else len(visible.split(","))
    known = Path("/proc/driver/nvidia/gpus")
    if known.is_dir():
        return len(list(known.iterdir()))
    return sum(re.fullmatch(r"nvidia\d+", entry.name) is not None for entry in Path("/dev").iterdir())


def _command(args: argparse.Namespace) -> tuple[str, ...]:
    script, rest = args.script, tuple(args.script_args)
    if args.no_python and args.module:
        raise UsageError("--no-python and --module exclude each other")
    if args.no_python:
        found = shutil.which(script)
        if found is None:
            if os.path.dirname(script) and os.path.isdir(script):
                raise UsageError(f"'{script}' is a folder", hint="Give a program in it")
            if os.path.dirname(script) and os.path.exists(script):
                raise UsageError(f"'{script}' is not executable", hint=f"chmod +x {shlex.quote(script)}")
            raise UsageError(f"there is no command {script!r}", hint="Give a path, or something on PATH")
        return (found, *rest)
    if args.module:
        return (sys.executable, "-u", "-m", script, *rest)
    try:
        _check_script(Path(script))
    except OSError as error:
        raise UsageError(f"'{script}' cannot be read: {error.strerror}") from None
    return (sys.executable, "-u", script, *rest)


def _check_script(script: Path) -> None:
    """Refuse, before anything is started, a script that would fail in every worker alike."""
    if not script.exists():
        hint = "Use -m for a module, --no-python for another program"
        where = "" if script.is_absolute() else f" in {Path.cwd()}"
        raise UsageError(f"there is no script '{script}'{where}", hint=hint)
    if script.is_dir() and not (script / "__main__.py").exists():
        raise UsageError(f"'{script}' is a folder without a __main__.py", hint="Give a script in it")
    if script.suffix != ".py" or script.is_dir():
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the workers will say it
            compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f": {error.text.strip()}" if error.text else ""
        raise UsageError(f"{script}, line {error.lineno or 1}: {error.msg}{line}") from None
    except ValueError as error:  # null bytes
        raise UsageError(f"'{script}' is not a Python script: {error}") from None


def _meeting_place(args: argparse.Namespace, nnodes: int) -> tuple[str, int | None]:
    """MASTER_ADDR and MASTER_PORT; None: any free port."""
    address = args.master_addr and plain_host(args.master_addr, "--master-addr")
    port = None if args.master_port is None else _integer("--master-port", args.master_port)
    if args.rdzv_endpoint and not args.standalone:
        has_port = args.rdzv_endpoint.rpartition("]")[2].rpartition(":")[1]
        whole = args.rdzv_endpoint if has_port else f"{args.rdzv_endpoint}:{port or _DEFAULT_PORT}"
        address, port = split_address(whole, "--rdzv-endpoint")
    if args.standalone:
        return "127.0.0.1", None
    if nnodes == 1:
        return address or "127.0.0.1", port or None
    if not address:
        raise UsageError(
            f"a job of {nnodes} nodes needs --master-addr",
            hint="The address of node 0, the same on every node (or --rdzv-endpoint host:port)",
        )
    return address, port if port is not None else _DEFAULT_PORT


def _around(args: argparse.Namespace, environ: Mapping[str, str]) -> Inside | None:
    """The place that another launcher gives this agent, where nothing else says a word of nodes."""
    said = (args.nnodes, args.node_rank, args.master_addr, args.rdzv_endpoint, args.standalone)
    return None if any(said) or chosen(environ) else inside(environ)


def _at_step(
    environ: Mapping[str, str], node_rank: int, local_addr: str | None
) -> tuple[str, int, str | None]:
    """Where the agents of a step of Slurm's meet, and this node's address: all know it without being told."""
    from aiodist.net.sockets import outward, towards_most
    from aiodist.rendezvous.launchers.slurm import another_host, host_of_rank_0, port

    job, step = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", "")
    try:
        first, other = host_of_rank_0(environ), another_host(environ)
    except UsageError as error:
        raise UsageError(error.message, hint="Give --nnodes, --node-rank and --master-addr") from None
    # Debian's /etc/hosts has 127.0.1.1 for a host itself, where no other comes in.
    own = local_addr
    if not own and node_rank == 0:
        found = towards_most([other])
        own = (outward() if not found or is_loopback(found) else found) or None
    return first, port(job, f"{step} agents"), own


def _nnodes(text: str) -> tuple[int, int]:
    """'2' → (2, 0); '1:4' → (1, 4); '2:2' is 2."""
    low, colon, high = text.partition(":")
    least = _integer("--nnodes", low, "a number or MIN:MAX")
    most = _integer("--nnodes", high, "a number or MIN:MAX") if colon else least
    return least, 0 if most == least else most


def _per_rank(option: str, text: str, nproc: int) -> dict[int, int]:
    """'3' (all ranks) or '0:3,1:1' → local rank → streams (1 stdout, 2 stderr, 3 both)."""
    if ":" not in text:
        streams = _integer(option, text)
        chosen = dict.fromkeys(range(nproc), streams)
    else:
        chosen = {}
        for pair in text.split(","):
            rank, _, streams_text = pair.partition(":")
            chosen[_integer(option, rank)] = _integer(option, streams_text)
    for local_rank, streams in chosen.items():
        if streams not in _STREAMS or not 0 <= local_rank < nproc:
            hint = f"0 none, 1 stdout, 2 stderr, 3 both; local ranks go from 0 to {nproc - 1}"
            raise UsageError(f"{option} {text} is not valid", hint=hint)
    return {local_rank: streams for local_rank, streams in chosen.items() if streams}


def _ranks(option: str, text: str, nproc: int) -> frozenset[int] | None:
    if not text:
        return None
    ranks = frozenset(_integer(option, part) for part in text.split(","))
    if not ranks <= set(range(nproc)):
        raise UsageError(f"{option} {text}: local ranks go from 0 to {nproc - 1}")
    return ranks


def _signals(text: str) -> tuple[int, ...]:
    chosen = []
    for name in text.split(","):
        found = getattr(signal, name.strip(), None)
        if not isinstance(found, signal.Signals) or found in (signal.SIGKILL, signal.SIGSTOP):
            raise UsageError(f"--signals-to-handle: {name!r} is not a signal that can be handled")
        chosen.append(int(found))
    return tuple(chosen)


def _pairs(text: str) -> dict[str, str]:
    """'a=1,b=2' → a dict."""
    pairs = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UsageError(f"--rdzv-conf {text!r}: {part!r} is not key=value")
        pairs[key.strip()] = value.strip()
    return pairs


def _integer(option: str, text: str | int, wanted: str = "a number") -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{option} must be {wanted}, got {text!r}") from None


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{option} must be a number of seconds, got {text!r}") from None


def _parser(environ: Mapping[str, str]) -> Parser:
    parser = Parser(
        "aiodist run",
        example=_EXAMPLE,
        usage="aiodist run [options] script [argument …]",
        description="Start a job's workers on this node; stop all when one fails, and say which and why.",
        epilog=f"example: {_EXAMPLE}\n\n"
        "Each option is also read from PET_<NAME> in the environment, and --a-b may be written --a_b.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_worker_options(parser, environ)
    page = CommandOptions(parser.add_argument_group("watching the job"), environ)
    page.switch("--dashboard", "show a page with what the ranks do; its address is printed (on node 0)")
    nodes = CommandOptions(parser.add_argument_group("several nodes: start one agent on each"), environ)
    nodes.value(
        "--nnodes",
        None,
        "N",
        "nodes in the job (1; inside srun or mpirun: one for each agent); MIN:MAX: they may come and go",
    )
    nodes.value("--node-rank", None, "R", "this node's number, from 0")
    nodes.value("--master-addr", None, "ADDR", "address of node 0")
    nodes.value("--master-port", None, "PORT", "port where the nodes meet (29500)")
    nodes.value("--rdzv-backend", "static", "NAME", "static, or c10d: node ranks by arrival")
    nodes.value("--rdzv-endpoint", "", "HOST:PORT", "as --master-addr and --master-port")
    nodes.value("--rdzv-id", None, "ID", "the job's name")
    nodes.value(
        "--rdzv-conf",
        "",
        "K=V,…",
        "timeout=SECONDS to wait for nodes (300), last_call_timeout=SECONDS for more than MIN (30)",
    )
    nodes.value("--local-addr", None, "ADDR", "this node's address, which the other nodes use")
    nodes.switch("--standalone", "one node, whatever the other options say")
    return parser


def add_worker_options(parser: Parser, environ: Mapping[str, str]) -> list[CommandOptions]:
    """Add the script, and the options that say what a node's workers are, and what happens to them."""
    parser.add_argument("script", help="script, module or program that every worker runs")
    parser.add_argument(
        "script_args", nargs=argparse.REMAINDER, metavar="argument", help="passed to the script"
    )
    what = CommandOptions(parser, environ)
    what.value("--nproc-per-node", "1", "N", "workers on a node: a number, auto, cpu or gpu (1)")
    what.switch("--module", "the script is a module, as for python -m", short="-m")
    what.switch("--no-python", "the script is a program of its own")
    what.switch("--torch", "a program that asks torch for gloo gets aiodist")
    what.value("--shutdown-timeout", "30", "S", "seconds from SIGTERM to SIGKILL (30)")
    what.switch(
        "--leave-daemons", "do not end processes that workers have started in process groups of their own"
    )
    what.value("--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "SIG,…", "signals that end the job")

    failures = CommandOptions(parser.add_argument_group("when a worker fails"), environ)
    failures.value(
        "--max-restarts",
        "0",
        "N",
        "restarts in all: of one worker if the script calls join(), else of all workers (0)",
    )
    failures.value(
        "--on-failure",
        "stop",
        "WHAT",
        "when no restart is left: stop the job (stop), or continue while any worker lives",
    )

    output = CommandOptions(parser.add_argument_group("output"), environ)
    output.value("--log-dir", None, "DIR", "folder for files of -r and -t")
    output.value("--redirects", "0", "R", "to files: 1 stdout, 2 stderr, 3 both; or RANK:R,…", short="-r")
    output.value("--tee", "0", "T", "to files and console, likewise", short="-t")
    output.value("--local-ranks-filter", "", "0,1…", "show only these local ranks")
    output.value(
        "--line-prefix-template",
        DEFAULT_PREFIX,
        "TEXT",
        "${host} ${rank} ${local_rank} ${node_rank} ${role_name}",
        also=("--log-line-prefix-template",),
    )

    torch = CommandOptions(parser.add_argument_group("accepted for compatibility with torchrun"), environ)
    torch.value("--monitor-interval", "0", "S", "no effect; deaths are seen at once")
    torch.value("--start-method", "spawn", "M", "no effect; workers are new processes")
    torch.switch("--run-path", "no effect; a script is run as it is")
    torch.value("--role", "default", "NAME", "exported as ROLE_NAME")
    return [what, failures, output, torch]
