"""docs/torch-table.md is true: every public name of the installed torch, and what it promises is here."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import aiodist
from aiodist.base.torch_names import HERE
from aiodist.group import ProcessGroup
from aiodist.rendezvous import HashStore
from aiodist.testing import run_cluster

pytestmark = pytest.mark.filterwarnings("ignore:.*reduce_op.*:FutureWarning")  # torch warns of a mere look

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def maker() -> Iterator[ModuleType]:
    """docs/make_torch_table.py, which is a script beside its data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        spec = importlib.util.spec_from_file_location("make_torch_table", DOCS / "make_torch_table.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
        sys.modules.pop("torch_calls", None)


@pytest.fixture(scope="module")
def torch_distributed() -> Any:
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing to compare the table with")
    if series(torch.__version__) < (2, 13):
        pytest.skip(f"the table is of torch 2.13 and later, this is {torch.__version__}")
    import torch.distributed as found

    if not found.is_available():
        pytest.skip("this torch was built without torch.distributed")
    return found


Names = dict[str, list[str] | None]


def members(cls: Any) -> Names:
    return {name: signature(getattr(cls, name), name) for name in dir(cls) if not name.startswith("_")}


def signature(torchs: Any, name: str) -> list[str] | None:
    """Parameter names; None where torch does not tell them (attributes, and C++ code without names)."""
    if inspect.isclass(torchs):
        if "pybind11" in type(torchs).__name__ or not inspect.isfunction(torchs.__init__):
            return described(torchs.__init__.__doc__ or "", "__init__")
        found = inspect.signature(torchs.__init__).parameters
    elif inspect.isfunction(torchs):
        found = inspect.signature(torchs).parameters
    else:
        return described(getattr(torchs, "__doc__", "") or "", name)
    return [name for name in found if name != "self" and not name.startswith("_")]


def described(text: str, name: str) -> list[str] | None:
    """Parameters as the first line of a C++ function's docstring gives them."""
    match = re.match(rf"{name}\((.*?)\) ->", text.strip())
    if match is None:
        return None
    names = re.findall(r"(?:^|, )(\w+): ", match[1])
    return None if any(re.fullmatch(r"arg\d+", each) for each in names) else names[1:]  # the first is self


def calls(distributed: Any) -> Names:
    c10d = distributed.distributed_c10d
    found: Names = {}
    for name in {*c10d.__all__, *dir(distributed)}:
        torchs = vars(c10d).get(name) if name in c10d.__all__ else getattr(distributed, name)
        segment = str(getattr(torchs, "__module__", "")).partition(".")[0]
        imported = name not in c10d.__all__ and segment in sys.stdlib_module_names
        if not name.startswith("_") and not inspect.ismodule(torchs) and not imported:
            found[name] = signature(torchs, name)
    return found


def stores(distributed: Any) -> Names:
    found = members(distributed.Store)
    for cls in (distributed.TCPStore, distributed.FileStore, distributed.HashStore, distributed.PrefixStore):
        found |= {f"{cls.__name__}.{name}": None for name in members(cls).keys() - members(distributed.Store)}
    return found


WALKS: dict[str, Callable[[Any], Names]] = {
    "calls": calls,
    "reduce": lambda distributed: members(distributed.ReduceOp),
    "work": lambda distributed: members(distributed.Work),
    "store": stores,
    "group": lambda distributed: members(distributed.ProcessGroup),
}


def is_expected(only: str) -> bool:
    """Whether the installed torch has to have a name that only some have."""
    if only == "CUDA":
        return False  # which of a build's names there are follows its version, too
    return not only or series(sys.modules["torch"].__version__) >= series(only)


def series(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


@pytest.mark.parametrize("section", sorted(WALKS))
def test_every_public_name_of_torch_is_in_the_table(
    section: str, maker: ModuleType, torch_distributed: Any
) -> None:
    names = maker.SECTIONS[section][2]
    walked = set(WALKS[section](torch_distributed))
    assert walked - set(names) == set(), "say in docs/torch_calls.py what becomes of these"
    expected = {name for name, fate in names.items() if is_expected(fate.only)}
    assert expected - walked == set(), "these are not in the installed torch any more"


@pytest.mark.parametrize("section", sorted(WALKS))
def test_what_is_ticked_takes_torchs_parameters(
    section: str, maker: ModuleType, torch_distributed: Any
) -> None:
    _, owner, names = maker.SECTIONS[section]
    walked = WALKS[section](torch_distributed)
    compared = 0
    for name, fate in names.items():
        theirs = walked.get(name)
        if fate.mark != "✓" or theirs is None:
            continue
        mine = maker.parameters(maker.ours(owner, name, fate))
        if mine is not None:
            assert mine[: len(theirs)] == theirs, (
                f"{name}{tuple(mine)} does not begin as torch's{tuple(theirs)}"
            )
            compared += 1
    assert compared >= {"calls": 45, "reduce": 0, "work": 5, "store": 2, "group": 2}[section]


def test_a_difference_would_be_seen(torch_distributed: Any) -> None:
    names = calls(torch_distributed)
    assert names["barrier"] == ["group", "async_op", "device_ids", "timeout"]
    assert names["P2POp"] == ["op", "tensor", "peer", "group", "tag", "group_peer"]
    assert names["PrefixStore"] == ["prefix", "store"]
    assert "sys" not in names and "timedelta" not in names and "rpc" not in names
    assert members(torch_distributed.Work)["wait"] == ["timeout"]
    assert stores(torch_distributed)["queue_pop"] == ["key", "block"]
    assert stores(torch_distributed)["add"] is None


def test_every_row_has_its_target_or_its_reason(maker: ModuleType) -> None:
    for section, (_, owner, names) in maker.SECTIONS.items():
        for name, fate in names.items():
            target = maker.ours(owner, name, fate)
            if fate.mark in ("✓", "≈"):
                maker.resolve(target)
                assert fate.mark == "✓" or target != name or fate.note, f"{section}: {name}"
            else:
                assert fate.mark in ("planned", "—")
                assert not target and fate.note, f"{section}: {name} lacks its reason"


async def test_the_attributes_that_rows_name_exist(maker: ModuleType) -> None:
    async def main(pg: ProcessGroup) -> None:
        for name in ("rank", "size", "name", "timeout", "backend"):
            getattr(pg, name)

    await run_cluster(1, main)
    async with HashStore() as store:
        assert store.timeout > 0


def test_the_page_is_as_generated(maker: ModuleType) -> None:
    assert maker.PAGE.read_text() == maker.page(), "run python docs/make_torch_table.py"


def test_names_that_are_spelled_differently_say_how(maker: ModuleType) -> None:
    calls = sys.modules["torch_calls"].CALLS
    differ = [name for name, fate in calls.items() if fate.mark == "≈" and name not in aiodist.__all__]
    assert differ and set(HERE) >= set(differ)
    assert not set(HERE) & set(aiodist.__all__)
    assert set(HERE) <= set(calls)
    for name in HERE:
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'; torch's {name} is here"):
            getattr(aiodist, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        _ = aiodist.nothing  # type: ignore[attr-defined]
