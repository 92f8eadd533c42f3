"""The kernel of this machine, and what other ones lack."""

from __future__ import annotations

import platform

import pytest

from aiodist.cli.doctor import system
from aiodist.cli.doctor.system import FEATURES, Feature, check_feature, check_platform, check_processor
from tests.cli.doctor.asks import MACHINE, by_name


def test_the_kernel_of_this_machine() -> None:
    found = by_name(system.findings({}, MACHINE))
    assert found["platform"].value.startswith("Linux ") and found["processor"].value == platform.machine()
    for name in ("shared memory", "descriptors over sockets", "pidfd", "TCP_USER_TIMEOUT"):
        assert found[name].state == "ok"
    assert "GiB of address space" in found["shared memory"].value
    assert system.shares_memory()


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (OSError(38, "Function not implemented"), "Function not implemented"),
        (OSError("it did not arrive"), "it did not arrive"),
        (AttributeError("pidfd_open"), "this platform has none"),
    ],
)
def test_what_a_kernel_lacks_costs_something_and_can_be_mended(
    feature: Feature, error: Exception, trouble: str
) -> None:
    def fail() -> str:
        raise error

    found = check_feature(feature._replace(attempt=fail))
    assert (found.name, found.state, found.value) == (feature.name, "missing", trouble)
    assert found.cost and found.fix


def test_what_cannot_be_tried_without_a_package_is_told() -> None:
    def fail() -> str:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    found = check_feature(FEATURES[0]._replace(attempt=fail))
    said = "could not be tried: ModuleNotFoundError: No module named 'numpy'"
    assert (found.state, found.value) == ("limited", said)


def test_other_systems_and_processors_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    mac = by_name(system.findings({}, MACHINE))
    assert mac["platform"].state == mac["processor"].state == "limited"
    assert set(mac) == {"platform", "processor"}  # the rest follows from it
    assert check_platform("Linux", "6.18").state == "ok"
    assert check_processor("aarch64").state == "limited"
    assert check_processor("AMD64").state == "ok"
