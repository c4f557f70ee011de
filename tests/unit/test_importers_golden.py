# SPDX-License-Identifier: Apache-2.0
"""Every format, as its tool prints it, and what is read of it: tests/data/importers.

NAME.in comes from the tool of its name, run on programs and servers of this project; those of
tools that do not run everywhere (bpftrace, bcc, quickstack, coredumpctl, MySQL's newest crashes,
semaphore waits) are written after their sources. ``STALLSCOPE_UPDATE_GOLDEN=1`` writes the .out
files; read the difference before committing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.analyzers import importers
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Frame, Thread

DATA = Path(__file__).parent.parent / "data" / "importers"
CASES = sorted(DATA.glob("*.in"))
JSON = ("py-spy-json",)
"""One text, with nothing before and after it."""


def describe(capture: Capture) -> Iterator[str]:
    process = capture.processes[0]
    yield f"{capture.backend}: pid {process.pid} {process.exe or process.comm}"
    for name, text in process.strings.items():
        yield f"  {name} = {text}"
    for note in capture.notes:
        yield f"  note {note.code}: {note.message}"
    for index, lock in enumerate(capture.locks):
        facts = {
            "owner": lock.owner_tid,
            "mode": lock.mode,
            "created": lock.created,
            "locked at": lock.locked_at,
            "readers": lock.readers,
        }
        said = ", ".join(f"{key} {value}" for key, value in facts.items() if value is not None)
        yield f"  lock {index}: {lock.address:#x} {lock.kind} {lock.symbol} x{lock.waiters} {said}"
    for thread in capture.threads:
        yield from threads(thread)


def threads(thread: Thread) -> Iterator[str]:
    facts = {
        "lock": thread.lock,
        "waited": thread.waited_ns,
        "connection": thread.connection,
        "command": thread.command,
        "activity": thread.activity,
        "query": thread.query,
        "unwind": None if thread.unwind == "complete" else thread.unwind,
        "on_cpu": thread.on_cpu or None,
    }
    said = "".join(f" {key}={value!r}" for key, value in facts.items() if value is not None)
    yield f"  thread {thread.tid} {thread.name!r} x{thread.count} {thread.state}{said}"
    for frame in thread.kernel_frames:
        yield f"    kernel {line(frame)}"
    for frame in thread.frames:
        yield f"    {line(frame)}"


def line(frame: Frame) -> str:
    parts = [frame.symbol or "??"]
    if frame.symbol_offset is not None:
        parts.append(f"+{frame.symbol_offset:#x}")
    if frame.pc is not None:
        parts.append(f"pc {frame.pc:#x}")
    if frame.source:
        parts.append(f"at {frame.source}")
    if frame.module is not None:
        parts.append(f"in {frame.module.path}")
    if frame.offset is not None:
        parts.append(f"offset {frame.offset:#x}")
    return " ".join(parts)


def test_there_are_cases() -> None:
    assert len(CASES) >= 40


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    captures = importers.load(path.read_bytes(), path.name)
    text = "".join(f"{text}\n" for capture in captures for text in describe(capture))
    expected = path.with_suffix(".out")
    if os.environ.get("STALLSCOPE_UPDATE_GOLDEN"):
        expected.write_text(text)
    assert text == expected.read_text()


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_capture_of_it_can_be_written_and_read(path: Path) -> None:
    for capture in importers.load(path.read_bytes(), path.name):
        (again,) = importers.load(capturefile.dumps(capture), "again")
        assert list(describe(again)) == list(describe(capture))


@pytest.mark.parametrize(
    "path", [path for path in CASES if path.stem not in JSON], ids=lambda path: path.stem
)
def test_text_around_a_dump_is_ignored(path: Path) -> None:
    """Lines before and after change nothing, and Windows' ends of lines do not."""
    data = path.read_bytes()
    captures = importers.load(data, path.name)
    around = b"$ some-tool --option\nwords of a report\n\n" + data + b"\n$ exit\nthe end\n"
    for changed in (around, data.replace(b"\n", b"\r\n")):
        again = importers.load(changed, path.name)
        assert [list(describe(c)) for c in again] == [list(describe(c)) for c in captures]
