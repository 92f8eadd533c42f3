"""Backends by name: registered ones, those of packages, and what is wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import aiodist as dist
from aiodist.backends import registry
from aiodist.backends.foreign import Engine
from aiodist.backends.registry import find_engine, known_backends, register_backend


class Mine(Engine):
    """One that could serve."""

    name = "mine"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[Engine]]:
    """What is registered, for one test."""
    names: dict[str, type[Engine]] = {}
    monkeypatch.setattr(registry, "_registered", names)
    return names


Bring = Callable[[str, str], None]


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bring:
    """Installs a package of one module, `brought_by_a_package`, and its entry point."""
    module = "brought_by_a_package"

    def install(name: str, code: str) -> None:
        info = tmp_path / "brought-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[aiodist.backends]\n{name} = {module}:Theirs\n")
        (tmp_path / f"{module}.py").write_text(f"from aiodist.backends.foreign import Engine\n{code}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install


def test_registered_name_is_found_whatever_its_case() -> None:
    register_backend("My_Own-1", Mine)
    register_backend("my_own-1", Mine)  # again, the same
    assert find_engine("my_own-1") is Mine
    assert {"host", "mpi", "my_own-1", "nccl"} <= set(known_backends())


@pytest.mark.parametrize("name", ["", "-", "a b", "cpu:mine", "a,b", None, 7])
def test_names_that_are_none(name: Any) -> None:
    with pytest.raises(dist.UsageError, match=r"not a name for a backend.*letters, digits"):
        dist.register_backend(name, Mine)


@pytest.mark.parametrize("name", ["host", "gloo", "NCCL", "mpi"])
def test_names_of_aiodist_are_not_given_away(name: str) -> None:
    with pytest.raises(dist.UsageError, match="of aiodist's own"):
        register_backend(name, Mine)


def test_name_has_one_owner() -> None:
    class Other(Mine):
        pass

    register_backend("mine", Mine)
    with pytest.raises(dist.UsageError, match="'mine' is registered already, as Mine"):
        register_backend("mine", Other)
    assert find_engine("mine") is Mine


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (None, "is no subclass of Engine"),
        (dict, "is no subclass of Engine"),
        (object(), "is no subclass of Engine"),
        (type("Nameless", (Engine,), {}), "has no name"),
        (type("Nowhere", (Mine,), {"places": frozenset()}), r"takes tensors on \[\]"),
        (
            type("Elsewhere", (Mine,), {"places": frozenset({"cpu", "tpu"})}),
            r"on \['cpu', 'tpu'\]; there are",
        ),
        (type("Unstaged", (Mine,), {"places": frozenset({"cuda"})}), "does not stage them"),
        (type("Boasting", (Mine,), {"capabilities": frozenset({"one-answer", "fast"})}), r"\['fast'\]"),
    ],
)
def test_what_cannot_serve_is_refused_at_once(engine: Any, words: str) -> None:
    with pytest.raises(dist.UsageError, match=words):
        register_backend("mine", engine)
    assert "mine" not in known_backends()


def test_engine_itself_cannot_serve() -> None:
    with pytest.raises(dist.UsageError, match="has no name"):
        register_backend("mine", Engine)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ncll", "Did you mean 'nccl'?"),
        ("glo", "Did you mean 'gloo'?"),
        ("hots", "Did you mean 'host'?"),
        ("mien", "Did you mean 'mine'?"),
        ("quantum", "None picks by what the machine has"),
    ],
)
def test_unknown_name_gets_the_nearest(name: str, hint: str) -> None:
    register_backend("mine", Mine)
    with pytest.raises(dist.UsageError) as caught:
        find_engine(name)
    assert f"{name!r} is not known; there are " in str(caught.value)
    assert "host" in str(caught.value) and "mine" in str(caught.value)
    assert caught.value.hint == hint


def test_package_brings_one(bring: Bring) -> None:
    bring("Theirs", 'class Theirs(Engine):\n    name = "theirs"')
    assert "theirs" in known_backends()
    engine = find_engine("theirs")
    assert issubclass(engine, Engine)
    assert (engine.__module__, engine.name) == ("brought_by_a_package", "theirs")


def test_registered_one_comes_before_that_of_a_package(bring: Bring) -> None:
    bring("mine", 'class Theirs(Engine):\n    name = "theirs"')
    register_backend("mine", Mine)
    assert find_engine("mine") is Mine


@pytest.mark.parametrize(
    ("code", "words", "hint"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'", "brought"),
        ("1 / 0", "ZeroDivisionError", "Reinstall brought"),
        ("", "AttributeError", "Reinstall brought"),
        ("class Theirs: pass", "is no subclass of Engine", "Tell its authors"),
        ("class Theirs(Engine): pass", "has no name", "Tell its authors"),
    ],
)
def test_package_whose_backend_is_broken(bring: Bring, code: str, words: str, hint: str) -> None:
    bring("theirs", code)
    with pytest.raises(dist.BackendUnavailable) as caught:
        find_engine("theirs")
    assert "'theirs'" in str(caught.value) and words in str(caught.value)
    assert hint in caught.value.hint
    assert not dist.is_backend_available("theirs")
