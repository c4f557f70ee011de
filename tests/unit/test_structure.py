# SPDX-License-Identifier: Apache-2.0
"""Which folder imports which (docs/design.md), no circles, and nothing long without a reason."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from stallscope.base import extras

__all__: list[str] = []

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "design.md"
ROOMS = {
    "stallscope": ROOT / "stallscope",
    "stallscope.analyzers": ROOT / "analyzers",
    "stallscope.collectors": ROOT / "collectors",
}
MOST_LINES = 700
MOST_LINES_OF_FUNCTION = 80
REASON = re.compile(r"\bLong: \w+(?: \S+){4,}")
"""``Long: `` and why, in the first lines of a file or function that is past the limit."""
NOT_PURE = {
    *("asyncio", "http", "multiprocessing", "random", "select", "signal", "socket", "ssl"),
    *("subprocess", "threading", "time", "urllib"),
}
PURE = (
    "stallscope.analyzers",
    # What decides of incidents: time comes in with events, and commands go out.
    "stallscope.agent.incident.",
    "stallscope.agent.incidents.",
    "stallscope.agent.limits.",
    "stallscope.agent.messages.",
)
OF_EXTRAS = {
    "textual": ("stallscope.screens.",),
    "jinja2": ("stallscope.reporters.html.page", "stallscope.notify.destinations.webhook"),
    "duckdb": ("stallscope.reporters.export.parquet", "stallscope.fleet.engines.duckdb"),
    "apprise": ("stallscope.notify.destinations.apprise",),
    "nacl": (),  # PyMySQL imports it
    "psycopg": ("stallscope.collectors.sql.postgres_child",),
}


def _modules() -> dict[str, Path]:
    """Return all modules by name; what lies behind the links is listed under its own folder."""
    found = {}
    for package, room in ROOMS.items():
        for path in room.rglob("*.py"):
            relative = path.relative_to(room)
            if (room / relative.parts[0]).is_symlink():
                continue
            parts = [package, *relative.with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield what is imported anywhere, ``from a import b`` as ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


MODULES = _modules()


@cache
def imports() -> dict[str, list[str]]:
    return {
        name: sorted(set(_imports(ast.parse(path.read_bytes())))) for name, path in MODULES.items()
    }


def _module(name: str) -> str | None:
    """Return the module that an imported name is or is of; None where it is not ours."""
    if name in MODULES:
        return name
    owner = name.rpartition(".")[0]
    return owner if owner in MODULES else None


def _folder(name: str) -> str:
    """Return the package of a module, without ``stallscope.``; ``main`` stands for the root."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    return package.removeprefix("stallscope").lstrip(".") or "main"


@cache
def files() -> dict[str, set[str]]:
    return {
        name: {found for used in imported if (found := _module(used)) and found != name}
        for name, imported in imports().items()
    }


@cache
def folders() -> dict[str, dict[str, set[str]]]:
    """Return for each folder the folders that it imports, with the files that do."""
    graph: dict[str, dict[str, set[str]]] = {_folder(name): {} for name in MODULES}
    for name, used in files().items():
        for other in used:
            if _folder(other) != _folder(name):
                graph[_folder(name)].setdefault(_folder(other), set()).add(name)
    return graph


def _declared() -> dict[str, set[str]]:
    """Return the table of docs/design.md: for each folder what it may import."""
    section = PAGE.read_text().partition("\n### Which folder imports which\n")[2]
    section = section.partition("\n#")[0]
    rows = re.findall(r"^\| `([\w/]+?)/?` \| (.*?)\|$", section, re.M)
    names = {name.replace("/", ".") for name, _ in rows}
    return {
        name.replace("/", "."): names - {"commands", "main"}
        if used.strip() == "all of them"
        else {other.replace("/", ".") for other in re.findall(r"`([\w/]+)`", used)}
        for name, used in rows
    }


def test_files_import_each_other_in_no_circle() -> None:
    assert len(files()) > 150
    TopologicalSorter(files()).prepare()


def test_folders_import_each_other_in_no_circle() -> None:
    assert {"main", "commands", "analyzers.importers", "collectors.sql"} <= set(folders())
    TopologicalSorter(folders()).prepare()


def test_each_folder_imports_what_the_design_says() -> None:
    declared = _declared()
    assert set(declared) == set(folders())
    TopologicalSorter(declared).prepare()
    beyond = {
        f"{folder} -> {other}": sorted(files)
        for folder, used in folders().items()
        for other, files in used.items()
        if other not in declared[folder]
    }
    assert beyond == {}
    del declared["commands"]  # all of them, also one that none of its files needs today
    unused = {folder: used - set(folders()[folder]) for folder, used in declared.items()}
    assert {folder: used for folder, used in unused.items() if used} == {}


def test_analyzers_and_incidents_are_pure() -> None:
    """No process, no network, no clock: the same file gives the same analysis, anywhere."""
    found = {
        name: used
        for name, names in imports().items()
        if f"{name}.".startswith(PURE)
        and (used := NOT_PURE & {imported.partition(".")[0] for imported in names})
    }
    assert found == {}


@pytest.mark.parametrize("package", OF_EXTRAS)
def test_the_packages_of_extras_are_imported_in_one_place(package: str) -> None:
    assert set(OF_EXTRAS) == set(extras.EXTRAS.values())
    users = {
        name
        for name, names in imports().items()
        if package in {imported.partition(".")[0] for imported in names}
    }
    assert bool(users - {"stallscope.base.extras"}) == bool(OF_EXTRAS[package])
    for name in users - {"stallscope.base.extras"}:
        assert name.startswith(OF_EXTRAS[package])


def test_draws_at_random_have_the_seed_of_all_tests() -> None:
    drawn = re.compile(r"\brandom\.(?!Random\b)\w+\(|\bSystemRandom\b|\brandom\.Random\(\)")
    tests = [p for p in _python_files() if p.is_relative_to(ROOT / "tests") and p.suffix == ".py"]
    users = [path for path in tests if drawn.search(path.read_text())]
    # Benchmarks, and fuzzers at night, are to see what no run before has seen.
    others = [path for path in users if path.parts[-2] not in ("bench", "fuzz")]
    assert [path for path in others if path != Path(__file__)] == []


def _python_files() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "-z", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:  # an export without history
        return [path for room in (*ROOMS, "tests", "scripts") for path in ROOT.glob(f"{room}/**/*")]
    return [ROOT / name for name in done.stdout.split("\0") if name]


@pytest.mark.large
def test_what_is_long_has_a_reason() -> None:
    files = [path for path in _python_files() if path.is_file() and path.suffix == ".py"]
    assert len(files) > 400
    without = []
    for path in files:
        text = path.read_text()
        lines = text.splitlines()
        if len(lines) > MOST_LINES and not REASON.search("\n".join(lines[:10])):
            without.append(f"{path.relative_to(ROOT)}: {len(lines)} lines")
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            head = "\n".join(lines[node.lineno - 1 : node.lineno + 9])
            if length > MOST_LINES_OF_FUNCTION and not REASON.search(head):
                without.append(f"{path.relative_to(ROOT)}: {node.name}: {length} lines")
    assert without == []
