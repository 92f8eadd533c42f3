"""Programs of Debian's, installed where that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest


def debian(program: str, *packages: str) -> str:
    """The path of a program of Debian's; installs it where that is allowed."""
    if shutil.which(program) is None:
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise unittest.SkipTest(f"there is no {program}")
        environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        check("apt-get", "update", "-qq", env=environ)
        check("apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages, env=environ)
    found = shutil.which(program)
    if found is None:
        raise unittest.SkipTest(f"{packages} bring no {program}")
    return found


def check(*command: str, env: dict[str, str] | None = None) -> None:
    """Run a command; skip, with its last words, where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise unittest.SkipTest(f"{' '.join(command)[:80]}: {words[-1] if words else done.returncode}")
