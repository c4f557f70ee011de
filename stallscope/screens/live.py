# SPDX-License-Identifier: Apache-2.0
"""The live view of a server: a probe, and the store."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stallscope.analyzers import engine
from stallscope.analyzers.catalog import Catalog
from stallscope.base import atomicfile
from stallscope.base.errors import StallscopeError
from stallscope.collectors import rings, snapshot
from stallscope.collectors.calibration import layouts
from stallscope.collectors.ownthreads import Ignoring
from stallscope.collectors.probe import PROBE
from stallscope.collectors.probecommands import command
from stallscope.collectors.probestream import Stream
from stallscope.collectors.processes import Server
from stallscope.model import capturefile, memorysessions, waitlines
from stallscope.model.capture import Capture
from stallscope.model.sessions import Moment, annotate, from_memory, redact
from stallscope.model.waitlines import WaitLine
from stallscope.screens.events import (
    Analyzed,
    Ended,
    Event,
    IncidentsListed,
    Noted,
    Put,
    Saved,
    SourceState,
    WaitsSeen,
)
from stallscope.screens.sessions import Asking
from stallscope.server.statements import normalize
from stallscope.store import listing, reading_dest

__all__ = ["LiveOptions", "LiveSource"]

_SHARE = 0.006
"""The share of a core for captures."""
_PAUSES = (1.0, 30.0)
"""The least and the most seconds from one capture to the next."""
_WARM_SECONDS = 60.0
"""Seconds that the probe may need at its start: it reads the symbols of large files once."""
_STORE_SECONDS = 10.0
_INCIDENTS = 20
_END_SECONDS = 3.0


class LiveOptions(msgspec.Struct, frozen=True):
    """The user's options."""

    interval: float = 1.0
    """Seconds between two lines of waits."""
    captures: float | None = None
    """Seconds between two captures; None: as often as the share of a core allows."""
    uprobes: bool = True
    force_kernel: bool = False
    backend: str = "auto"
    ring: Path | None = None
    """The ring of the backend inproc, or its folder; None: it is searched for."""
    pack_dirs: tuple[Path, ...] = ()
    """Directories of packs, before the usual ones."""
    dest: Path | None = None
    """Of the store; None: the one that is read where none is named, if there is one."""


class LiveSource:
    """A serving probe: lines of waits each second, captures at a limited share of a core."""

    def __init__(
        self,
        pids: tuple[int, ...],
        servers: tuple[Server, ...],
        catalog: Catalog,
        options: LiveOptions,
        asking: Asking | None = None,
    ) -> None:
        self._pids = pids
        self._servers = servers
        self._catalog = catalog
        self._options = options
        self._asking = asking
        self._put: Put = lambda event: None
        self._stream: Stream | None = None
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self._paused = False
        self._ready = False
        self._asked: float | None = None
        self._due = 0.0
        self._wanted: list[Path] = []
        """Files for the requested captures."""
        self._records: list[bytes] = []
        self._layout = ""
        """Where the server keeps its connections."""
        self._memory: tuple[Moment, ...] = ()
        """Sessions of the capture that follows."""
        self._ignoring = Ignoring(self._say)
        """Our own connections' threads."""

    @property
    def titles(self) -> Sequence[str]:
        """Return the servers' names and processes."""
        return [f"{server.name} (pid {server.main.pid})" for server in self._servers]

    def start(self, put: Put) -> None:
        """Start the threads."""
        self._put = put
        if self._asking is not None:
            self._asking.start(put)
        work: tuple[Callable[[], None], ...] = (self._probe, self._store)
        self._threads = [threading.Thread(target=item, daemon=True) for item in work]
        for thread in self._threads:
            thread.start()

    def pause(self, on: bool) -> None:
        """Pause all captures except requested ones."""
        self._paused = on

    def capture(self, path: Path) -> None:
        """Take the next capture now, into a file."""
        try:
            atomicfile.check_can_create(path, force=False)
        except StallscopeError as error:
            self._put(Saved(error=str(error)))
            return
        if self._stream is None or not self._ready:
            self._put(Saved(error="captures are not available now"))
            return
        self._wanted.append(path)
        self._ask()

    def kill(self, statement: str) -> None:
        """Have the connection send it."""
        if self._asking is None:
            self._put(Noted(f"no SQL connection: paste {statement} into a client"))
            return
        self._asking.kill(statement)

    def close(self) -> None:
        """End the probe, and wait for that."""
        self._closing.set()
        self._ignoring.close()
        stream = self._stream
        if stream is not None:
            stream.end()
        if self._asking is not None:
            self._asking.close()
        for thread in self._threads:
            thread.join(_END_SECONDS)

    def _say(self, line: str) -> None:
        stream = self._stream
        if stream is not None:
            stream.say(line)

    def _probe(self) -> None:
        """Serve with waits, or without them where they do not work on this host."""
        self._layout = layouts.of_servers(self._servers).text
        why = self._serve(watch=True)
        if why is None or self._closing.is_set():
            return
        self._put(SourceState("waits", f"no waits: {why}"))
        why = self._serve(watch=False)
        if why is not None and not self._closing.is_set():
            self._put(SourceState("stacks", f"no stacks: {why}"))
            self._put(Ended("no data available; see `stallscope doctor`"))

    def _serve(self, *, watch: bool) -> str | None:
        """Run one probe; return why it never became ready, None where it did."""
        was_ready = False
        why = "it has ended"
        try:
            with Stream(
                self._arguments(watch=watch), max_line=waitlines.MAX_LINE, end_seconds=_END_SECONDS
            ) as stream:
                self._stream = stream
                if self._closing.is_set():
                    stream.end()
                patience = self._options.interval + _WARM_SECONDS if watch else math.inf
                for number, data in enumerate(stream.lines(patience, self._tick), 1):
                    self._take(data, number)
                    was_ready |= self._ready
        except StallscopeError as error:
            why = str(error)
            if not was_ready and self._options.backend != "inproc":
                why = rings.advice(error, self._pids)
        finally:
            self._ignoring.ended()
            self._stream = None
            self._ready = False
            self._asked = None
            self._records = []
        for _ in self._wanted:
            self._put(Saved(error=why))
        self._wanted = []
        if not was_ready:
            return why
        if not self._closing.is_set():
            self._put(Ended(why))
        return None

    def _arguments(self, *, watch: bool) -> list[str]:
        args = command(
            "serve",
            self._pids,
            backend=self._options.backend,
            ring=self._options.ring,
            force_kernel=self._options.force_kernel,
            interval=self._options.interval if watch else None,
            uprobes=self._options.uprobes,
            history=True,
            pack_dirs=self._options.pack_dirs,
        )
        args += ["--read-string", "server_version"]
        return [*args, "--layout", self._layout] if self._layout else args

    def _tick(self) -> float:
        """Ask for a capture when it is time; return when to check again."""
        again = self._ignoring.tick()
        if not self._ready or self._asked is not None or self._paused or self._closing.is_set():
            return again
        left = self._due - time.monotonic()
        if left > 0:
            return min(left, again)
        self._ask()
        return again

    def _ask(self) -> None:
        stream = self._stream
        if stream is not None:
            self._asked = time.monotonic()
            if self._asking is not None:
                self._asking.ask()
            stream.say("snap")

    def _take(self, data: bytes, number: int) -> None:
        if data.startswith(memorysessions.MARK):
            memory = memorysessions.decode([data])
            self._memory = () if memorysessions.misfit(memory) else memory
            return
        if self._records or data.startswith(b'{"type":"capture"'):
            self._records.append(data)
            if data.startswith(b'{"type":"end"'):
                records, self._records = self._records, []
                self._captured(b"\n".join(records) + b"\n")
            return
        line = waitlines.loads(data, PROBE, number)
        if isinstance(line, WaitLine):
            self._put(WaitsSeen(line))
        elif self._ignoring.answered(line):
            return
        elif line.type == "ready":
            self._ready = True
            self._ignoring.begin(self._pids)
        elif line.type == "error":
            self._asked = None
            self._due = time.monotonic() + _PAUSES[1]
            self._put(SourceState("probe", f"the probe: {line.message}"))

    def _captured(self, data: bytes) -> None:
        begin = time.thread_time_ns()
        capture = capturefile.loads(data, PROBE)
        capture = snapshot.with_server_facts(
            msgspec.structs.replace(capture, path=None), self._servers
        )
        memory, self._memory = self._memory, ()
        capture = self._with_sessions(capture, memory)
        analysis = engine.analyze(capture, self._catalog)
        cost = (time.thread_time_ns() - begin + (capture.elapsed_ns or 0)) / 1e9
        pause = self._options.captures
        if pause is None:
            pause = min(max(cost / _SHARE, _PAUSES[0]), _PAUSES[1])
        self._asked = None
        self._due = time.monotonic() + pause
        self._put(Analyzed(analysis, (capture.time_ns or time.time_ns()) / 1e9, pause))
        while self._wanted:
            self._put(_save(capture, self._wanted.pop(0)))

    def _with_sessions(self, capture: Capture, memory: tuple[Moment, ...]) -> Capture:
        """Add what SQL says of connections, and what the server's memory says of others."""
        if self._asking is not None:
            return self._asking.into(capture, memory)
        if not memory:
            return capture
        why = "SQL is not used"
        return annotate(capture, redact(from_memory(memory, why), normalize))

    def _store(self) -> None:
        """Read the store at intervals."""
        dest = self._options.dest or reading_dest()
        shown: Event | None = None
        while not self._closing.is_set():
            # Without a named store, none need exist.
            if self._options.dest is not None or dest.is_dir():
                found = _incidents(dest)
                if found != shown:
                    self._put(found)
                    shown = found
            self._closing.wait(_STORE_SECONDS)


def _incidents(dest: Path) -> Event:
    try:
        return IncidentsListed(tuple(reversed(listing(dest).incidents[-_INCIDENTS:])))
    except StallscopeError as error:
        return SourceState("store", f"no incidents: {error}")


def _save(capture: Capture, path: Path) -> Saved:
    try:
        capturefile.write(capture, path, force=False)
    except (StallscopeError, OSError) as error:
        return Saved(error=str(error))
    return Saved(path=str(path))
