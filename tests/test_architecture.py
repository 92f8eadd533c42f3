"""The house has floors, and imports go one way down. Also: the public surface is complete and documented."""

from __future__ import annotations

import ast
import functools
import graphlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import aiodist
from aiodist.base.operations import ROLES, Kind

PACKAGE = Path(aiodist.__file__).parent

# From the top down. Districts on one floor do not import each other.
FLOORS: list[set[str]] = [
    {"__main__"},
    {"cli", "integrations"},
    {"portal"},
    {"launch", "ddp", "sim"},
    {"group"},
    {"backends"},
    {"observe"},
    {"transport", "rendezvous"},
    {"net"},
    {"_engine"},
    {"base"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
OUTSIDE = {
    "__init__",
    "testing",
}  # the public names, loaded lazily; and what may import everything
# The codec of objects pickles where both sides ask for it, and makes tensors of tensors. A command writes
# pickles, and reads none, for torch's analyzer. A test hands its arguments to its own ranks, by a private
# folder.
GUESTS = {
    ("net/wire/objects.py", "pickle"),
    ("net/wire/objects.py", "torch"),
    ("cli/commands/trace.py", "pickle"),
    ("testing/parcel.py", "pickle"),
}


class Facts(NamedTuple):
    """What the checks ask of a file."""

    imported: list[ast.Import | ast.ImportFrom]
    """Wherever they stand."""

    stored: list[ast.Attribute]
    """The attributes that its statements set."""

    documented: list[tuple[str, str]]
    """Its functions and classes, with their docstrings."""


@functools.cache
def facts(path: Path) -> Facts:
    """A file's. Of expressions only targets are looked at, since all of them take longer than parsing."""
    found = Facts([], [], [])
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.imported.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.documented.append((node.name, ast.get_docstring(node) or ""))
        for field in ("targets", "target", "items"):
            given = getattr(node, field, [])
            for target in given if isinstance(given, list) else [given]:
                at = target.optional_vars if isinstance(target, ast.withitem) else target
                found.stored.extend(
                    part
                    for part in (ast.walk(at) if at is not None else ())
                    if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
                )
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo.extend(getattr(node, block, []))
    found.imported.sort(key=lambda node: node.lineno)
    found.stored.sort(key=lambda node: node.lineno)
    return found


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(district, line) of each import of aiodist in a file, also inside functions and under TYPE_CHECKING."""
    for node in facts(path).imported:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.module:
            assert node.level == 0, f"{path}:{node.lineno}: relative imports hide the floor"
            names = [node.module]
            if node.module == "aiodist":
                names = [f"aiodist.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "aiodist":
                yield (parts[1] if len(parts) > 1 else "__init__"), node.lineno


def violations(package: Path) -> list[str]:
    """Every import that goes up, or sideways, in words."""
    found = []
    for path in sorted(package.rglob("*.py")):
        here = path.relative_to(package).parts[0].removesuffix(".py")
        if here in OUTSIDE:
            continue
        if here not in FLOOR:
            found.append(f"{here} stands on no floor: add it to the list, and to docs/architecture.md")
            continue
        for there, line in imports(path):
            where = f"{path.relative_to(package)}:{line}: {here} imports {there}"
            if there == here:
                continue
            if there in OUTSIDE or there not in FLOOR or FLOOR[there] <= FLOOR[here]:
                found.append(where)
    return found


@pytest.mark.parametrize(
    ("room", "line"),
    [
        ("net", "from aiodist.rendezvous import Store"),
        ("base", "import aiodist.group"),
        ("transport", "def f():\n    from aiodist.backends.arrays.kernels import copy_into"),
        ("rendezvous", "from aiodist import transport"),
        ("group", "import aiodist.testing"),
        ("attic", "x = 1"),
    ],
)
def test_the_check_sees_a_violation(tmp_path: Path, room: str, line: str) -> None:
    path = tmp_path / room if room.endswith(".py") else tmp_path / room / "module.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(line + "\n")
    assert len(violations(tmp_path)) == 1


def cycle(package: Path) -> list[str]:
    """The first modules found that import each other in a circle, in that order; none if there are none.

    Imports in functions and under TYPE_CHECKING count.
    """
    names = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        names[".".join(("aiodist", *parts)).removesuffix(".__init__")] = path
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        graph[name] = set()
        for node in facts(path).imported:
            inside = node.module if isinstance(node, ast.ImportFrom) else None
            for alias in node.names:
                whole = f"{inside}.{alias.name}" if inside else alias.name
                graph[name].add(whole if whole in names else inside or "")
    return circle_in(graph)


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """The first circle found in a graph of what imports what, from the importer to the imported."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]  # it goes the other way round
    return []


@pytest.mark.parametrize(
    ("line", "circle"),
    [
        ("import aiodist.room.b", True),
        ("from aiodist.room import b", True),
        ("def f():\n    from aiodist.room.b import x", True),
        ("from aiodist.room import x", True),  # from its own door, which imports b
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from aiodist.room.b import x", True),
        ("from aiodist.room.c import x", False),
    ],
)
def test_the_check_sees_a_circle(tmp_path: Path, line: str, circle: bool) -> None:
    for name, text in {
        "__init__": "from aiodist.room.b import x",
        "a": line,
        "b": "from aiodist.room.a import y",
        "c": "x = 1",
    }.items():
        path = tmp_path / "room" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n")
    found = cycle(tmp_path)
    assert bool(found) is circle
    if circle:
        assert {"aiodist.room.a", "aiodist.room.b"} <= set(found)
        assert found[0] == found[-1]


def circle_of_rooms(package: Path) -> list[str]:
    """The first circle of imports found among a district's folders, and the files beside these folders."""
    graph: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if len(parts) < 2 or parts[0] in OUTSIDE or parts[1] == "__init__":
            continue  # what a district offers by its own name may come from any of its folders
        here = ".".join(parts[:2])
        graph.setdefault(here, set())
        for node in facts(path).imported:
            inside = node.module if isinstance(node, ast.ImportFrom) else None
            for alias in node.names:
                names = f"{inside}.{alias.name}" if inside else alias.name
                there = names.split(".")
                if there[:2] == ["aiodist", parts[0]] and len(there) > 2 and there[2] != parts[1]:
                    graph[here].add(".".join(there[1:3]))
    return circle_in(graph)


def test_the_check_sees_a_circle_of_folders(tmp_path: Path) -> None:
    for name, text in {
        "group/control/a": "from aiodist.group.services import x",
        "group/services/b": "import aiodist.group.control.c",
        "group/control/c": "x = 1",
    }.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert cycle(tmp_path) == []
    assert set(circle_of_rooms(tmp_path)) == {"group.control", "group.services"}


def others_fields(package: Path) -> list[str]:
    """Every place that sets a private field of an object whose class is in another file, in words."""
    return [found for path in sorted(package.rglob("*.py")) for found in others_fields_in(path)]


def others_fields_in(path: Path) -> list[str]:
    """Those of one file."""
    private = [
        node for node in facts(path).stored if node.attr.startswith("_") and not node.attr.endswith("__")
    ]
    is_self = {node: isinstance(node.value, ast.Name) and node.value.id == "self" for node in private}
    own = {node.attr for node in private if is_self[node]}
    return [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for node in private
        if not is_self[node] and node.attr not in own
    ]


def test_the_check_sees_a_private_field_of_another(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text("class A:\n    def f(self, b):\n        self._x = b._x = 1\n        b._y, b.z = 2, 3\n")
    assert others_fields(tmp_path) == ["file.py:4: b._y"]


def calls_in(tree: ast.AST, method: str) -> list[str]:
    """Every call of a method of this name, as text."""
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [ast.unparse(one) for one in calls if isinstance(one, ast.Attribute) and one.attr == method]


def test_operations_are_submitted_by_one_caller() -> None:
    files = sorted((PACKAGE / "group").rglob("*.py"))
    callers = {path.name: calls_in(ast.parse(path.read_text()), "submit") for path in files}
    newcomers = {"newcomer.py": ["self._admission.submit"]}  # of a ballot
    found = {name: calls for name, calls in callers.items() if calls}
    assert found == newcomers | {"core.py": ["self.carriers.submit"]}


CALLED = [kind for kind, roles in ROLES.items() if not roles.message and kind is not Kind.new_group]


@pytest.mark.parametrize("kind", CALLED)
def test_each_collective_asks_once_whether_it_is_prepared(kind: Kind) -> None:
    tree = ast.parse((PACKAGE / "group/process_group.py").read_text())
    methods = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == kind.name
    ]
    assert calls_in(methods[-1], "start_prepared") == ["self._core.start_prepared"]


def strangers(package: Path) -> list[str]:
    """Every import of what is heavy or foreign outside its one place, and of pickle (law 8), in words."""
    places = {
        "cupy": "backends/",
        "mpi4py": "backends/mpi/",
        "uvloop": "group/runtime/",
        "torch": "backends/arrays/",
    }
    found = []
    for path in sorted(package.rglob("*.py")):
        here = path.relative_to(package).as_posix()
        for node in facts(path).imported:
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif node.module:
                names = [node.module]
            for top in {name.split(".")[0] for name in names}:
                at_home = here.startswith((places.get(top, ""), "cli/", "testing/", "integrations/"))
                if (here, top) not in GUESTS and (top == "pickle" or not at_home):
                    found.append(f"{here}:{node.lineno}: imports {top}")
    return found


def test_importing_aiodist_loads_nothing_heavy() -> None:
    code = (
        "import sys, aiodist, aiodist.cli.main, aiodist.integrations, aiodist.launch\n"
        "import aiodist.cli.commands.launch, aiodist.cli.commands.run, aiodist.cli.commands.agent\n"
        "heavy = ('numpy', 'torch', 'cupy', 'mpi4py', 'uvloop', 'ml_dtypes', 'pytest')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"


def test_all_is_complete_sorted_unique_and_documented() -> None:
    assert aiodist.__all__ == sorted(set(aiodist.__all__))
    for name in aiodist.__all__:
        public = getattr(aiodist, name)
        assert inspect.getdoc(public), f"{name} has no docstring"


def test_lazy_table_equals_what_type_checkers_see() -> None:
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("aiodist.")
        for alias in node.names
    }
    assert seen == vars(aiodist)["_MODULE_OF"]


def test_no_public_method_or_function_is_undocumented() -> None:
    for name in aiodist.__all__:
        public = getattr(aiodist, name)
        if inspect.isclass(public):
            for method, function in inspect.getmembers(public, inspect.isfunction):
                if not method.startswith("_") and function.__module__.startswith("aiodist"):
                    assert inspect.getdoc(function), f"{name}.{method} has no docstring"


def hollow(package: Path) -> list[str]:
    """Every docstring that only says that it is like another: an editor shows it without that one."""
    like = re.compile(r"(likewise|the same|as above|its|see)\b[^.]{0,60}\.$", re.IGNORECASE)
    return [
        f"{path.relative_to(package)}: {name}"
        for path in sorted(package.rglob("*.py"))
        for name, text in facts(path).documented
        if like.match(text)
    ]


def test_all_files_keep_the_laws() -> None:
    """In one test, which one process runs: parsing the files takes longest, and serves all the checks."""
    checks = (violations, cycle, circle_of_rooms, others_fields, strangers, hollow)
    found = {check.__name__: check(PACKAGE) for check in checks}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_the_checks_see_strangers_and_hollow_docstrings(tmp_path: Path) -> None:
    text = 'import os, torch.nn\nfrom pickle import loads\n\ndef f():\n    """Likewise."""\n'
    for name in ("net", "backends/arrays"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.py").write_text(text)
    net = ["net/a.py:1: imports torch", "net/a.py:2: imports pickle"]
    assert strangers(tmp_path) == ["backends/arrays/a.py:2: imports pickle", *net]
    assert hollow(tmp_path) == ["backends/arrays/a.py: f", "net/a.py: f"]
