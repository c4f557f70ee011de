# SPDX-License-Identifier: Apache-2.0
"""Who may use paths: one process that can be left behind asks the disks that others choose."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

__all__: list[str] = []

ROOT = Path(__file__).parents[2]
PATHS = ROOT / "collectors" / "paths"
CHILD = PATHS / "child.py"

KERNEL = "files of /proc and /sys, which wait for no disk"
PROGRAM = "the program's own files, and what PATH names"
USER = "files that the user of the command names, or has made"
HOST = "the host's list of its users, and files of /proc"
CHECKED = "folders that paths/ has found to be of this user or of root"
ALLOWED = {
    "calibration/stored.py": USER,
    "cputimes.py": KERNEL,
    "disks/serverpaths.py": KERNEL,
    "disks/tree.py": KERNEL,
    "doctor/checks.py": KERNEL,
    "doctor/host.py": PROGRAM,
    "doctor/packages.py": PROGRAM,
    "host/exits.py": KERNEL,
    "gdb.py": KERNEL,
    "host/backends.py": KERNEL,
    "host/accepting.py": KERNEL,
    "host/cgroups.py": KERNEL,
    "host/collecting.py": KERNEL,
    "host/disks.py": KERNEL,
    "host/links.py": KERNEL,
    "host/pressure.py": KERNEL,
    "host/process.py": KERNEL,
    "host/writes.py": KERNEL,
    "host/oomkills.py": KERNEL,
    "ownclaims.py": CHECKED,
    "ownthreads.py": KERNEL,
    "packs.py": USER,
    "pins.py": HOST,
    "poke/records.py": USER,
    "preload.py": USER,
    "probe.py": PROGRAM,
    "processes.py": KERNEL,
    "procfile.py": KERNEL,
    "pyspy.py": PROGRAM,
    "serverkey.py": KERNEL,
    "snapshot.py": USER,
    "sql/commitclients.py": KERNEL,
    "sql/peers.py": KERNEL,
    "symbols.py": USER,
    "syncprobe.py": USER,
}
"""Modules of collectors/ with calls of their own, and whose paths these are."""

OF_OS = frozenset(
    {"access", "chdir", "chmod", "chown", "getxattr", "link", "listdir", "listxattr", "lstat"}
    | {"makedirs", "mkdir", "open", "readlink", "remove", "rename", "replace", "rmdir", "scandir"}
    | {"stat", "statvfs", "symlink", "truncate", "unlink", "utime", "walk", "fwalk"}
)
OF_OS_PATH = frozenset(
    {"exists", "getmtime", "getsize", "isdir", "isfile", "islink", "ismount", "lexists"}
    | {"realpath", "samefile"}
)
OF_PATH = frozenset(
    {"chmod", "exists", "glob", "is_dir", "is_fifo", "is_file", "is_mount", "is_socket"}
    | {"is_symlink", "iterdir", "lstat", "mkdir", "open", "read_bytes", "read_text", "readlink"}
    | {"resolve", "rglob", "rmdir", "samefile", "stat", "symlink_to", "touch", "unlink"}
    | {"write_bytes", "write_text"}
)
NOT_PATHS = frozenset({"asking", "connection", "re", "self._file"})
"""What has methods of these names, and is no Path."""
LEADS_OUT = re.compile(r"/(?:root|cwd|exe|fd|map_files)\b(?!info)")
"""Below /proc/PID: a link to a file that the process has chosen."""


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that use a path, and their names."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id == "open":
            yield node, "open"
        elif isinstance(called, ast.Attribute):
            owner = ast.unparse(called.value)
            known = {"os": OF_OS, "os.path": OF_OS_PATH, "shutil": {called.attr}}.get(owner)
            if known is None:
                known = set() if owner in NOT_PATHS else OF_PATH
            if called.attr in known:
                yield node, f"{owner}.{called.attr}"


def collectors() -> dict[str, Path]:
    folder = ROOT / "collectors"
    return {
        str(path.relative_to(folder)): path
        for path in sorted(folder.rglob("*.py"))
        if PATHS not in path.parents
    }


def test_collectors_ask_disks_through_paths_alone() -> None:
    users = {
        name: [f"{call.lineno}: {what}" for call, what in calls(ast.parse(path.read_text()))]
        for name, path in collectors().items()
    }
    users = {name: found for name, found in users.items() if found}
    assert {name: found for name, found in users.items() if name not in ALLOWED} == {}
    assert set(ALLOWED) - set(users) == set(), "they have no such call any more"


def test_nobody_follows_the_links_of_a_process() -> None:
    """Reading a link, or listing a folder of them, follows none."""
    found = []
    for room in ("analyzers", "collectors", "stallscope"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for call, what in calls(ast.parse(path.read_text())):
                words = ast.unparse(call)
                follows = not what.endswith((".readlink", ".listdir", ".scandir"))
                if follows and LEADS_OUT.search(words) and "/proc/self/" not in words:
                    found.append(f"{path.relative_to(ROOT)}:{call.lineno}: {words}")
    assert found == []


def test_the_child_is_asked_alone_and_needs_nothing() -> None:
    tree = ast.parse(CHILD.read_text())
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names
    uses = [ast.unparse(call) for call, _ in calls(ast.parse((PATHS / "asking.py").read_text()))]
    assert uses == ["open(f'/proc/{self.process.pid}/stat', 'rb')"]
    users = [name for name, path in collectors().items() if "paths.child" in path.read_text()]
    assert users == []


def test_no_collector_waits_for_a_program_without_a_limit() -> None:
    """One that waits for a disk does not end when it is killed."""
    found = []
    for name, path in collectors().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.With):
                started = [ast.unparse(item.context_expr) for item in node.items]
                if any(word.startswith(("subprocess.Popen(", "probe.start(")) for word in started):
                    found.append(f"{name}:{node.lineno}: its end is waited for without a limit")
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                limited = node.args or any(one.arg == "timeout" for one in node.keywords)
                owner = ast.unparse(node.func.value)
                waits = node.func.attr in ("wait", "communicate") and "rocess" in owner + "child"
                if waits and not limited and "condition" not in owner:
                    found.append(f"{name}:{node.lineno}: {owner}.{node.func.attr}()")
                if owner == "subprocess" and node.func.attr in ("run", "check_output", "call"):
                    found.append(f"{name}:{node.lineno}: {owner}.{node.func.attr}()")
    assert found == []
