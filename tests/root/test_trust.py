# SPDX-License-Identifier: Apache-2.0
"""Files of other users steer nothing that root does: no name comes from them, and no breakpoint."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stallscope.collectors import probe
from stallscope.model.capture import Capture
from tests.root import twins
from tests.root.support import snap
from tests.support.targets import Target, target_path
from tests.support.watching import Waits

pytestmark = [pytest.mark.needs("root", "waits"), pytest.mark.small]

EVE = 54321


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of another user, in which a pack is."""
    folder = tmp_path / "eve/.local/share/stallscope/packs"
    folder.mkdir(parents=True)
    source = target_path("server")
    pack = folder / f"{twins.build_id(source)}.pack"
    probe.run(["pack", str(source), "--output", str(pack)], seconds=60)
    pack.chmod(0o644)
    for path in (tmp_path / "eve").rglob("*"):
        os.chown(path, EVE, EVE)
    os.chown(tmp_path / "eve", EVE, EVE)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    return tmp_path / "eve"


def nameless(twin: Path) -> None:
    """Strip the server's twin, and make the names of the functions that it exports others."""
    source = target_path("server")
    twins.strip(source, twin)
    data = twin.read_bytes()
    at, size, _ = twins.sections(data)[".dynstr"]
    names = data[at : at + size]
    for name in twins.function_ranges(source):
        if name.startswith(("_Z", "srv_", "sync_", "trx_")):  # of servers
            # Other names may be the ends of these.
            names = names.replace(f"\0{name}\0".encode(), f"\0?{name[1:]}\0".encode())
    twin.write_bytes(data[:at] + names + data[at + size :])


def names_of(capture: Capture, path: Path) -> str | None:
    (module,) = [module for module in capture.modules if module.path == str(path)]
    return module.symbols


def breakpoints(pid: int, program: Path, *options: str) -> int:
    """Return how many breakpoints the probe sets in a program's code."""
    (text,) = [
        line.split()
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
        if line.endswith(f" {program}") and " r-xp " in line
    ]
    start, end = (int(word, 16) for word in text[0].split("-"))
    offset = int(text[2], 16)
    with Waits("--interval", "100", *options, pids=(pid,)) as watcher:
        watcher.line()
        with open(f"/proc/{pid}/mem", "rb") as memory:
            memory.seek(start)
            code = memory.read(end - start)
    in_file = program.read_bytes()[offset : offset + len(code)]
    changed = [now for now, before in zip(code, in_file, strict=False) if now != before]
    assert set(changed) <= {0xCC}
    return len(changed)


def test_pack_of_another_user(home: Path, tmp_path: Path) -> None:
    twin = tmp_path / "stripped"
    nameless(twin)
    folder = home / ".local/share/stallscope/packs"
    with Target("server", executable=twin) as target:
        capture = snap(target.pid, "--pack-dir", str(folder)).whole
        (note,) = [note for note in capture.notes if note.code == "pack-unusable"]
        assert note.message.startswith(f"{folder} is not used: {home} belongs to user {EVE}")
        assert "chown" in note.message
        assert names_of(capture, twin) == ".dynsym"
        assert not breakpoints(target.pid, twin, "--pack-dir", str(folder))
        # The same pack, as root's.
        for path in (home, *home.rglob("*")):
            os.chown(path, 0, 0)
        capture = snap(target.pid, "--pack-dir", str(folder)).whole
        assert not [note for note in capture.notes if note.code == "pack-unusable"]
        assert names_of(capture, twin) == "pack"
        assert breakpoints(target.pid, twin, "--pack-dir", str(folder))


def test_what_waits_does_not_use(home: Path, tmp_path: Path) -> None:
    """Its lines have no notes: it is printed, once."""
    with Target("server") as target:
        words = [str(probe.find()), "waits", "--pid", str(target.pid), "--duration", "1"]
        words += ["--pack-dir", str(home), "--debug-dir", str(home)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    line = f"stallscope-probe: {home} is not used: {home} belongs to user {EVE}"
    assert [said.startswith(line) for said in done.stderr.splitlines()] == [True, True]


@pytest.mark.parametrize("of", ["file", "folder", "eve"])
def test_debug_file_of_another_user(of: str, tmp_path: Path) -> None:
    """Beside the program, as .gnu_debuglink names it."""
    twin = tmp_path / "bin" / "linked"
    twin.parent.mkdir()
    file = twins.link(target_path("threads"), twin, tmp_path / "debug")
    beside = twin.parent / ".debug"
    beside.mkdir()
    file = file.rename(beside / file.name)
    for path in (tmp_path, *tmp_path.parents[:2]):
        path.chmod(0o755)
    with Target("threads", "18", "25", executable=twin) as target:
        assert names_of(snap(target.pid).whole, twin) == "separate"
        if of == "file":
            file.chmod(0o646)
        elif of == "folder":
            beside.chmod(0o777)
        else:
            os.chown(file, EVE, EVE)
        capture = snap(target.pid).whole
    assert names_of(capture, twin) == ".dynsym"
    (note,) = [note for note in capture.notes if note.code == "pack-unusable"]
    assert note.message.startswith(f"{file} is not used: ")
