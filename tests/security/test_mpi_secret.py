"""The operator's secret where MPI says where to meet: it is kept, and never given to MPI's network.

A wiretap reads all that rank 0 tells the others by MPI, which encrypts nothing.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.test_mpi import BOTH, well
from tests.levels import COSTLY, MORE

SECRET = "known to the operator alone"
HOST = "127.0.0.1"
HEARD = re.compile(r"heard: '(\w*) 127\.0\.0\.1:(\d+) [^']*'")

needs_mpi = pytest.mark.skipif(find_spec("mpi4py") is None, reason="mpi4py is not installed")


@pytest.mark.slow(MORE)
@needs_mpi
@BOTH
def test_given_secret_is_not_heard_nor_another_in_its_place(flavour: str) -> None:
    ended = well(flavour, "wiretapped", 3, AIODIST_SECRET=SECRET)
    assert [found[1] for found in HEARD.finditer(ended.stdout)] == [""] * 3
    assert SECRET not in ended.stdout + ended.stderr


@pytest.mark.slow(MORE)
@needs_mpi
@BOTH
def test_secret_of_a_file_is_kept_alike(flavour: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text(SECRET)
    ended = well(flavour, "wiretapped", 2, AIODIST_SECRET_FILE=str(file))
    assert [found[1] for found in HEARD.finditer(ended.stdout)] == [""] * 2


@pytest.mark.slow(COSTLY)
@needs_mpi
@BOTH
def test_where_none_is_given_one_is_made_for_this_meeting(flavour: str) -> None:
    made = [HEARD.findall(well(flavour, "wiretapped", 2).stdout) for _ in range(2)]
    for ranks in made:
        assert len(ranks) == 2 and ranks[0] == ranks[1]
        assert len(bytes.fromhex(ranks[0][0])) == 32
    assert made[0] != made[1]


@pytest.mark.slow(MORE)
@needs_mpi
@BOTH
def test_secret_that_only_some_have_is_no_reason_to_do_without(flavour: str) -> None:
    said = well(flavour, "one_has_no_secret", 3, AIODIST_SECRET=SECRET).stdout
    assert (
        said.count("refused: rank 1 cannot go on: no secret was given there, as it was to 2 other rank") == 3
    )
