"""The digits example with --elastic: kill workers while it trains; it ends with the result of one process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("sklearn") is None, reason="scikit-learn is not installed")
ROOT = Path(__file__).parents[2]
# However fast the epochs are, and however slow the start of a process: who was killed can come back in time.
PACED = """
import sys, time
sys.path.insert(0, "examples")
import train_digits

show = train_digits.progress

def progress(*shown):
    show(*shown)
    if shown[-1] < 3:
        time.sleep(0.4)

train_digits.progress = progress
train_digits.main()
"""
LAUNCH = (sys.executable, "-m", "aiodist", "run", "--nproc-per-node", "3", "--max-restarts", "9")
EPOCHS = 150


def parent(pid: int) -> int:
    """Of a process; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def workers(launcher: int) -> dict[int, int]:
    """Pids of a launcher's workers, by RANK. Between them are the spawner and a guardian for each."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = dict(
                pair.split(b"=", 1) for pair in (entry / "environ").read_bytes().split(b"\0") if b"=" in pair
            )
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        ancestor = parent(parent(parent(int(entry.name))))
        if ancestor == launcher and b"RANK" in variables and b"--elastic" in words:
            found[int(variables[b"RANK"])] = int(entry.name)
    return found


@pytest.mark.slow("a training of 150 epochs, with two deaths")
@pytest.mark.skipif(sys.platform != "linux", reason="looks for the workers in /proc")
def test_the_result_is_the_same_whoever_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "paced.py"
    script.write_text(PACED)
    job = subprocess.Popen(
        [*LAUNCH, str(script), "--elastic", "--epochs", str(EPOCHS)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert job.stdout is not None
    said = b""
    victims = [0, 2]
    killed_at, back, since = 0, True, 0
    try:
        while piece := os.read(job.stdout.fileno(), 65536):
            said += piece
            lines = re.findall(rb"epoch +(\d+)/%d .* (\d) ranks" % EPOCHS, said[-4000:])
            epoch, ranks = map(int, lines[-1]) if lines else (0, 0)
            if epoch > killed_at and not back:
                back = ranks == 3 and b"2 ranks" in said[since:]
            if epoch > killed_at + 20 and back and victims:
                os.kill(workers(job.pid)[victims.pop()], signal.SIGKILL)
                killed_at, back, since = epoch, False, len(said)
        assert job.wait() == 0, said.decode()
    finally:
        job.kill()
        job.wait()
        job.stdout.close()
    words = said.decode()
    assert not victims
    assert back, "nobody came back"
    assert re.search(r"held-out accuracy: 0\.9[78]", words)
    assert words.count("into the running group") == 2
