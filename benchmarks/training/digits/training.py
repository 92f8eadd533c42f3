"""One training under the launcher, with the deaths of a plan or without: killed workers come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.harness.command import ROOT
from benchmarks.harness.peers import AIODIST, environment
from benchmarks.training.digits.algorithms import RANKS
from benchmarks.training.digits.board import FREE, Board
from benchmarks.training.digits.model import digits
from benchmarks.training.digits.plan import Deaths

PATIENCE = 120.0
_SLOWLY = 0.01  # seconds of a step while a rank is on its way back


@dataclass(frozen=True)
class Outcome:
    """What has come out of one training.

    Attributes:
        seed: of the training.
        kills: ranks that took part and were killed.
        ranks: that have ended with a result.
        loss, held_out: cross entropy on the images to train with, and on those held out.
        accuracy: share of the held-out images that are recognised.
        weights: digest of all bits.
        seconds: of the whole.
    """

    seed: int
    kills: int
    ranks: int
    loss: float
    held_out: float
    accuracy: float
    weights: str
    seconds: float


def train(folder: Path, name: str, seed: int, steps: int, deaths: Sequence[Deaths] = ()) -> Outcome:
    """Run one training.

    Args:
        folder: for its files; made.
        name: of the algorithm.
        seed: of the training.
        steps: how many.
        deaths: who is killed when.

    Raises:
        RuntimeError: it did not end well, or ranks that have ended have different weights.
    """
    folder.mkdir(parents=True)
    np.savez(folder / "digits.npz", **asdict(digits()))
    board = Board(folder / "board", RANKS)
    board.allow(0 if deaths else FREE)
    words = [
        "run",
        "--nproc-per-node",
        str(RANKS),
        "--max-restarts",
        "1000",
        "-m",
        "benchmarks.training.digits.worker",
    ]
    command = [sys.executable, "-m", "aiodist", *words, str(folder), name, str(seed), str(steps)]
    environ = environment(AIODIST) | {"XDG_STATE_HOME": str(folder / "state")}
    began = time.perf_counter()
    with open(folder / "output", "wb") as output:
        job = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=output, stderr=output)
    try:
        kills = _Killer(job, board, folder / "output").carry_out(deaths)
        code = job.wait(PATIENCE)
    finally:
        if job.poll() is None:
            job.send_signal(signal.SIGINT)  # its workers end with it
            job.wait()
    seconds = time.perf_counter() - began
    ends = [json.loads(path.read_text()) for path in sorted(folder.glob("end-*.json"))]
    if code or not ends:
        raise RuntimeError(f"{name}, seed {seed}: the job ended with {code}:\n{_tail(folder / 'output')}")
    if any(end != ends[0] for end in ends):
        raise RuntimeError(f"{name}, seed {seed}: ranks ended with different results: {ends}")
    return Outcome(seed, kills, len(ends), seconds=seconds, **ends[0])


class _Killer:
    """Whoever kills workers as planned, and lets the others go on."""

    def __init__(self, job: subprocess.Popen[bytes], board: Board, output: Path) -> None:
        self._job, self._board, self._output = job, board, output

    def carry_out(self, deaths: Sequence[Deaths]) -> int:
        """Kill as planned → how many members were killed."""
        board, killed = self._board, 0
        for death in deaths:
            self._advance(death.step)
            board.allow(death.step + death.ahead)
            self._until(partial(self._at, death.step), f"step {death.step}")
            victims: dict[int, int] = {}
            for slot, seconds in death.kills:
                time.sleep(seconds)
                able = [one for one in range(RANKS) if board.member(one) and one not in victims]
                if len(able) > 1:  # if all die nobody has the values
                    chosen = slot if slot in able else able[slot % len(able)]
                    victims[chosen] = board.pid(chosen)
                    os.kill(victims[chosen], signal.SIGKILL)
            killed += len(victims)
            self._back(victims)
        self._advance(FREE)
        board.allow(FREE)
        return killed

    def _back(self, victims: dict[int, int]) -> None:
        """Wait until others are in the place of killed processes; the living go on up to their limit."""

        def back() -> bool:
            return all(self._board.pid(slot) != pid for slot, pid in victims.items())

        self._until(back, f"the return of {sorted(victims)}")

    def _advance(self, to: int) -> None:
        """Let them go on slowly until all are members, or to a step: so newcomers are not too late."""
        board = self._board
        while not self._complete() and board.allowed < to and self._job.poll() is None:
            board.allow(board.allowed + 1)
            time.sleep(_SLOWLY)

    def _complete(self) -> bool:
        return all(map(self._board.member, range(RANKS)))

    def _at(self, step: int) -> bool:
        return max(map(self._board.step, range(RANKS))) >= step

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        limit = time.monotonic() + PATIENCE
        while not holds():
            if self._job.poll() is not None:
                return  # how it has ended is looked at later
            if time.monotonic() > limit:
                raise RuntimeError(f"{what} did not come within {PATIENCE:g} s:\n{_tail(self._output)}")
            time.sleep(0.0005)


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-40:])
