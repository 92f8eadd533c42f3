"""Versions of torch: those that were run, and what another one may pass."""

from __future__ import annotations

import inspect
import logging
import re
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from aiodist.integrations.torch import versions  # noqa: E402
from aiodist.integrations.torch.group import AiodistProcessGroup  # noqa: E402
from aiodist.integrations.torch.in_place_of_gloo import GlooStandIn  # noqa: E402
from aiodist.integrations.torch.work import AiodistWork  # noqa: E402
from aiodist.portal.loop_thread import Reply  # noqa: E402

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def anew() -> Any:
    """What is said once in a process is said again."""
    for said in (versions._note, versions.warn_of_another):
        said.cache_clear()
    yield
    for said in (versions._note, versions.warn_of_another):
        said.cache_clear()


def as_torch(source: str, **names: Any) -> Any:
    """A function `call` of a module of torch's."""
    module = types.ModuleType("torch.distributed.newer")
    vars(module).update(names)
    exec(source, vars(module))
    return module.call


def test_the_page_has_the_versions_that_were_run() -> None:
    rows = re.findall(r"^\| (\d+\.\d+\.\d+) \|", (ROOT / "docs" / "torch.md").read_text(), re.MULTILINE)
    assert tuple(rows) == versions.RUN


@pytest.mark.parametrize(("script", "version"), [*zip(["run", "newest-torch"], versions.RUN, strict=True)])
def test_ci_runs_them(script: str, version: str) -> None:
    path = ROOT / ".ci" / script
    if not path.exists():
        pytest.skip("this is not a clone")  # a source distribution has no .ci
    found = re.findall(r"torch==(\d[\d.]+)|^version=(\S+)", path.read_text(), re.MULTILINE)
    assert [one or other for one, other in found] == [version]


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("2.13.0", True),
        ("2.13.0+cpu", True),
        ("2.14.1+cu130", True),
        ("2.14.0", True),
        ("2.12.1", False),
        ("2.15.0.dev20270101+cpu", False),
        ("2.1.3", False),
        ("3.14.1", False),
    ],
)
def test_a_version_that_was_never_run_is_told_once(
    version: str, known: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    for _ in range(3):
        versions.warn_of_another()
    said = [record.getMessage() for record in caplog.records]
    expected = f"torch {version} was never run with this version of aiodist; these were: 2.13.0, 2.14.1"
    assert said == ([] if known else [expected])


def test_what_torch_passes_is_passed_over_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aiodist.torch")
    call = as_torch("def call(**more): pass_over('send', more)", pass_over=versions.pass_over)
    for _ in range(3):
        call(of_tomorrow=1)
    call()
    (record,) = caplog.records
    assert (
        record.getMessage()
        == f"torch {torch.__version__} passes of_tomorrow to send, unknown here: passed over"
    )
    assert record.levelno == logging.DEBUG


def test_what_a_program_passes_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^send takes no of_tomorrow$"):
        versions.pass_over("send", {"of_tomorrow": 1})
    with pytest.raises(TypeError, match=r"^a call takes opts and root, not src$"):
        versions.pass_over("a call", {"src": 1}, "{call} takes opts and root, not {unknown}")


@pytest.mark.parametrize("kind", [AiodistProcessGroup, GlooStandIn, AiodistWork])
def test_whatever_torch_calls_takes_more(kind: type) -> None:
    """Each function has a place for keywords that are not known yet. What is called for every operation takes
    them by itself."""
    functions = {
        name: one for name, one in vars(kind).items() if inspect.isfunction(one) and name[:2] != "__"
    }
    assert functions
    for name, function in functions.items():
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
        assert any(one.kind is one.VAR_KEYWORD for one in parameters), name
        if name in ("allreduce", "broadcast", "send", "recv", "wait", "get_future"):
            assert not hasattr(function, "__wrapped__"), name


def test_a_work_that_torch_asks_for_more() -> None:
    reply = Reply()
    reply.settle(None)
    work: Any = AiodistWork(reply, [], "all_reduce")
    call = as_torch("def call(work): return work.wait(of_tomorrow=1) and work.is_success(of_tomorrow=2)")
    assert call(work) is True
    for slip in (work.wait, work.is_success):
        with pytest.raises(TypeError, match="takes no of_tomorrow"):
            slip(of_tomorrow=1)


def test_a_group_in_place_of_gloo_s_is_made_with_whatever_torch_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Made(Exception):
        pass

    def meet(*given: Any) -> Any:
        assert given == ("store", 1, 2, 1800.0)
        raise Made

    monkeypatch.setattr("aiodist.integrations.torch.in_place_of_gloo.meet_over_store", meet)
    call = as_torch("def call(kind, *given, **more): kind(*given, **more)")
    with pytest.raises(Made):
        call(GlooStandIn, "store", 1, 2, enable_reconfigure=False, of_tomorrow=3)
    with pytest.raises(TypeError, match="takes no of_tomorrow"):
        GlooStandIn("store", 1, 2, of_tomorrow=3)
