from __future__ import annotations

from pathlib import Path

from aiodist._engine.fingerprint import fingerprint


def test_it_follows_names_and_contents_of_sources_alone(tmp_path: Path) -> None:
    assert fingerprint(tmp_path) == ""
    (tmp_path / "a.pyx").write_text("one")
    first = fingerprint(tmp_path)
    assert len(first) == 16 and int(first, 16) >= 0
    (tmp_path / "a.so").write_text("built")
    (tmp_path / "a.pyi").write_text("a stub")
    assert fingerprint(tmp_path) == first
    seen = {first}
    for change in (("a.pyx", "two"), ("b.h", ""), ("b.h", "x"), ("c.pxd", "x")):
        (tmp_path / change[0]).write_text(change[1])
        seen.add(fingerprint(tmp_path))
    (tmp_path / "c.pxd").rename(tmp_path / "d.pxd")
    seen.add(fingerprint(tmp_path))
    assert len(seen) == 6
