"""`backend=`: every spelling, what is left where something is missing, and what ranks agree on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

import aiodist as dist
from aiodist.backends import registry
from aiodist.backends.choice import BackendChoice, parse
from aiodist.backends.foreign import Engine
from aiodist.base.errors import BackendUnavailable, RendezvousError

CUDA_ONLY, CPU_ONLY = frozenset({"cuda"}), frozenset({"cpu"})


class Wire(Engine):
    """For tensors on the host."""

    name = "wire"
    here: ClassVar[bool] = True
    checked: ClassVar[int] = 0

    @classmethod
    def check(cls) -> None:
        cls.checked += 1
        if not cls.here:
            raise BackendUnavailable(f"{cls.name} is not here", hint="Install it")

    @classmethod
    def tell(cls, device: int | None) -> bytes:
        return b"on %d" % (-1 if device is None else device)

    @classmethod
    def fits(cls, told: Sequence[bytes]) -> str:
        return "" if len(set(told)) == len(told) else f"they told {told[0].decode()!r} twice"


class Fast(Wire):
    """For tensors on devices."""

    name = "fast"
    places = CUDA_ONLY
    stages = True


class Every(Fast):
    """For both."""

    name = "every"
    places = frozenset({"cuda", "cpu"})


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines above, one of them as NCCL, and a device."""
    monkeypatch.setattr(registry, "_registered", {e.name: e for e in (Wire, Fast, Every)} | {"nccl": Fast})
    monkeypatch.setattr("aiodist.backends.cuda.library.choose_device", lambda chosen, environ: chosen or 0)
    for engine in (Wire, Fast, Every):
        monkeypatch.setattr(engine, "checked", 0)


def without(monkeypatch: pytest.MonkeyPatch, engine: type[Wire]) -> None:
    monkeypatch.setattr(engine, "here", False)


def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(*_: Any) -> int:
        raise BackendUnavailable("no CUDA device", hint="Get one")

    monkeypatch.setattr("aiodist.backends.cuda.library.choose_device", choose)


# ── parse ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("backend", "gpu", "choice"),
    [
        (None, False, BackendChoice()),
        (None, True, BackendChoice(engines={"cuda": Fast}, automatic=True)),
        ("host", False, BackendChoice("host", automatic=True)),
        ("GLOO", False, BackendChoice("host", automatic=True)),
        ("gloo", True, BackendChoice("host", staged=True, automatic=True)),
        ("cpu:gloo", True, BackendChoice("host", staged=True, automatic=True)),
        (" cpu: host ", False, BackendChoice("host", automatic=True)),
        ("wire", True, BackendChoice("wire", False, {"cpu": Wire})),
        ("Fast", False, BackendChoice("fast", False, {"cuda": Fast})),
        ("every", False, BackendChoice("every", False, {"cpu": Every, "cuda": Every})),
        ("cpu:host,cuda:nccl", False, BackendChoice("cpu:host,cuda:nccl", engines={"cuda": Fast})),
        ("cuda:NCCL , cpu:gloo", True, BackendChoice("cpu:host,cuda:nccl", engines={"cuda": Fast})),
        ("cpu:host,cuda:gloo", False, BackendChoice("cpu:host,cuda:host", staged=True)),
        ("cuda:host", True, BackendChoice("cuda:host", host=False, staged=True)),
        ("cuda:fast", True, BackendChoice("cuda:fast", host=False, engines={"cuda": Fast})),
        (
            "cuda:every,cpu:wire",
            False,
            BackendChoice("cpu:wire,cuda:every", host=False, engines={"cpu": Wire, "cuda": Every}),
        ),
    ],
)
def test_spellings(backend: str | None, gpu: bool, choice: BackendChoice) -> None:
    assert parse(backend, gpu) == choice


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("", "must be a name"),
        ("  ", "must be a name"),
        (7, "must be a name, got 7"),
        (":", "cannot be read"),
        ("cpu:", "cannot be read"),
        ("tpu:host", "cannot be read"),
        ("cpu:host,cpu:wire", "cannot be read"),
        ("cpu:host,", "cannot be read"),
        ("cpu:host,nccl", "cannot be read"),
        ("host,nccl", "'host,nccl' is not known"),
        ("cpu:fast", "'fast' takes no tensors on 'cpu'.*on cuda"),
        ("cuda:wire", "'wire' takes no tensors on 'cuda'.*on cpu"),
        ("wired", "'wired' is not known.*Did you mean 'wire'"),
    ],
)
def test_spellings_without_meaning(backend: Any, words: str) -> None:
    with pytest.raises(dist.UsageError, match=words):
        parse(backend, gpu=False)


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        (BackendChoice(), "host"),
        (BackendChoice(engines={"cuda": Fast}), "cpu:host,cuda:fast"),
        (BackendChoice(staged=True), "host"),
        (BackendChoice(host=False, staged=True), "cuda:host"),
        (BackendChoice(host=False, engines={"cuda": Fast}), "fast"),
        (BackendChoice(host=False, engines={"cuda": Every, "cpu": Every}), "every"),
        (BackendChoice(host=False, engines={"cuda": Every, "cpu": Wire}), "cpu:wire,cuda:every"),
        (BackendChoice(host=False, engines={"cpu": Wire}), "wire"),
    ],
)
def test_name_is_of_what_carries_operations_out(choice: BackendChoice, name: str) -> None:
    assert choice.name == name


@pytest.mark.parametrize(
    ("backend", "same", "names"),
    [
        (None, False, {"host", "gloo", "nccl", "fast", "cpu:host,cuda:fast"}),
        (
            "cpu:gloo,cuda:nccl",
            True,
            {"host", "gloo", "cpu:host,cuda:nccl", "cpu:host,cuda:fast", "nccl", "fast"},
        ),
        ("nccl", True, {"nccl", "fast"}),
        ("every", False, {"every"}),
        ("host", False, {"host", "gloo"}),
    ],
)
def test_new_groups_may_be_asked_for_by_what_the_world_was_asked_for_by(
    backend: str | None, same: bool, names: set[str]
) -> None:
    choice = parse(backend, gpu=True)
    assert choice.aliases - {""} == names - ({"nccl"} if backend is None else set())
    if same:  # and where it cannot be had
        first, _ = common(*checked(backend, 1, 1))
        assert first.aliases >= {"nccl", "host", "gloo"} and first.asked in first.aliases


def test_plain_is_the_host_engine_alone() -> None:
    assert parse(None, gpu=False).plain and parse("host", gpu=False).plain
    for backend in ("wire", "cuda:host", "cpu:host,cuda:nccl"):
        assert not parse(backend, gpu=False).plain


# ── check ────────────────────────────────────────────────────────────────────────────────────────────


def test_libraries_are_looked_at_once_each_and_the_device_is_chosen() -> None:
    assert parse("every", gpu=True).check(3).device == 3
    assert Every.checked == 1
    assert parse("wire", gpu=True).check(3).device is None  # nothing there lies on a device


@pytest.mark.parametrize("backend", ["nccl", "cuda:nccl", "cpu:host,cuda:nccl"])
def test_what_was_asked_for_must_be_here(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    without(monkeypatch, Fast)
    with pytest.raises(BackendUnavailable, match="fast is not here"):
        parse(backend, gpu=True).check()
    no_device(monkeypatch)
    with pytest.raises(BackendUnavailable, match="no CUDA device"):
        parse(backend, gpu=False).check()


def test_nobody_asked_and_the_library_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without(monkeypatch, Fast)
    choice = parse(None, gpu=True).check()
    assert (choice.asked, choice.engines, choice.device) == ("", {}, 0)
    assert choice.staged and choice.host
    assert not caplog.records
    cards = [choice.card(), choice.card()]
    choice.common_to(cards, tells=True), choice.common_to(cards, tells=False)
    (line,) = caplog.records  # of one rank
    assert line.levelno == logging.WARNING
    assert "through the host: fast is not here" in line.getMessage()


@pytest.mark.parametrize("backend", [None, "host"])
def test_nobody_asked_and_there_is_no_device(monkeypatch: pytest.MonkeyPatch, backend: str | None) -> None:
    no_device(monkeypatch)
    choice = parse(backend, gpu=True).check()
    assert choice.plain
    assert choice.asked == (backend or "")
    assert choice.name == "host"


# ── common_to ───────────────────────────────────────────────────────────────────────────────────────────


def common(*choices: BackendChoice) -> list[BackendChoice]:
    """What each rank does once all have seen all cards."""
    cards = [choice.card() for choice in choices]
    return [choice.common_to(cards) for choice in choices]


def checked(backend: str | None, *devices: int) -> list[BackendChoice]:
    """The choices of ranks on these devices."""
    return [parse(backend, gpu=True).check(device) for device in devices]


def test_ranks_that_fit_do_as_they_planned() -> None:
    choices = checked("cpu:host,cuda:nccl", 0, 1, 2)
    assert common(*choices) == choices


def test_ranks_that_were_told_otherwise_are_named() -> None:
    cards = [parse("host", gpu=False).card(), parse(None, gpu=False).card(), parse("wire", gpu=False).card()]
    with pytest.raises(dist.RendezvousError, match=r"rank 1 has backend=None, rank 0 has 'host'.*alike"):
        parse("host", gpu=False).common_to(cards)
    with pytest.raises(dist.RendezvousError, match="rank 1 has backend='wire', rank 0 has 'host'"):
        parse("host", gpu=False).common_to([cards[0], cards[2]])


@pytest.mark.parametrize("backend", [None, "nccl", "cpu:host,cuda:nccl"])
def test_ranks_that_share_a_device_go_through_the_host(
    backend: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = common(*checked(backend, 1, 1))
    assert first == second
    assert (first.engines, first.staged, first.device) == ({}, True, 1)
    assert first.host == (backend != "nccl")
    assert first.name == ("cuda:host" if backend == "nccl" else "host")
    assert "not fast: they told 'on 1' twice" in caplog.text


def test_one_rank_without_the_library_takes_all_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    able = checked(None, 0)[0]
    without(monkeypatch, Fast)
    unable = checked(None, 1)[0]
    no_device(monkeypatch)
    none = checked(None, 2)[0]
    choices = common(able, unable, none)
    assert [choice.staged for choice in choices] == [True, True, False]
    assert not any(choice.engines for choice in choices)
    assert choices[2].plain


def test_engine_of_the_host_has_nothing_to_fall_back_on() -> None:
    with pytest.raises(BackendUnavailable, match="'wire' cannot serve this job: they told 'on -1' twice"):
        common(*checked("wire", 0, 1))
    choices = checked("wire", 0)
    other = {**choices[0].card(), "engines": {"cpu": "another"}}
    with pytest.raises(BackendUnavailable, match="rank 1 cannot use it"):
        choices[0].common_to([choices[0].card(), other])


def test_engine_of_both_places_needs_both() -> None:
    with pytest.raises(BackendUnavailable, match="'every' cannot serve this job"):
        common(*checked("every", 0, 0))


def test_what_another_rank_tells_and_nobody_can_read_is_an_error_of_the_meeting() -> None:
    class Careful(Every):
        @classmethod
        def fits(cls, told: Sequence[bytes]) -> str:
            return "".join(str(int(one)) for one in told)[:0]

    mine = BackendChoice("every", engines={"cpu": Careful})
    other = mine.card()
    other["told"] = {"cpu": b"no number"}
    good = {**other, "told": {"cpu": b"7"}}
    assert mine.common_to([good, good]) == mine
    with pytest.raises(RendezvousError, match=r"about backend 'every' cannot be read \(ValueError\)"):
        mine.common_to([good, other])
