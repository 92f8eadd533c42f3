"""The guardian kills what it was told of when its pipe ends, and only that."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aiodist.launch.worker.guardian import Guardian


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True
    )
    yield process
    process.kill()
    process.wait()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # pytest's own threads
def test_it_kills_what_was_added(sleeper: subprocess.Popen[bytes]) -> None:
    guardian = Guardian.start()
    guardian.add(sleeper.pid)
    guardian.close()
    assert sleeper.wait() == -signal.SIGKILL


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_it_leaves_alone_what_was_removed(sleeper: subprocess.Popen[bytes]) -> None:
    guardian = Guardian.start()
    guardian.add(sleeper.pid)
    guardian.remove(sleeper.pid)
    guardian.close()
    assert sleeper.poll() is None


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_without_it_the_agent_goes_on() -> None:
    guardian = Guardian.start()
    subprocess.run(["kill", "-KILL", str(guardian.pid)], check=True)
    guardian.add(1 << 30)
    guardian.close()
