"""Dumps: they come back as they were, nobody else reads them, old ones go, and nonsense is told in a line."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.base.errors import UsageError, WireError
from aiodist.observe import RankView, Stacks
from aiodist.observe.dumps import KEPT, home, open_given, open_kept, read_job, write
from aiodist.observe.recorder.reading import Clock
from tests.observe.made import a_rank, a_record, as_json

NOON = 1_700_000_000.0


def views() -> list[RankView]:
    ended = a_record("recv", 3, root=1, tag=7, pending=10.5, first=11.0, ended=11.5)
    first = a_rank(0, [a_record(), ended], events=["a \x1b[31mred\x1b[0m word"])
    second = a_rank(1, [a_record()], pending=[a_record(pending=11.0)], alive=False)
    return [first.placed(1.5, 0.25, 1e-6), second]


def test_a_dump_comes_back_as_it_was(tmp_path: Path) -> None:
    with open_given(tmp_path / "logs" / "deep") as folder:
        for view in views():
            assert write(folder, view).name == f"rank{view.rank}.json"
            write(folder, view)
        assert folder.names() == ["rank0.json", "rank1.json"]
    assert read_job(tmp_path / "logs" / "deep").ranks == tuple(views())


def test_clocks_and_stacks_come_back() -> None:
    from dataclasses import replace

    view = a_rank(2)
    clock = Clock(1, -2.5, 1e-6, 1e-4, 19.0)
    whole = replace(
        view, recording=replace(view.recording, clocks=(clock,)), stacks=Stacks(("a",), ("b", "c"), True)
    )
    assert RankView.from_json(as_json(whole)) == whole


def test_only_this_user_reads_it(tmp_path: Path) -> None:
    with open_kept("cafe", {"XDG_STATE_HOME": str(tmp_path)}, NOON) as folder:
        path = write(folder, a_rank())
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
        assert folder.path.name == "2023-11-14T22-13-20Z-cafe"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_no_link_is_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank0.json").symlink_to(other)
    with open_given(tmp_path / "logs") as folder:
        write(folder, a_rank())
    assert other.read_text() == "precious"
    (tmp_path / "logs").chmod(0o777)
    with pytest.raises(OSError, match="others may write"):
        open_given(tmp_path / "logs")


def test_the_ranks_of_a_job_share_a_folder_and_the_last_ten_stay(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}

    def names() -> list[str]:
        return sorted(path.name for path in home(environ).iterdir() if path.is_dir())

    for number in range(KEPT + 3):
        for moment in (0.0, 2.0):
            with open_kept("cafe", environ, NOON + 1000 * number + moment) as folder:
                write(folder, a_rank(int(moment)))
    assert len(names()) == KEPT
    assert names()[-1].startswith("2023-11-15T01-33-20Z")
    with open_kept("beef", environ, NOON + 1000 * (KEPT + 2)) as folder:
        assert folder.path.name.endswith("-beef")
    assert len(names()) == KEPT
    assert len(read_job(home(environ) / names()[-1]).ranks if "cafe" in names()[-1] else names()) > 1


def test_where_dumps_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    usual = tmp_path / ".local" / "state" / "aiodist" / "jobs"
    assert home({}) == home({"XDG_STATE_HOME": "relative"}) == usual
    with open_kept("cafe", {}, NOON) as folder:
        assert folder.path.parent == usual


def test_what_is_no_dump(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the folder"):
        read_job(tmp_path / "none")
    with pytest.raises(UsageError, match="no rank has written"):
        read_job(tmp_path)
    (tmp_path / "rank0.json").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        read_job(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "1", "[" * 100_000, '{"now": NaN}', "\xff"])
def test_a_file_that_is_nonsense(text: str, tmp_path: Path) -> None:
    (tmp_path / "rank3.json").write_text(text, encoding="latin-1")
    with pytest.raises(WireError, match=r"rank3.json' is no rank's dump \(") as info:
        read_job(tmp_path)
    assert "\n" not in str(info.value)


def test_of_two_jobs_in_a_folder_the_last_is_read(tmp_path: Path) -> None:
    from dataclasses import replace

    with open_given(tmp_path / "d") as folder:
        write(folder, a_rank(0))
        newer = a_rank(1)
        write(folder, replace(newer, key="new", recording=replace(newer.recording, began=2.0)))
    assert [rank.rank for rank in read_job(tmp_path / "d").ranks] == [1]


WRONG: list[Any] = [None, "x", -1, 1.5, [], {}, float("nan"), float("inf"), 10**400, True]


@given(st.data())
def test_a_value_of_another_kind_is_told_or_harmless(data: st.DataObject) -> None:
    told = as_json(views()[1])
    at = told
    while True:
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
        inner = at[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        at = inner
    at[key] = data.draw(st.sampled_from(WRONG))
    try:
        view = RankView.from_json(json.loads(json.dumps(told)))
    except WireError:
        return
    from aiodist.observe.explain import explain
    from tests.observe.made import a_job

    assert len(explain(a_job(view), (), "aiodist trace")) <= 10


def test_what_lies_in_the_users_folder_beside_dumps_stays(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    jobs = home(environ)
    jobs.mkdir(parents=True)
    (jobs / "2023-99-99T99-99-99Z-x").mkdir()
    (jobs / "mine").mkdir()
    for number in range(KEPT + 1):
        open_kept("cafe", environ, NOON + 1000 * number).close()
    assert (jobs / "mine").exists()
    assert len(os.listdir(jobs)) == KEPT + 3


def test_an_old_jobs_logs_go_with_it_and_what_its_links_name_stays(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    with open_kept("cafe", environ, NOON) as folder:
        logs = folder.path / "attempt_0" / "3"
    logs.mkdir(parents=True)
    (logs / "stdout.log").write_text("hello\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (logs / "link").symlink_to(tmp_path / "mine")
    for number in range(1, KEPT + 1):
        open_kept("cafe", environ, NOON + 1000 * number).close()
    assert not folder.path.exists()
    assert (tmp_path / "mine" / "file").exists()
