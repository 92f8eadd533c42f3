"""A Slurm of two hosts: its daemons, and the files that they need."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import unittest
from pathlib import Path

from tests.launchers.found import debian
from tests.launchers.ground import Ground

_PATIENCE = 60.0
_CONF = """
ClusterName=test
SlurmctldHost={a}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdParameters=config_overrides
KillWait=2
NodeName={a} NodeAddr=10.78.0.1 CPUs=4 State=UNKNOWN
NodeName={b} NodeAddr=10.78.0.2 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """The daemons of one job's time.

    Args:
        ground: with the hosts.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.folder = folder = ground.folder / "slurm"
        self._a, self._b = ground.hosts
        packages = ("slurmctld", "slurmd", "slurm-client", "munge")
        for program in ("slurmctld", "slurmd", "srun", "munged"):
            debian(program, *packages)
        for name in ("state", f"spool.{self._a}", f"spool.{self._b}"):
            shutil.rmtree(folder / name, ignore_errors=True)  # it remembers jobs
            (folder / name).mkdir(parents=True)
        self.conf = folder / "slurm.conf"
        self.conf.write_text(_CONF.format(a=self._a, b=self._b, folder=folder))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        key = folder / "munge.key"
        if not key.exists():
            key.write_bytes(os.urandom(1024))
        key.chmod(0o400)

    @property
    def daemons(self) -> list[list[str]]:
        """Their command lines."""
        folder, on = self.folder, self._ground.on
        munged = ["munged", "--force", "--foreground", f"--key-file={folder}/munge.key"]
        munged += [f"--{name}-file={folder}/munge.{name}" for name in ("log", "pid", "seed")]
        munged.append(f"--socket={folder}/munge.socket")
        conf = str(self.conf)
        lines = [munged, on(self._a, "slurmctld", "-D", "-f", conf)]
        # `ip netns exec` hides the groups of processes that slurmd asks for.
        groups = (
            "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/freezer && "
            'mount -t cgroup -o freezer none /sys/fs/cgroup/freezer; exec "$@"'
        )
        hidden = ["unshare", "--mount", "sh", "-c", groups, "sh", "slurmd", "-D", "-f", conf, "-N"]
        lines.extend(on(host, *hidden, host) for host in (self._a, self._b))
        return lines

    def ready(self) -> None:
        """Wait until both nodes are idle."""
        command = self._ground.on(self._a, "sinfo", "-h", "-o", "%D %t")
        environ = {**os.environ, "SLURM_CONF": str(self.conf)}
        deadline = time.monotonic() + _PATIENCE
        said = ""
        while time.monotonic() < deadline:
            done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
            said = done.stdout + done.stderr
            if "2 idle" in done.stdout:
                return
            time.sleep(0.2)
        raise unittest.SkipTest(f"Slurm does not get ready: {said.strip()[-100:]}")


def log_of(folder: Path) -> str:
    """The ends of the daemons' logs, for who looks why."""
    return "\n".join(f"{path}: {path.read_text(errors='replace')[-1500:]}" for path in folder.glob("*.log"))
