"""Whether a user is this process's own, in user namespaces, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiodist.base.environment import user
from aiodist.base.environment.user import is_known, is_me, overflow

ONE = "     65534       5000          1\n"
SOME = "         0       1000          1\n         1     100000      65535\n"
ALL = "         0          0 4294967295\n"
SPLIT = "         0          0 4294967290\n4294967290 4294967290          5\n"


def test_who_has_a_number_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(user, "_MAP", tmp_path / "uid_map")
    (tmp_path / "uid_map").write_text(ONE)
    assert is_me(os.geteuid()) is (os.geteuid() != overflow())
    for mine in (4711, 0):
        monkeypatch.setattr(os, "geteuid", lambda mine=mine: mine)
        assert (is_me(mine), is_me(mine + 1), is_me(overflow()), is_me(-1)) == (True, False, False, False)


@pytest.mark.skipif(sys.platform != "linux", reason="user namespaces are Linux's")
@pytest.mark.parametrize(
    ("text", "known"),
    [(ALL, True), (SPLIT, True), (ONE, False), (SOME, False), ("", False)],
    ids=["all", "split", "one", "some", "none"],
)
def test_who_shares_the_number_of_unknown_users(
    text: str, known: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where the namespace gives that number to a user of its own."""
    monkeypatch.setattr(user, "_MAP", tmp_path / "uid_map")
    monkeypatch.setattr(os, "geteuid", overflow)
    (tmp_path / "uid_map").write_text(text)
    assert is_me(overflow()) is is_known(overflow()) is known
    assert is_known(4711)


IN_A_NAMESPACE = """
import ctypes, os, sys
me = os.geteuid()
if ctypes.CDLL(None).unshare(0x10000000):
    sys.exit(77)
try:
    with open("/proc/self/uid_map", "w") as file:
        file.write(f"65534 {me} 1")
except OSError:
    sys.exit(77)
from aiodist.base.environment.files import UntrustedError, check_own
assert os.geteuid() == os.stat(sys.argv[1]).st_uid == 65534
try:
    check_own(os.stat(sys.argv[1]), -1)
except UntrustedError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="user namespaces are Linux's")
def test_a_file_of_somebody_whom_the_namespace_does_not_know(tmp_path: Path) -> None:
    """This process runs as 'nobody' there, and the file is shown as nobody's."""
    theirs = Path("/etc/passwd")
    if os.geteuid() == 0:
        theirs = tmp_path / "theirs"
        theirs.touch()
        os.chown(theirs, 4711, 4711)
    run = subprocess.run(
        [sys.executable, "-c", IN_A_NAMESPACE, str(theirs)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if run.returncode == 77:
        pytest.skip("no user namespaces here")
    assert run.stdout.startswith("it belongs to user 65534, who may be anybody"), run.stderr
