# SPDX-License-Identifier: Apache-2.0
"""Names come from wherever a binary keeps its symbols, and from nowhere else."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from stallscope.model.capture import Capture
from tests.root import twins
from tests.root.support import assert_frames, by_tid, snap
from tests.support.filesystems import mounted, why_not
from tests.support.targets import Target, is_static, target_path

__all__: list[str] = []

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.small]


def symbols_of(capture: Capture, name: str) -> str | None:
    (module,) = [module for module in capture.modules if module.path.endswith("/" + name)]
    return module.symbols


def test_stripped(tmp_path: Path) -> None:
    """A function without a name is module+0xoffset; an exported neighbour's name is not taken."""
    twin = tmp_path / "stripped"
    twins.strip(target_path("threads"), twin)
    ranges = twins.function_ranges(target_path("threads"))
    with Target("threads", "18", "25", executable=twin) as target:
        capture = snap(target.pid).whole
        assert symbols_of(capture, "stripped") == ".dynsym"
        threads = by_tid(capture)
        nameless = 0
        for fact in target.threads:
            frames = [
                frame
                for frame in threads[fact.tid].frames
                if frame.module and frame.module.path == str(twin)
            ]
            for frame, name in zip(frames, fact.expected(), strict=False):
                assert frame.offset is not None
                # Of a caller the return address is known, which may lie just behind it.
                assert frame.offset - 1 in ranges[name] or frame.offset in ranges[name]
                if is_static(name):
                    nameless += 1
                    assert frame.symbol is None, (name, frame)
                    assert str(frame) == f"stripped+{frame.offset:#x}"
                else:
                    assert frame.symbol == name
            assert len(frames) >= len(fact.expected())
        assert nameless >= 18 * 12


def test_gnu_debugdata(tmp_path: Path) -> None:
    twin = tmp_path / "mini"
    twins.minidebug(target_path("threads"), twin)
    with Target("threads", "18", "25", executable=twin) as target:
        capture = snap(target.pid).whole
        assert symbols_of(capture, "mini") == ".gnu_debugdata"
        assert_frames(capture, target.threads, "mini")


def test_separate_debug_file(tmp_path: Path) -> None:
    twin = tmp_path / "separate"
    twins.separate(target_path("threads"), twin, tmp_path / "debug")
    with Target("threads", "18", "25", executable=twin) as target:
        capture = snap(target.pid, "--debug-dir", str(tmp_path / "debug")).whole
        assert symbols_of(capture, "separate") == "separate"
        assert_frames(capture, target.threads, "separate")
        (module,) = [m for m in capture.modules if m.path == str(twin)]
        assert module.build_id == twins.build_id(twin)
        assert module.debug_file is not None


def test_debug_file_of_another_build_is_not_used(tmp_path: Path) -> None:
    """A file lies under the right build-id, but it is not the one that it claims to be."""
    twin = tmp_path / "separate"
    twins.separate(target_path("threads"), twin, tmp_path / "debug")
    (file,) = (tmp_path / "debug").rglob("*.debug")
    file.write_bytes(target_path("spin").read_bytes())
    with Target("threads", "18", "25", executable=twin) as target:
        capture = snap(target.pid, "--debug-dir", str(tmp_path / "debug")).whole
        assert symbols_of(capture, "separate") == ".dynsym"
        names = {f.symbol for t in capture.threads for f in t.frames}
        assert not any(name and name.startswith("spin") for name in names)


@pytest.mark.parametrize("changed", [False, True])
def test_debug_file_by_link(changed: bool, tmp_path: Path) -> None:
    """A link names a file and its sum: a file with another sum is not used."""
    twin = tmp_path / "linked"
    file = twins.link(target_path("threads"), twin, tmp_path / "debug")
    if changed:
        file.write_bytes(file.read_bytes() + b"\0")
    with Target("threads", "18", "25", executable=twin) as target:
        capture = snap(target.pid, "--debug-dir", str(tmp_path / "debug")).whole
        (module,) = [m for m in capture.modules if m.path == str(twin)]
        assert module.build_id is None
        assert module.symbols == (".dynsym" if changed else "separate")
        assert (module.debug_file is None) == changed
        if not changed:
            assert_frames(capture, target.threads, "linked")


@pytest.mark.skipif(why_not("btrfs") is not None, reason=str(why_not("btrfs")))
def test_subvolumes_repeat_device_and_inode_number(tmp_path: Path) -> None:
    """Two programs of one btrfs, with the same numbers in ``/proc/PID/maps``, are two files."""
    with mounted("btrfs", tmp_path) as folder:
        programs = []
        for name in ("threads", "threads-static"):
            volume = folder / name
            subprocess.run(
                ["btrfs", "subvolume", "create", str(volume)], check=True, capture_output=True
            )
            programs.append(volume / "program")
            shutil.copy(target_path(name), programs[-1])
        one, other = programs
        assert one.stat().st_ino == other.stat().st_ino
        assert one.stat().st_dev != other.stat().st_dev
        with (
            Target("threads", "18", "6", executable=one) as first,
            Target("threads", "18", "6", executable=other) as second,
        ):
            capture = snap(first.pid, "--pid", str(second.pid)).whole
            assert_frames(capture, first.threads, "program")
            found = {module.path: module.build_id for module in capture.modules}
            for program in programs:
                assert found[str(program)] == twins.build_id(program)
