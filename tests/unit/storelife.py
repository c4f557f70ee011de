# SPDX-License-Identifier: Apache-2.0
"""The life of an agent at its store, and what must be true of the store at any instant of it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from stallscope.model import capturefile, sessionsfile
from stallscope.model.incident import CaptureEntry, Fired, Incident, TargetEntry, Verdict
from stallscope.model.samples import Sample
from stallscope.model.sessions import Session, Sessions
from stallscope.store import Retention, Store, listing, read_deadlocks, read_incident
from stallscope.store.retention import expired
from tests.unit.captures import convoy

__all__ = [
    "CAPTURE",
    "START_NS",
    "Deadlock",
    "FakeTimes",
    "Said",
    "check",
    "fill",
    "incident",
    "life",
    "memory_folder",
    "sample",
]

START_NS = 1_795_273_675_264_000_000
CAPTURE = capturefile.dumps(convoy())
SESSIONS = Sessions(sessions=(Session(7, 11),), pid=100)
TEXT = "=== INNODB STATUS ===\n" * 50
WAITS = b'{"type":"ready","message":"watching"}'
SQL = b'{"digest":"ab","query":"SELECT 1"}'

Said = tuple[str, str, str]
"""What happened, to which incident, and which part of it."""


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """Make a folder in memory, where there is one: what is synced there is no slower for it."""
    shared = Path("/dev/shm")
    where = shared if os.access(shared, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="stallscope-", dir=where) as folder:
        yield Path(folder)


class FakeTimes:
    """The clocks of a host that the test moves; time passes in all of them."""

    def __init__(self, wall_ns: int = START_NS, boot: str = "boot") -> None:
        self.wall = wall_ns
        self.since = 1000 * 10**9
        self.boot = boot

    def wall_ns(self) -> int:
        return self.wall

    def boottime_ns(self) -> int:
        return self.since

    def boot_id(self) -> str:
        return self.boot

    def pass_ns(self, length_ns: int) -> None:
        """Let time pass, suspended or not."""
        self.wall += length_ns
        self.since += length_ns

    def set_ns(self, by_ns: int) -> None:
        """Set the wall clock."""
        self.wall += by_ns

    def off_ns(self, length_ns: int, boot: str) -> None:
        """The host is off for so long, then starts again."""
        self.wall += length_ns
        self.since, self.boot = 10**9, boot


class Deadlock(msgspec.Struct, frozen=True):
    id: str
    text: str


def incident(number: int, name: str = "mariadbd", pid: int = 4711) -> Incident:
    """Return an incident; the higher its number the later."""
    start_ns = START_NS + number * 10**9
    second = number % 60
    hour, minute = divmod(number // 60, 60)
    return Incident(
        id=f"20261121T{hour % 24:02d}{minute:02d}{second:02d}.264Z-{name}-{pid + hour // 24}",
        start_ns=start_ns,
        target=TargetEntry(pid, name, server="mariadb", version="10.11.6"),
        triggers=(Fired("threads-running", "Threads_running 187 > 40", start_ns, 187, 40),),
    )


def verdict(signature: str | None = "metadata-lock") -> Verdict:
    return Verdict(signature, "A metadata lock", 0.93, 187, "thread 4711")


def sample(number: int) -> Sample:
    return Sample("status", START_NS + number, number, {"Threads_running": float(number)})


def fill(store: Store, number: int, say: Callable[[Said], None]) -> None:
    """Write an incident from begin to end, and say each thing when it is done."""
    folder = store.begin(incident(number))
    name = folder.incident.id
    say(("announced", name, ""))
    entry = folder.add_capture(CAPTURE, CaptureEntry("", START_NS, "trigger"))
    say(("capture", name, entry.file))
    sessionsfile.write(convoy(), SESSIONS, folder.path / entry.file)
    say(("sessions", name, entry.file))
    folder.append_samples(map(sample, range(60)))
    say(("samples", name, "60"))
    path = folder.next_capture()
    capturefile.write(convoy(), path)
    say(("capture", name, folder.add_capture(path, CaptureEntry("", START_NS, "burst")).file))
    spooled = store.dest.parent / f"spooled-{os.getpid()}-{number}.jsonl.zst"
    capturefile.write(convoy(), spooled)
    say(("capture", name, folder.add_capture(spooled, CaptureEntry("", START_NS, "burst")).file))
    folder.add_text("innodb-status", TEXT)
    say(("text", name, "innodb-status"))
    folder.append_samples(map(sample, range(60, 70)))
    say(("samples", name, "70"))
    judged = (
        msgspec.structs.replace(known, analyzed=known.file == entry.file)
        for known in folder.incident.captures
    )
    folder.update(msgspec.structs.replace(folder.incident, captures=tuple(judged)))
    say(("analyzed", name, entry.file))
    folder.append_waits([WAITS])
    folder.append_raw_sql([SQL])
    say(("lines", name, ""))
    folder.suppress("the disk is full")
    last = msgspec.structs.replace(
        folder.incident, end_ns=folder.incident.start_ns + 10**9, verdict=verdict()
    )
    folder.finish(last)
    say(("finished", name, ""))
    store.add_deadlock(Deadlock(f"{name}-deadlock", TEXT), most=2)


def life(dest: Path, first: int, say: Callable[[Said], None], *, keep: int = 2) -> None:
    """Do what an agent does: after a start three incidents, then retention."""
    store = Store.open(dest)
    store.recover()
    for number in range(first, first + 3):
        fill(store, number, say)
    limits = Retention(days=None, count=keep)
    for summary in expired(store.listing().incidents, limits, store.clock.now()):
        say(("going", summary.id, ""))
    store.prune(limits)


def check(dest: Path, said: Iterable[Said]) -> None:
    """Assert that everything that was said to be done is there, and that nothing is torn."""
    said = list(said)
    going = {name for what, name, _ in said if what == "going"}
    if not (dest / "incidents").is_dir():
        assert not said, "the store was lost"
        return
    found = listing(dest)
    assert found.notes == []
    ids = {summary.id for summary in found.incidents}
    for what, name, part in said:
        if name in ids:
            _check_part(found.dest / "incidents" / name, what, part)
        else:
            assert name in going, f"{name} was lost after {what}"
    for name in ids:
        _check_whole(dest / "incidents" / name)
    deadlocks, notes = read_deadlocks(dest, Deadlock)
    assert notes == []
    assert all(deadlock.text == TEXT for deadlock in deadlocks)


def _check_part(folder: Path, what: str, part: str) -> None:
    stored = read_incident(folder)
    if what == "capture":
        assert part in {entry.file for entry in stored.incident.captures}
    elif what == "sessions":
        (capture,) = (c.capture for c in stored.captures() if c.entry.file == part)
        assert capture is not None
        assert [thread.connection for thread in capture.threads if thread.tid == 101] == [7]
    elif what == "analyzed":
        assert [e.file for e in stored.incident.captures if e.analyzed] == [part]
    elif what == "samples":
        assert [s.clock_ns for s in stored.samples()][: int(part)] == list(range(int(part)))
    elif what == "text":
        assert part in stored.texts()
    elif what == "lines":
        assert (len(stored.waits()), stored.raw_sql()) == (1, [SQL])
    elif what == "finished":
        assert stored.incident.end_ns is not None
        assert stored.incident.verdict == verdict()
        assert stored.incident.suppressed == 1


def _check_whole(folder: Path) -> None:
    """Assert that all of an incident can be read; a growing file may have a torn tail."""
    stored = read_incident(folder)
    for found in stored.captures():
        assert found.error is None
        assert found.capture is not None
        assert found.capture.notes == convoy().notes  # what lies beside it is whole, too
    samples = [s.clock_ns for s in stored.samples()]
    assert samples == list(range(len(samples)))
    assert set(stored.texts().values()) <= {TEXT}
    assert len(stored.waits()) <= 1
    assert set(stored.raw_sql()) <= {SQL}
    assert {note.code for note in stored.notes} <= {"torn", "capture-unlisted"}
