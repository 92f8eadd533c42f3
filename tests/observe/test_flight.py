"""Dumps of torch's flight recorder: what torch's own analyzer says of them is what is so."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aiodist.cli.main import main
from aiodist.observe import JobView, RankView
from aiodist.observe.dumps import open_given, write
from aiodist.observe.flight import flight
from aiodist.observe.recorder import Record
from aiodist.observe.recorder.reading import Group, Sum
from tests.levels import COSTLY
from tests.observe.made import a_job, a_rank, a_record

SUB = Group("sub", 0, (1, 3))
OPS = [
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "gather",
    "new_group",
]


def operations(start: int = 0, stop: int = 8, **more: Any) -> list[Record]:
    """One of each kind, one second after the other, that all ended before the loop slept."""
    return [
        a_record(OPS[number % 8], number, 10.0 + number / 10, **{"root": 0, "shape": (2, 3)} | more)
        for number in range(start, stop)
    ]


def good() -> list[RankView]:
    """Ranks that all did the same, two of them also in a group of their own."""
    more = [a_record(number=number, issued=11.0 + number / 10, group=SUB) for number in range(3)]
    return [a_rank(rank, operations() + (more if rank in SUB.ranks else [])) for rank in range(4)]


def analyzed(ranks: list[RankView], folder: Path, *options: str) -> tuple[str, Any]:
    """What torch's analyzer prints, and the collectives of its database."""
    pytest.importorskip("torch.distributed.flight_recorder.fr_trace")
    with open_given(folder / "dump") as dump:
        for rank in ranks:
            write(dump, rank)
    assert main(["trace", str(folder / "dump"), "--format", "torch", "-o", str(folder / "torch")]) == 0
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(folder / "torch")]
    done = subprocess.run(
        [*command, "-o", str(folder / "db"), *options], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    with open(folder / "db", "rb") as file:
        _, database = pickle.load(file)
    return done.stdout + done.stderr, database.collectives


def verdicts(said: str) -> list[str]:
    return [
        line for line in said.splitlines() if "rror" in line or "ot all ranks" in line or "decide" in line
    ]


@pytest.mark.slow("torch starts in a process of its own")
def test_a_good_job(tmp_path: Path) -> None:
    said, collectives = analyzed(good(), tmp_path)
    assert verdicts(said) == []
    assert len(collectives) == 8 + 3
    assert all(one.pass_check for one in collectives)


@pytest.mark.slow(COSTLY)
def test_a_rank_that_is_missing(tmp_path: Path) -> None:
    """Rank 2 computes on, and has not issued what the others wait in for seconds."""
    waits = a_record(number=8, issued=15.0, pending=15.0)
    ranks = [
        rank if rank.rank == 2 else a_rank(rank.rank, rank.recording.last, pending=[waits]) for rank in good()
    ]
    said, collectives = analyzed(ranks, tmp_path)
    assert "Not all ranks joining collective, sequence number: 8" in said
    assert "missing ranks: {2}" in said
    (wrong,) = [one for one in collectives if one.missing_ranks]
    assert wrong.missing_ranks == {2}
    assert wrong.collective_frames == [{"name": "main", "filename": "/home/u/train.py", "line": 41}]


@pytest.mark.slow("torch starts in a process of its own")
def test_a_rank_that_does_something_else(tmp_path: Path) -> None:
    ranks = good()
    ranks[1] = a_rank(1, [*operations(0, 7), a_record("barrier", 7, 10.7, shape=())])
    said, collectives = analyzed(ranks, tmp_path)
    assert "sequence number: 7 has errors" in said
    assert not all(one.pass_check for one in collectives)


@pytest.mark.slow("torch starts in a process of its own")
def test_a_rank_that_wrote_nothing(tmp_path: Path) -> None:
    said, _ = analyzed(good()[:3], tmp_path, "--allow-incomplete-ranks")
    assert "We cannot decide what's wrong" in said
    assert "({3})" in said


def numbers(dumps: Mapping[int, Any]) -> dict[int, list[int]]:
    return {rank: [entry["collective_seq_id"] for entry in dump["entries"]] for rank, dump in dumps.items()}


def two(one: list[Record], other: list[Record], **more: Any) -> JobView:
    """A job of two ranks, in a world of two."""
    world = Group("world", 0, range(2))
    return a_job(*(
        a_rank(rank, [replace(record, group=world) for record in last], size=2, **more)
        for rank, last in enumerate((one, other))
    ))  # fmt: skip


def test_numbers_that_a_ring_has_lost_are_left_out_everywhere() -> None:
    holes = [record for record in operations(0, 20) if record.number not in (4, 9)]
    assert numbers(flight(two(operations(2, 20), holes))) == {
        0: list(range(10, 20)),
        1: list(range(10, 20)),
    }


def test_what_was_in_flight_is_left_out() -> None:
    """Rank 1 was seen before it issued the last two; rank 0 afterwards."""
    assert numbers(flight(two(operations(), operations(0, 6), flushed=10.9))) == {
        0: list(range(6)),
        1: list(range(6)),
    }
    late = two(operations(), operations(0, 6), flushed=12.0)
    assert numbers(flight(late)) == {0: list(range(8)), 1: list(range(6))}
    dead = [replace(rank, alive=rank.rank == 0) for rank in two(operations(), operations(0, 6)).ranks]
    assert numbers(flight(a_job(*dead))) == {0: list(range(8)), 1: list(range(6))}


def test_groups_whose_operations_were_all_pushed_out() -> None:
    job = two(operations(), [])
    world = job.ranks[0].recording.last[0].group
    sums = Sum(world, "all_reduce", "float32", (3,), "SUM", -1, 0, 12, 9, 0, 0, 0.0, 0.0)
    quiet = job.ranks[1]
    pushed = replace(quiet, recording=replace(quiet.recording, sums=(sums,)))
    assert numbers(flight(a_job(job.ranks[0], pushed))) == {0: [], 1: []}
    assert numbers(flight(job)) == {0: list(range(8)), 1: []}


def test_messages_and_unknown_operations_are_left_out() -> None:
    odd = [a_record("send", 0, root=1), a_record("?", 0, group=None), a_record("novel", 0)]
    assert flight(a_job(a_rank(0, odd)))[0]["entries"] == []
    assert flight(JobView("cafe", ())) == {}


def test_what_an_entry_tells() -> None:
    slept = a_record("all_gather", 0, 10.0, pending=10.0, arrived=12.0, ended=13.0, shape=(2, 3))
    dump = flight(two([slept], [slept]))[1]
    (entry,) = dump["entries"]
    assert entry["profiling_name"] == "gloo:all_gather"
    assert (entry["input_sizes"], entry["output_sizes"]) == ([[2, 3]], [[2, 2, 3]])
    assert (entry["state"], entry["duration_ms"]) == ("completed", 3000.0)
    assert entry["time_created_ns"] == 1_000_000_010_000_000_000
    config = dump["pg_config"][entry["process_group"][0]]
    assert (config["desc"], config["ranks"]) == ("world", "[0, 1]")
    assert [status["last_completed_collective"] for status in dump["pg_status"].values()] == [-1, 0]


def test_a_folder_that_is_not_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_given(tmp_path / "d") as folder:
        write(folder, a_rank(0))
    assert main(["trace", str(tmp_path / "d"), "--format", "torch", "-o", str(tmp_path / "d")]) == 2
    assert "there is something in" in capsys.readouterr().err
    assert main(["trace", str(tmp_path / "d"), "--format", "torch", "-o", str(tmp_path / "x" / "y")]) == 1
    assert "cannot write into" in capsys.readouterr().err
