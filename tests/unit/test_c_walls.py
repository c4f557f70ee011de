# SPDX-License-Identifier: Apache-2.0
"""The walls between the folders of C: who includes whom, and sizes."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

__all__: list[str] = []

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
LONGEST_FILE = 700
LONGEST_FUNCTION = 80


def declared() -> dict[str, list[str]]:
    """Return the table of meson.build: each folder of C, and the libraries that it includes."""
    text = (ROOT / "meson.build").read_text()
    table = re.search(r"^libraries = (\{.*?^\})", text, re.M | re.S)
    assert table
    value: dict[str, list[str]] = ast.literal_eval(table[1])
    return value


TABLE = declared()
FOLDERS = {Path(folder).name: ROOT / folder for folder in TABLE}
USES = {Path(folder).name: set(uses) for folder, uses in TABLE.items()}


def sources(name: str) -> list[Path]:
    return sorted(path for path in FOLDERS[name].iterdir() if path.suffix in {".c", ".h"})


def public(name: str) -> set[str]:
    """Return the headers of a library that others see: all, unless its folder lists them."""
    listed = re.search(
        r"^public = (\[.*?\])$", (FOLDERS[name] / "meson.build").read_text(), re.M | re.S
    )
    headers = {path.name for path in sources(name) if path.suffix == ".h"}
    return set(ast.literal_eval(listed[1])) if listed else headers


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.M)


def unit(path: Path) -> str:
    """Return what a file belongs to: NAME.c and NAME.h of a folder are one."""
    return f"{path.parent.name}/{path.stem}"


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return the members of one circle, none where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def is_generated(name: str) -> bool:
    return name.endswith((".skel.h", ".inc")) or name.startswith("generated/")


def test_all_folders_of_c_are_in_the_table() -> None:
    pmp = {path.name for path in (ROOT / "pmp").iterdir() if path.is_dir()}
    assert set(FOLDERS) == pmp | {"ebpf", "inproc"}
    assert sorted(path.name for path in (ROOT / "pmp").iterdir() if path.is_file()) == [
        "meson.build"
    ]


def test_the_table_is_in_order() -> None:
    seen: set[str] = set()
    for name, uses in USES.items():
        assert uses <= seen, f"{name} comes before {uses - seen}"
        seen.add(name)


@pytest.mark.parametrize("name", FOLDERS)
def test_includes_are_written_with_their_folder_and_declared(name: str) -> None:
    for path in sources(name):
        for include in includes(path):
            if is_generated(include):
                continue
            folder = include.split("/")[0]
            assert include.count("/") == 1, f"{path}: {include}"
            assert folder in USES[name] | {name}, f"{path}: {include}"
            header = include.split("/")[1]
            assert (FOLDERS[folder] / header).is_file(), f"{path}: {include}"
            assert folder == name or header in public(folder), f"{path}: {include}"


def seen_by(name: str) -> set[Path]:
    """Return the headers that a library includes, and those that these include."""
    waiting = sources(name)
    seen = set(waiting)
    while waiting:
        for include in includes(waiting.pop()):
            if is_generated(include):
                continue
            folder, file = include.split("/")
            header = FOLDERS[folder] / file
            if header not in seen:
                seen.add(header)
                waiting.append(header)
    return seen


def test_what_is_declared_is_used() -> None:
    used: dict[str, set[str]] = defaultdict(set)
    for name in FOLDERS:
        folders = {path.parent.name for path in seen_by(name)}
        assert USES[name] - folders == set(), name
        for path in seen_by(name):
            if path.parent.name != name:
                used[path.parent.name].add(path.name)
    for name in FOLDERS:
        if "public = " in (FOLDERS[name] / "meson.build").read_text():
            assert public(name) - used[name] == set(), name


def test_no_file_and_no_function_is_long() -> None:
    folders = [ROOT / folder for folder in ("pmp", "ebpf", "inproc")]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.[ch]"))]
    assert len(paths) > 300
    for path in paths:
        lines = path.read_text().splitlines()
        # A declaration for each field of the kernel's that is read.
        assert len(lines) <= LONGEST_FILE or path.name == "vmlinux.h", path
        begin = 0
        for number, line in enumerate(lines, 1):
            if line == "{":
                begin = number
            elif line == "}" and begin:
                assert number - begin <= LONGEST_FUNCTION, f"{path}:{begin}"
                begin = 0


def test_arrays_grow_in_one_place() -> None:
    """An array that grows by hand may count by another capacity than it has room for."""
    grows = [
        str(path.relative_to(ROOT))
        for folder in ("pmp", "ebpf", "inproc")
        for path in sorted((ROOT / folder).rglob("*.[ch]"))
        if re.search(r"\b(realloc|reallocarray)\s*\(", path.read_text())
    ]
    assert grows == ["pmp/base/array.c"]


FROM_UNTRUSTED_CHILDREN = (
    "pmp/packs/pack_make.h",
    "pmp/proc/path_broker.c",
    "pmp/sandbox/untrusted.c",
    "pmp/unwind/worker_protocol.h",
)


@pytest.mark.parametrize("path", FROM_UNTRUSTED_CHILDREN)
def test_what_untrusted_children_answer_is_plain_numbers(path: str) -> None:
    """A child that was taken over can make a bool, or an enum, that is none of its values."""
    structures = re.findall(r"^struct \w+ \{\n(.*?)^\}", (ROOT / path).read_text(), re.M | re.S)
    assert structures
    for structure in structures:
        assert not re.search(r"^\t(bool|enum) ", structure, re.M), structure


READS_A_PROCESS = re.compile(
    r"\bprocfd\b|process_vm_readv\(|SYS_openat2|\bf?statx?(?:at)?\(|\breadlink(?:at)?\("
    r'|open(?:at)?\([^;]*"/proc/%d|"mem"|\b(?:glob|scandir)\(|\bopendir\((?!"/proc)'
)
MAY_READ = {
    "pmp/base/features.c",  # of a child of its own
    "pmp/base/output.c",  # what it writes
    "pmp/base/trust.c",  # by the guarded reader
    "pmp/sources/poll_process.c",  # the number of threads, of a folder of /proc that is open
}


def test_one_reader_of_processes() -> None:
    """Whatever else reads a process or a path of it may wait for a disk that never answers."""
    reads = {
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "pmp").rglob("*.[ch]"))
        if path.parent.name not in ("proc", "poke")  # poke is a program of its own
        and any(
            READS_A_PROCESS.search(line.partition("//")[0])
            for line in path.read_text().splitlines()
        )
    }
    assert reads <= MAY_READ


def test_tests_include_no_parent() -> None:
    for path in (ROOT / "tests").rglob("*.[ch]"):
        assert not [i for i in includes(path) if ".." in i.split("/")], path


def test_bpf_programs_include_only_what_they_share_with_their_loaders() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "ebpf" / "programs").rglob("*.[ch]")):
        for include in includes(path):
            assert (ROOT / include).is_file(), f"{path}: {include}"
            assert include.startswith("ebpf/"), f"{path}: {include}"
            graph[unit(path)].add(unit(ROOT / include))
    for member, used in graph.items():
        used.discard(member)
    assert circle(graph) == []


def test_no_circle_of_includes() -> None:
    graph: dict[str, set[str]] = defaultdict(set)
    for name in FOLDERS:
        for path in sources(name):
            for include in includes(path):
                if not is_generated(include):
                    folder, file = include.split("/")
                    graph[unit(path)].add(unit(FOLDERS[folder] / file))
    for member, used in graph.items():
        used.discard(member)
    assert circle(graph) == []


def symbols() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return what each object of the libraries defines and what it needs."""
    defined: dict[str, set[str]] = defaultdict(set)
    needed: dict[str, set[str]] = defaultdict(set)
    for name in FOLDERS:
        listed = subprocess.run(
            ["nm", "-P", "-g", BUILD / f"lib{name}.a"], capture_output=True, text=True, check=True
        ).stdout
        member = ""
        for line in listed.splitlines():
            if line.endswith(":"):
                # Meson names an object after the path of its source: pmp_waits_watch.c.o.
                file = re.split(r"[\[/]", line.rstrip("]:"))[-1].removesuffix(".c.o")
                prefix = str(FOLDERS[name].relative_to(ROOT)).replace("/", "_") + "_"
                member = f"{name}/{file.removeprefix(prefix)}"
                continue
            symbol, kind = line.split()[:2]
            (needed if kind == "U" else defined)[member].add(symbol)
    return defined, needed


@pytest.mark.skipif(not BUILD.is_dir(), reason="no build")
def test_no_circle_of_symbols() -> None:
    """A declaration in a header of another unit would hide one from the includes."""
    defined, needed = symbols()
    owner = {symbol: member for member, names in defined.items() for symbol in names}
    files: dict[str, set[str]] = defaultdict(set)
    folders: dict[str, set[str]] = defaultdict(set)
    for member, names in needed.items():
        for other in {owner[symbol] for symbol in names if symbol in owner} - {member}:
            files[member].add(other)
            if other.split("/")[0] != member.split("/")[0]:
                folders[member.split("/")[0]].add(other.split("/")[0])
    assert len(files) > 100
    assert {name: used - USES[name] for name, used in folders.items() if used - USES[name]} == {}
    assert circle(folders) == []
    assert circle(files) == []


def compile_flags(name: str) -> list[str]:
    """Return how a file of the library is compiled, without its source and outputs."""
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        if entry["output"].startswith(f"lib{name}.a.p/"):
            words = shlex.split(entry["command"])
            return [word for word in words if word.startswith(("-I", "-D", "-std"))]
    raise AssertionError(name)


def visible(flags: list[str], headers: list[str]) -> set[str]:
    """Return which of these headers the compiler finds."""
    asked = "".join(
        f'#if __has_include("{header}")\nfound {header}\n#endif\n' for header in headers
    )
    done = subprocess.run(
        ["cc", *flags, "-E", "-P", "-x", "c", "-"],
        input=asked,
        capture_output=True,
        text=True,
        cwd=BUILD,
        check=True,
    )
    return set(re.findall(r"^found (\S+)$", done.stdout, re.M))


@pytest.mark.skipif(not BUILD.is_dir(), reason="no build")
@pytest.mark.parametrize("name", FOLDERS)
def test_a_forbidden_include_does_not_compile(name: str) -> None:
    own = {f"{name}/{path.name}" for path in sources(name) if path.suffix == ".h"}
    allowed = {f"{use}/{header}" for use in USES[name] for header in public(use)}
    headers = {
        f"{folder}/{path.name}"
        for folder in FOLDERS
        for path in sources(folder)
        if path.suffix == ".h"
    }
    paths = {f"pmp/{header}" for header in headers}
    seen = visible(compile_flags(name), sorted(headers | paths))
    assert seen == own | allowed
