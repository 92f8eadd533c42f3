"""torch, with and without devices."""

from __future__ import annotations

from aiodist.cli.doctor.topic import Finding, ProcessAnswer
from aiodist.cli.doctor.torch import findings
from tests.cli.doctor.asks import MACHINE, NO_DRIVER, driver


def check_torch(torch: ProcessAnswer, devices: int) -> Finding:
    """What is said of it on a machine with so many devices."""
    answers = {"torch": torch, "driver": driver(devices) if devices else NO_DRIVER}
    (found,) = findings(answers, MACHINE)
    return found


def test_torch() -> None:
    def facts(cuda: str, devices: int | None) -> ProcessAnswer:
        return ProcessAnswer({"version": "2.13.0", "cuda": cuda, "devices": devices})

    assert check_torch(facts("", None), 0).value == "2.13.0, built without CUDA"
    assert check_torch(facts("12.8", 1), 1).state == "ok"
    assert check_torch(facts("", None), 1).state == "limited"
    assert "sees no device" in check_torch(facts("12.8", 0), 1).value
    assert check_torch(ProcessAnswer(trouble="x", absent="torch"), 1).fix == "pip install torch"
    assert "libc10.so" in check_torch(ProcessAnswer(trouble="OSError: libc10.so"), 1).value
