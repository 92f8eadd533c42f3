"""The site builds without a warning, and loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.pages import DOCS, ROOT

LOADS = re.compile(
    r"<(?:script|img|iframe|source|embed|object|video|audio)[^>]*? (?:src|data|srcset)=\"([^\"]+)"
)
LINKS = re.compile(r"<link[^>]*? href=\"([^\"]+)\"")
STYLES = re.compile(r"url\([\"']?([^)\"']+)|@import\s+[\"']([^\"']+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    pytest.importorskip("furo", reason="pip install '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(out / "trees")]
    built = subprocess.run(
        [*command, str(DOCS), str(out / "html")], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return out / "html"


def foreign(address: str) -> bool:
    """Whether a browser would ask another host for it."""
    found = urlsplit(address)
    return found.scheme not in ("", "data") or bool(found.netloc)


@pytest.mark.slow("builds the whole site, and executes a notebook")
def test_the_site_builds_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    loaded = 0
    for page in pages:
        text = page.read_text()
        addresses = LOADS.findall(text) + LINKS.findall(text)
        loaded += len(addresses)
        assert not [address for address in addresses if foreign(address)], page
    assert loaded > len(pages)
    for sheet in site.rglob("*.css"):
        text = sheet.read_text()
        assert not [one or other for one, other in STYLES.findall(text) if foreign(one or other)], sheet
    # What the notebook has computed, what a command's help says, and a docstring are there.
    assert "rank 0 of 2" in (site / "notebooks.html").read_text()
    assert "--nproc-per-node" in (site / "command-line.html").read_text()
    assert "Meet the job" in (site / "reference" / "groups.html").read_text()
    assert (site / "searchindex.js").stat().st_size > 100_000


def test_what_would_be_foreign_is_seen() -> None:
    text = '<script async src="https://a.example/x.js"></script><link rel="x" href="//b.example/x.css"/>'
    assert [*LOADS.findall(text), *LINKS.findall(text)] == ["https://a.example/x.js", "//b.example/x.css"]
    assert all(map(foreign, LOADS.findall(text) + LINKS.findall(text)))
    assert not foreign("_static/x.js") and not foreign("data:image/png;base64,AA")
    assert (
        STYLES.findall("a { background: url(https://c.example/x.woff) }")[0][0] == "https://c.example/x.woff"
    )
