"""A real sshd on each host, with a key of its own, and the client that gets in."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import unittest
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.launchers.found import debian

_PATIENCE = 30.0
_SERVER = """
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin yes
MaxStartups 200
MaxSessions 200
SetEnv {mark}
"""
_CLIENT = """
IdentityFile {folder}/key
UserKnownHostsFile {folder}/known
StrictHostKeyChecking accept-new
LogLevel ERROR
"""


def lay(folder: Path, mark: str) -> list[str]:
    """Write a key and the configuration of both ends into a folder → the command of a server.

    Args:
        mark: 'NAME=value', a variable of every session.

    Raises:
        unittest.SkipTest: there is no sshd.
    """
    server = debian("sshd", "openssh-server", "openssh-client")
    Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it
    key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")]
    subprocess.run(key, check=True, stdin=subprocess.DEVNULL)
    config = folder / "sshd_config"
    config.write_text(_SERVER.format(folder=folder, mark=mark))
    (folder / "ssh_config").write_text(_CLIENT.format(folder=folder))
    return [server, "-D", "-f", str(config)]


class Sshd:
    """The servers of some hosts.

    Args:
        folder: for keys and configuration.
        lines: for each host's address a command line that runs what follows it there.
        mark: 'NAME=value', a variable of every session.
    """

    def __init__(self, folder: Path, lines: Mapping[str, Sequence[str]], mark: str) -> None:
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        server = lay(folder, mark)
        self.client = folder / "bin" / "ssh"
        self.client.parent.mkdir()
        self.client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
        self.client.chmod(0o755)
        self._servers = [
            subprocess.Popen([*line, *server], stdin=subprocess.DEVNULL) for line in lines.values()
        ]
        for address in lines:
            self._wait(address)

    def _wait(self, address: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                socket.create_connection((address, 22), 1.0).close()
                return
            except OSError as error:
                if time.monotonic() > deadline or any(one.poll() is not None for one in self._servers):
                    self.close()
                    raise unittest.SkipTest(f"sshd does not start: {error}") from None
                time.sleep(0.05)

    def path(self) -> str:
        """A PATH on which `ssh` is this client."""
        return f"{self.client.parent}{os.pathsep}{os.environ['PATH']}"

    def close(self) -> None:
        """End the servers."""
        for server in self._servers:
            server.terminate()
            server.wait()
