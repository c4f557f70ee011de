# SPDX-License-Identifier: Apache-2.0
"""For any content of a dump or a signature file, the reader returns a result or an error."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.analyzers import catalog, engine, importers
from stallscope.base.errors import StallscopeError
from stallscope.model.capture import Capture, Frame, Label, Lock, LockKind, Process, Release, Thread
from tests.unit.costs import cpu_seconds

pytestmark = pytest.mark.slow

__all__: list[str] = []

DATA = Path(__file__).parent.parent / "data" / "gdb"
DUMPS = [path.read_bytes()[:20_000] for path in sorted(DATA.glob("*.in"))]
SIGNATURES = sorted(catalog.PACKAGE_DATA.glob("*.toml"))
SECONDS = 10.0

PIECES = st.sampled_from(
    [
        b"Thread 1 (Thread 0x7f00 (LWP 7)):\n",
        b"#0  0x00007f00 in f (",
        b"#1  0x1 in operator<< <a, b(c)> (x=<y>) from /lib/x\n",
        b"#99999999999999999999 0x1 in x ()\n",
        b"(" * 50,
        b"<" * 50,
        b'"',
        b"\n",
        b"\\",
        b"\xff\xfe",
        b"\x00",
        b"---Type <return> to continue---",
        b"#0  <signal handler called>\n",
    ]
)


def answer(data: bytes) -> list[Capture]:
    captures: list[Capture] = []
    message = ""

    def read() -> None:
        nonlocal captures, message
        try:
            captures = importers.load(data, "fuzz")
        except StallscopeError as error:
            message = str(error)

    assert cpu_seconds(read, SECONDS) < SECONDS
    assert "\n" not in message
    return captures


@given(st.binary(max_size=3000))
def test_any_bytes_as_a_dump(data: bytes) -> None:
    answer(data)


@settings(max_examples=300)
@given(st.lists(PIECES | st.binary(max_size=20), max_size=60))
def test_pieces_of_dumps(pieces: list[bytes]) -> None:
    answer(b"".join(pieces))


@settings(max_examples=200)
@given(st.data())
def test_damaged_dumps_of_real_servers(data: st.DataObject) -> None:
    dump = data.draw(st.sampled_from(DUMPS))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(dump)))
        new = data.draw(PIECES | st.binary(max_size=20))
        dump = dump[:at] + new + dump[at + data.draw(st.integers(0, 200)) :]
    for capture in answer(dump):
        assert all(len(thread.frames) <= 1000 for thread in capture.threads)


def test_one_huge_line_is_read_in_time() -> None:
    for piece in (b"(", b"<", b"#0  0x1 in f (", b"operator ", b"a<b>::", b'"\\'):
        answer(b"#0  0x1 in f (" + piece * 200_000)


@pytest.mark.parametrize("path", SIGNATURES, ids=lambda path: path.stem)
@settings(max_examples=30)
@given(data=st.data())
def test_damaged_signature_files(path: Path, data: st.DataObject) -> None:
    text = path.read_bytes()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        new = data.draw(
            st.sampled_from([b"[[", b"'", b'"', b"= 1\n", b"[]", b"**", b"(?", b"\xff", b"\n\n"])
            | st.binary(max_size=10)
        )
        text = text[:at] + new + text[at + data.draw(st.integers(0, 50)) :]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "damaged.toml"
        file.write_bytes(text)
        message = ""
        try:
            catalog.check(file)
        except StallscopeError as error:
            message = str(error)
        assert not message or "damaged.toml" in message
        assert "\n" not in message


NAMES = st.sampled_from(
    [
        "pthread_mutex_lock",
        "__lll_lock_wait",
        "poll",
        "start_thread",
        "open_table",
        "srv_suspend_mysql_thread",
        "lock_deadlock_recursive",
        "lock_table",
        "pthread_cond_broadcast",
        "MDL_wait::timed_wait",
        "do_command",
        "fsync",
        None,
    ]
) | st.text(max_size=20)


@st.composite
def captures(draw: st.DrawFn) -> Capture:
    """Make captures whose threads wait for each other, and for themselves, in every way."""
    count = draw(st.integers(0, 6))
    lock_count = draw(st.integers(0, 4))
    owners = st.none() | st.integers(0, count + 1)
    locks = tuple(
        Lock(
            process=draw(st.integers(0, 1)),
            address=draw(st.integers(0, 2**64 - 1)),
            kind=draw(st.sampled_from(list(LockKind))),
            owner_tid=draw(owners),
            symbol=draw(NAMES),
            stable=draw(st.booleans()),
        )
        for _ in range(lock_count)
    )
    threads = tuple(
        Thread(
            tid=draw(st.integers(0, count)),
            process=draw(st.integers(0, 1)),
            frames=tuple(Frame(symbol=name) for name in draw(st.lists(NAMES, max_size=6))),
            state=draw(st.sampled_from("RSDTtZXI?")),
            on_cpu=draw(st.booleans()),
            label=draw(st.none() | st.sampled_from(list(Label))),
            lock=draw(st.none() | st.integers(0, lock_count - 1)) if lock_count else None,
            count=draw(st.integers(1, 3)),
        )
        for _ in range(count)
    )
    releases = tuple(
        Release(
            process=draw(st.integers(0, 1)),
            tid=draw(st.integers(0, count)),
            frames=tuple(Frame(symbol=name) for name in draw(st.lists(NAMES, max_size=4))),
            lock=draw(st.none() | st.integers(0, lock_count)),
            ago_ns=draw(st.integers(0, 2**63 - 1)),
            waited_ns=draw(st.none() | st.integers(0, 2**63 - 1)),
        )
        for _ in range(draw(st.integers(0, 3)))
    )
    processes = (Process(pid=1, comm=draw(NAMES)), Process(pid=2))
    return Capture(
        backend="fuzz", processes=processes, threads=threads, locks=locks, releases=releases
    )


KNOWN = catalog.load()


@settings(max_examples=300)
@given(captures())
def test_any_capture_is_analyzed(capture: Capture) -> None:
    analysis = engine.analyze(capture, KNOWN)
    assert len(analysis.states) == len(capture.threads)
    tids = {thread.tid for thread in capture.threads}
    assert all(tid in tids for cycle in analysis.cycles for tid in cycle)
    assert sum(group.count for group in analysis.groups) == sum(t.count for t in capture.threads)
