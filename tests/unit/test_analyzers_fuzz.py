# SPDX-License-Identifier: Apache-2.0
"""For any content of a dump or a signature file, the reader returns a result or an error."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.analyzers import catalog, engine
from stallscope.base.errors import StallscopeError
from stallscope.model.capture import Capture, Frame, Label, Lock, LockKind, Process, Release, Thread

pytestmark = pytest.mark.large

__all__: list[str] = []

SIGNATURES = sorted(catalog.PACKAGE_DATA.glob("*.toml"))


@pytest.mark.parametrize("path", SIGNATURES, ids=lambda path: path.stem)
@settings(max_examples=20)
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


@given(captures())
def test_any_capture_is_analyzed(capture: Capture) -> None:
    analysis = engine.analyze(capture, KNOWN)
    assert len(analysis.states) == len(capture.threads)
    tids = {thread.tid for thread in capture.threads}
    assert all(tid in tids for cycle in analysis.cycles for tid in cycle)
    assert sum(group.count for group in analysis.groups) == sum(t.count for t in capture.threads)
