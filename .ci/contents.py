"""What is in a wheel and in a source distribution: all that git has of it, and nothing else.

python .ci/contents.py dist/*.whl dist/*.tar.gz
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ADDED = {"PKG-INFO", "pyproject.toml", "LICENSE", ".gitignore"}  # to a source distribution, by its builder
NEEDED = {"aiodist/py.typed", "aiodist/__init__.pyi", "aiodist/observe/dashboard/static/index.html"}


def tracked(*folders: str) -> set[str]:
    """Files that git has there."""
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, check=True)
    return {name for name in listed.stdout.decode().split("\0") if name}


def compare(name: str, found: set[str], expected: set[str]) -> bool:
    """Say what is too much and what is missing; whether nothing is."""
    for word, files in (("has", found - expected), ("lacks", expected - found)):
        if files:
            print(f"{name} {word} {', '.join(sorted(files)[:20])}", file=sys.stderr)
    return found == expected


def check(path: Path) -> bool:
    """Whether a distribution is whole."""
    if path.suffix == ".whl":
        names = {name for name in zipfile.ZipFile(path).namelist() if ".dist-info/" not in name}
        built = {name for name in names if name.endswith(".so")}  # compiled, where there is a compiler
        sources = {name for name in tracked("aiodist") if name.endswith(".pyx")}
        made = {f"{name.partition('.')[0]}.pyx" for name in built}
        whole = compare(path.name, names - built, tracked("aiodist"))
        return compare(f"the engine in {path.name}", made, sources) and whole
    with tarfile.open(path) as archive:
        names = {name.name.partition("/")[2] for name in archive.getmembers() if name.isfile()}
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    folders = [pattern.removeprefix("/") for pattern in included]  # '/': of the root, and of no other folder
    return compare(path.name, names - ADDED, tracked(*folders) - ADDED)


if __name__ == "__main__":
    if missing := NEEDED - tracked("aiodist"):
        sys.exit(f"git lacks {missing}")
    whole = [check(Path(name)) for name in sys.argv[1:]]
    sys.exit(not all(whole))
