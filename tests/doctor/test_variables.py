"""The table of AIODIST_* variables is that of the source."""

from __future__ import annotations

import re
from pathlib import Path

import aiodist
from aiodist.doctor.variables import KNOWN

PACKAGE = Path(aiodist.__file__).parent
FAMILIES = {"AIODIST_ETCD", "AIODIST_TLS"}  # beginnings of names, which the source puts together
INNER = {"testing", "doctor"}


def test_it_has_every_name_in_the_source_and_no_other() -> None:
    named = set()
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] not in INNER:
            named |= set(re.findall(r"\bAIODIST_[A-Z_]*[A-Z]\b(?!_)", path.read_text()))
    assert named - FAMILIES == KNOWN
