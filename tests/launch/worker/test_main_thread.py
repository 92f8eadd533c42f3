"""Signals go to a worker's main thread, whatever its process is called."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from aiodist.launch.worker.main_thread import send_to_main_thread

NAMED = "import sys; open('/proc/self/comm', 'wb').write({name!r}); print(flush=True); sys.stdin.read()"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at Linux's /proc")
@pytest.mark.parametrize("name", [b"worker", b"\xff: S", b"a\nState:\tZ"])
def test_a_process_of_any_name_is_signalled(name: bytes) -> None:
    command = [sys.executable, "-c", NAMED.format(name=name)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        send_to_main_thread(child.pid, signal.SIGTERM)
        assert child.wait(30) == -signal.SIGTERM
