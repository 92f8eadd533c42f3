"""The backend that is picked, and those of other packages."""

from __future__ import annotations

from pathlib import Path

from aiodist.cli.doctor.backends import examine, findings
from aiodist.cli.doctor.topic import Finding, ProcessAnswer
from tests.cli.doctor.asks import MACHINE, ask, by_name, fake


def test_backends_of_other_packages(tmp_path: Path) -> None:
    code = (
        "from aiodist.backends.foreign import Engine\n"
        "from aiodist.base.errors import BackendUnavailable\n"
        "class Good(Engine): name = 'good'\n"
        "class Lame(Engine):\n"
        "    name = 'lame'\n"
        "    @classmethod\n"
        "    def check(cls): raise BackendUnavailable('there is no liblame', hint='Get one')\n"
    )
    points = {
        "good": "mine:Good",
        "lame": "mine:Lame",
        "gone": "mine:Gone",
        "host": "mine:Good",
        "MPI": "mine:Good",
    }
    folder = tmp_path / "mine-1.5.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.5\n")
    lines = [f"{name} = {where}" for name, where in points.items()]
    (folder / "entry_points.txt").write_text("\n".join(["[aiodist.backends]", *lines, ""]))
    facts = ask(examine, PYTHONPATH=fake(tmp_path, "mine", code)).facts
    assert (facts["host"], facts["trouble"]) == ("host", "")
    mine = {other["name"]: other["trouble"] for other in facts["others"] if other["package"] == "mine 1.5"}
    assert mine.keys() == points.keys()
    assert mine["good"] == "" and mine["lame"] == "there is no liblame. Get one"
    assert "Gone" in mine["gone"] and mine["host"] == mine["MPI"] == "the name is aiodist's own"


def check_backends(answer: ProcessAnswer) -> list[Finding]:
    """What is said of them."""
    return list(findings({"backends": answer}, MACHINE))


def test_other_backends() -> None:
    facts = {"host": "host", "device": "", "trouble": "", "others": []}
    (found,) = check_backends(ProcessAnswer(facts))
    assert found.value == "host tensors: host; device tensors: not taken"
    others = [
        {"name": "one", "package": "one-backend 1.0", "trouble": ""},
        {"name": "two", "package": "two-backend 2.0", "trouble": "no libtwo"},
    ]
    seen = by_name(check_backends(ProcessAnswer({**facts, "device": "nccl", "others": others})))
    assert "device tensors: nccl" in seen["backend=None"].value
    assert seen["one"].state == "ok" and seen["two"].value == "two-backend 2.0: no libtwo"
    assert check_backends(ProcessAnswer(trouble="it was killed"))[0].state == "missing"
    assert check_backends(ProcessAnswer({**facts, "trouble": "x"}))[0].state == "missing"
