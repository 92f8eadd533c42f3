"""torchrun's command line → a config, or one clear line."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from aiodist.base.errors import UsageError
from aiodist.cli.commands.run import check_company, make_config, workers_per_node
from aiodist.launch.config import DEFAULT_PREFIX, LaunchConfig


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.touch()
    return str(path)


def config(*argv: str, **environ: str) -> LaunchConfig:
    return make_config(argv, environ)


def test_defaults(script: str) -> None:
    assert config(script) == LaunchConfig((sys.executable, "-u", script))
    assert config(script).prefix == DEFAULT_PREFIX


def test_the_scripts_own_arguments_stay_its_own(script: str) -> None:
    made = config("--nproc-per-node", "2", script, "--nproc-per-node", "8", "-m", "--", "x")
    assert made.nproc == 2
    assert made.command[2:] == (script, "--nproc-per-node", "8", "-m", "--", "x")


def test_module_and_program(script: str) -> None:
    assert config("-m", "pkg.train", "--lr", "3").command == (
        sys.executable,
        "-u",
        "-m",
        "pkg.train",
        "--lr",
        "3",
    )
    assert config("--no-python", "sh", "-c", "true").command[1:] == ("-c", "true")
    assert config("--no_python", "sh").command[0].endswith("/sh")
    assert config("--run-path", script).command == (sys.executable, "-u", script)


def test_every_option_with_underscores(script: str) -> None:
    made = config(
        *("--nnodes=2", "--node_rank=1", "--nproc_per_node=3", "--master_addr=h", "--master_port=7"),
        *("--rdzv_id=j", "--log_dir=l", "--redirects=3", "--tee=0:1,2:2", "--local_ranks_filter=0,2"),
        *("--max_restarts=2", "--monitor_interval=5", "--shutdown_timeout=2.5", "--local_addr=10.0.0.1"),
        *("--log_line_prefix_template=[$rank]", "--signals_to_handle=SIGTERM,SIGUSR1", "--role=r"),
        *("--rdzv_conf=timeout=9,last_call_timeout=4,other=x", "--start_method=fork"),
        *("--on_failure=continue", script),
    )
    assert made == LaunchConfig(
        (sys.executable, "-u", script),
        nproc=3,
        nnodes=2,
        last_call=4,
        node_rank=1,
        max_restarts=2,
        go_on=True,
        master_addr="h",
        master_port=7,
        job="j",
        role="r",
        local_addr="10.0.0.1",
        log_dir=os.path.abspath("l"),
        redirects={0: 3, 1: 3, 2: 3},
        tee={0: 1, 2: 2},
        shown=frozenset({0, 2}),
        prefix="[$rank]",
        meet_timeout=9,
        shutdown_timeout=2.5,
        signals=(15, 10),
    )


def test_defaults_from_the_environment_as_under_kubeflow(script: str) -> None:
    made = config(
        script,
        PET_NNODES="2",
        PET_NPROC_PER_NODE="4",
        PET_NODE_RANK="1",
        PET_MASTER_ADDR="job-0",
        PET_MASTER_PORT="29500",
    )
    assert (made.nnodes, made.nproc, made.node_rank) == (2, 4, 1)
    assert (made.master_addr, made.master_port) == ("job-0", 29500)
    assert config("--nnodes", "1", script, PET_NNODES="2").nnodes == 1
    assert config("pkg", PET_MODULE="1").command[-2:] == ("-m", "pkg")
    assert config(script, PET_STANDALONE="true", PET_NNODES="2").nnodes == 1
    two = ("--nnodes=2", "--node-rank=1", "--master-addr=h", script)
    assert [config(*two, PET_STANDALONE=word).nnodes for word in ("on", "off", "")] == [1, 2, 2]
    with pytest.raises(UsageError, match="PET_STANDALONE='perhaps' is neither yes nor no"):
        config(script, PET_STANDALONE="perhaps")
    assert config(script, PET_LOG_LINE_PREFIX_TEMPLATE="$rank").prefix == "$rank"


def test_standalone_ignores_the_rest(script: str) -> None:
    made = config("--standalone", "--nnodes=2", "--rdzv-endpoint=h:1", "--node-rank=1", script)
    assert (made.nnodes, made.node_rank, made.master_addr, made.master_port) == (1, 0, "127.0.0.1", None)


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [("h:7", ("h", 7)), ("h", ("h", 29500)), ("[::1]:7", ("::1", 7)), ("[::1]", ("::1", 29500))],
)
def test_endpoint(script: str, endpoint: str, expected: tuple[str, int]) -> None:
    made = config("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", script)
    assert (made.master_addr, made.master_port) == expected
    assert made.node_rank is None, "by arrival"


def test_default_port_of_several_nodes(script: str) -> None:
    assert config("--nnodes=2", "--node-rank=0", "--master-addr=h", script).master_port == 29500
    assert config("--nnodes=2:2", "--node-rank=0", "--master-addr=h", script).nnodes == 2


def test_a_range_of_nodes(script: str) -> None:
    made = config("--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=h:7", script)
    assert (made.nnodes, made.max_nodes, made.most, made.node_rank) == (1, 4, 4, None)
    assert (made.last_call, made.admits_later, made.shown_nodes) == (30, True, "1:4")
    static = config("--nnodes=1:4", "--node-rank=3", "--master-addr=h", script)
    assert (static.node_rank, static.master_port) == (3, 29500), "says who hosts; ranks are by arrival"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "RLIMIT_NPROC",
            "--nproc-per-node 8 needs 17 processes, and the limit here is 7. Raise it with ulimit -u",
        ),
        (
            "RLIMIT_NOFILE",
            "--nproc-per-node 8 needs 64 open files, and the limit here is 7. Raise it with ulimit -n",
        ),
    ],
)
def test_more_workers_than_the_system_allows(
    script: str, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    tight = getattr(resource, name)
    infinite = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (7 if which == tight else infinite, infinite))
    with pytest.raises(UsageError) as info:
        config("--nproc-per-node=8", script)
    assert str(info.value).startswith(message)


def test_log_files_need_room_too(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    infinite = resource.RLIM_INFINITY
    only = resource.RLIMIT_NOFILE
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64 if which == only else infinite, infinite))
    config("--nproc-per-node=8", script)
    for options, needed in ((["-r", "3"], 80), (["-r", "0:3", "--tee", "0:1,5:2"], 68)):
        with pytest.raises(UsageError, match=f"--nproc-per-node 8 needs {needed} open files"):
            config("--nproc-per-node=8", *options, script)


def test_timeout_from_aiodist_timeout(script: str) -> None:
    assert config(script, AIODIST_TIMEOUT="7").meet_timeout == 7


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nproc-per-node=x"], "--nproc-per-node must be a number, auto, cpu or gpu, got 'x'"),
        (["--nproc-per-node=0"], "--nproc-per-node must be at least 1"),
        (["--nnodes=x"], "--nnodes must be a number"),
        (["--nnodes=1:4"], "a job of 4 nodes needs --master-addr"),
        (["--nnodes=1:x"], "--nnodes must be a number or MIN:MAX, got 'x'"),
        (["--nnodes=4:1", "--rdzv-endpoint=h"], "--nnodes 4:1: the most is less than the least"),
        (["--nnodes=0:2", "--rdzv-endpoint=h"], "--nnodes must be at least 1"),
        (["--nproc-per-node=5000"], "--nproc-per-node 5000 is more than one node takes (4096)"),
        (["--nnodes=2"], "needs --master-addr"),
        (["--nnodes=2", "--master-addr=h"], "needs --node-rank"),
        (["--nnodes=2", "--master-addr=h", "--node-rank=2"], "--node-rank 2 is outside"),
        (["--node-rank=1"], "--node-rank 1 is outside"),
        (["--node-rank=x"], "--node-rank must be a number"),
        (["--master-port=x"], "--master-port must be a number"),
        (["--max-restarts=x"], "--max-restarts must be a number"),
        (["--max-restarts=-1"], "--max-restarts must not be negative, got -1"),
        (["--on-failure=restart"], "--on-failure restart is not valid. Use stop or continue"),
        (["--rdzv-conf=last_call_timeout=-1"], "last_call_timeout must not be negative"),
        (["--rdzv-backend=etcd"], "--rdzv-backend etcd"),
        (["--rdzv-conf=timeout"], "is not key=value"),
        (["--rdzv-conf=timeout=x"], "must be a number of seconds, got 'x'"),
        (["--redirects=4"], "--redirects 4 is not valid"),
        (["--tee=1:1"], "--tee 1:1 is not valid"),
        (["--tee=0:x"], "--tee must be a number"),
        (["--local-ranks-filter=1"], "--local-ranks-filter 1"),
        (["--signals-to-handle=SIGKILL"], "'SIGKILL' is not a signal that can be handled"),
        (["--signals-to-handle=TERM"], "'TERM' is not a signal"),
        (["--no-python", "-m"], "exclude each other"),
        (["--line-prefix-template=$planet"], "unknown or broken placeholder"),
    ],
)
def test_refused(script: str, argv: list[str], message: str) -> None:
    with pytest.raises(UsageError) as info:
        config(*argv, script)
    assert message in str(info.value)
    assert "\n" not in str(info.value)


def test_torch_that_loads_no_backends_cannot_be_given_one(script: str) -> None:
    with pytest.raises(UsageError, match="has no effect with TORCH_DEVICE_BACKEND_AUTOLOAD=0"):
        config("--torch", script, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert config("--torch", script).torch


def test_no_such_script_or_program() -> None:
    with pytest.raises(UsageError, match=r"there is no script 'nothing\.py' in "):
        config("nothing.py")
    with pytest.raises(UsageError, match="there is no command 'no-such-command'"):
        config("--no-python", "no-such-command")


def test_a_script_that_cannot_be_looked_at() -> None:
    with pytest.raises(UsageError, match=r"xxx\.py' cannot be read: File name too long$"):
        config("x" * 300 + ".py")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look into every folder")
def test_a_script_in_a_folder_of_another_user(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    try:
        with pytest.raises(UsageError, match=r"train\.py' cannot be read: Permission denied$"):
            config(str(tmp_path / "train.py"))
    finally:
        tmp_path.chmod(0o700)


def test_program_that_cannot_be_run(tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.touch()
    with pytest.raises(UsageError, match=r"plain\.py' is not executable\. chmod \+x .*plain\.py"):
        config("--no-python", str(program))
    with pytest.raises(UsageError, match="' is a folder"):
        config("--no-python", str(tmp_path))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "no script given. For example: aiodist run --nproc-per-node 4 train.py"),
        (["--nproc-per-node", "2"], "no script given. For example: aiodist run --nproc-per-node 4 train.py"),
        (["--nproc", "2", "x.py"], "there is no option --nproc. Did you mean --nproc-per-node?"),
        (
            ["--nporc_per_node=2", "x.py"],
            "there is no option --nporc_per_node. Did you mean --nproc-per-node?",
        ),
        (["-np", "2", "x.py"], "there is no option -np. Did you mean --nproc-per-node?"),
        (["--planet", "2", "x.py"], "there is no option --planet. 'aiodist run --help' lists the options"),
        (
            ["--nproc-per-node"],
            "argument --nproc-per-node: expected one argument. 'aiodist run --help' lists the options",
        ),
    ],
)
def test_a_wrong_command_line_gets_one_line(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError) as info:
        config(*argv)
    assert str(info.value) == message


@pytest.mark.parametrize(
    "option",
    [
        *("-n", "-np", "--np", "--nproc", "--nprocs", "--num-procs", "--num-processes", "--num_processes"),
        *("--world-size", "--world_size"),
    ],
)
def test_other_launchers_words_for_the_number_of_workers_are_understood(option: str) -> None:
    with pytest.raises(UsageError) as info:
        config(option, "4", "x.py")
    assert str(info.value) == f"there is no option {option}. Did you mean --nproc-per-node?"


@pytest.mark.parametrize("option", ["--nnode", "--nodes", "--num-nodes", "--num_machines"])
def test_other_launchers_words_for_the_number_of_nodes_are_understood(option: str) -> None:
    with pytest.raises(UsageError) as info:
        config(option, "2", "x.py")
    assert str(info.value) == f"there is no option {option}. Did you mean --nnodes?"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ndef f(:\n  pass", "train.py, line 2: invalid syntax: def f(:"),
        (
            "if True:\nx = 1",
            "train.py, line 2: expected an indented block after 'if' statement on line 1: x = 1",
        ),
        ("a\0b", "null bytes"),
    ],
)
def test_a_script_that_cannot_be_compiled_is_said_once(script: str, source: str, message: str) -> None:
    Path(script).write_text(source)
    with pytest.raises(UsageError) as info:
        config(script)
    assert message in str(info.value)


def test_a_scripts_warnings_are_left_to_the_workers(script: str) -> None:
    Path(script).write_text("assert (1, 'always true')")
    assert config(script).command[-1] == script


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a folder without a __main__\.py"):
        config(str(tmp_path))
    (tmp_path / "__main__.py").touch()
    assert config(str(tmp_path)).command[-1] == str(tmp_path)


def test_help_shows_each_option_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        config("--help")
    shown = capsys.readouterr().out
    assert info.value.code == 0
    assert shown.startswith("usage: aiodist run [options] script [argument …]\n")
    assert "example: aiodist run --nproc-per-node 4 train.py" in shown
    assert "--nproc_per_node" not in shown and "--log-line-prefix-template" not in shown


@pytest.mark.parametrize(("visible", "count"), [("0,1,2", 3), ("GPU-1", 1)])
def test_gpus_by_visible_devices(visible: str, count: int) -> None:
    assert workers_per_node("gpu", {"CUDA_VISIBLE_DEVICES": visible}) == count
    assert workers_per_node("auto", {"CUDA_VISIBLE_DEVICES": visible}) == count


def test_no_gpu_means_cpus() -> None:
    none: dict[str, Any] = {"CUDA_VISIBLE_DEVICES": ""}
    assert 1 <= workers_per_node("cpu", none) <= (os.cpu_count() or 1)
    assert workers_per_node("auto", none) == workers_per_node("cpu", none)
    with pytest.raises(UsageError, match="there is no GPU here"):
        workers_per_node("gpu", none)


STEP = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize("options", [[], ["--standalone"], ["--nnodes", "1"], ["--nproc-per-node", "2"]])
def test_one_of_several_agents_with_a_job_of_its_own_is_refused(script: str, options: list[str]) -> None:
    made = config(*options, script)
    with pytest.raises(UsageError, match=r"^SLURM_STEP_NUM_TASKS=2: this agent is one of several .*--nnodes"):
        check_company(made, STEP)
    assert check_company(made, {**STEP, "AIODIST_ALONE": "1"}) == ""
    warned = check_company(made, {"JOB_COMPLETION_INDEX": "1"})
    assert warned.startswith("JOB_COMPLETION_INDEX=1, but this is a job of one node, and of its own. ")


def test_agents_that_meet_may_be_started_by_others(script: str) -> None:
    meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "h:1")
    assert check_company(config("--nnodes", "2", *meet, script), STEP) == ""
    assert check_company(config("--nnodes", "1:2", *meet, script), STEP) == ""


def test_a_dashboard_has_all_output_in_files_and_shown(script: str) -> None:
    made = config("--dashboard", "--nproc-per-node=3", "-r", "1:3,2:1", script)
    assert made.dashboard and made.wants_files
    for local in range(3):
        assert made.filed(local, 1) and made.filed(local, 2)
    shown = [(made.on_console(local, 1), made.on_console(local, 2)) for local in range(3)]
    assert shown == [(True, True), (False, False), (False, True)]
    assert not config(script).dashboard and not config(script).wants_files
    assert config(script, PET_DASHBOARD="1").dashboard


def test_the_folder_of_logs_is_where_it_was_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers, and the page, may work somewhere else."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for named in ("~/logs", "logs", "./logs", str(tmp_path / "logs")):
        assert make_config(["--log-dir", named, "--no-python", "true"], {}).log_dir == str(tmp_path / "logs")
