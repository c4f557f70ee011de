# SPDX-License-Identifier: Apache-2.0
"""A running ``stallscope-probe serve``: fast captures, and waits as they occur."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from pathlib import Path

import msgspec

from stallscope.agent.events import (
    CaptureResult,
    ProbeStatus,
    Put,
    TargetEnded,
    ThreadFailed,
    WaitsReceived,
)
from stallscope.base.errors import StallscopeError
from stallscope.base.threads import keep_running, traced
from stallscope.collectors import processes, rings, versionlayouts
from stallscope.collectors.ownthreads import Ignoring
from stallscope.collectors.probecommands import command
from stallscope.collectors.probestream import Stream
from stallscope.collectors.triggers.settings import BurstSettings
from stallscope.model import memorysessions, waitlines
from stallscope.model.sessions import Moment
from stallscope.model.waitlines import Notice, WaitLine

__all__ = ["ProbeSession", "ProbeSettings", "arguments"]

_log = logging.getLogger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0
STEADY_SECONDS = 60.0
"""A probe that ran so long counts as working: after its end the pauses are short again."""
WARM_SECONDS = 60.0
"""Seconds in which it must become ready: it reads the symbols of large files once."""
WATCH_AGAIN_SECONDS = 600.0
"""The first pause before missing wait programs are tried again. The cause may be a busy minute;
where it is a missing right, no captures are possible for some seconds of each attempt."""
LONGEST_WITHOUT_WATCH = 6 * 3600.0
CAPTURE_SECONDS = 20.0
"""The longest time of a requested capture; a probe that takes longer hangs, and is restarted."""
END_SECONDS = 1.0

_LAYOUT_LINE = 3000
"""Characters of a line of a layout: the probe takes lines as long as a path."""

REST_THRESHOLD_MS = "500"
"""At rest, of waits that no trigger names. With the probe's own 100 ms, syncs of a slow disk would
end the rest, and it would read the threads more often."""


class ProbeSettings(msgspec.Struct, frozen=True):
    """What the probe is asked to do."""

    captures: Path
    """Folder for captures of waits."""
    interval: float = 1.0
    """Between two lines of waits, in seconds."""
    triggers: tuple[str, ...] = ()
    """Options with which it captures by itself:
    stallscope.collectors.triggers.waiting.probe_options."""
    capture_interval: float = 10.0
    """Seconds from one such capture to the next, at least."""
    top: int = 20
    uprobes: bool = True
    backend: str = "auto"
    ring: Path | None = None
    """The ring of the backend inproc, or its folder; None: it is searched for."""
    pack_dirs: tuple[Path, ...] = ()
    """Directories of packs, before the usual ones."""
    force_kernel: bool = False
    burst: BurstSettings = BurstSettings(captures=1)
    """The captures of which each file has a burst."""
    at_rest: bool = False
    """Attach nothing until a wait is past half of its threshold."""


def arguments(pids: tuple[int, ...], settings: ProbeSettings, *, watch: bool) -> list[str]:
    """Return the probe's command line; without ``watch`` it takes captures only."""
    args = command(
        "serve",
        pids,
        backend=settings.backend,
        ring=settings.ring,
        pack_dirs=settings.pack_dirs,
        force_kernel=settings.force_kernel,
        interval=settings.interval if watch else None,
        top=settings.top,
        uprobes=settings.uprobes,
        thresholds=(REST_THRESHOLD_MS,) if settings.at_rest else (),
        at_rest=settings.at_rest,
        history=True,
    )
    args += ["--follow", "--read-string", "server_version"]
    args += versionlayouts.arguments(pids)
    if settings.burst.captures > 1:
        args += ["--burst", str(settings.burst.captures)]
        args += ["--burst-interval", str(round(settings.burst.interval * 1000))]
    if watch and settings.triggers:
        args += settings.triggers
        args += ["--capture-interval", str(round(settings.capture_interval * 1000))]
        args += ["--captures", str(settings.captures)]
    return args


class _CaptureRequest(msgspec.Struct, frozen=True):
    """A requested capture."""

    key: str
    asked: float
    limit: float = CAPTURE_SECONDS


class _TargetRequest(msgspec.Struct, frozen=True):
    """A process to capture from now on."""

    pid: int
    asked: float
    limit: float = WARM_SECONDS


class _LayoutRequest(msgspec.Struct, frozen=True):
    """A part of where the server keeps its connections."""

    asked: float
    limit: float = WARM_SECONDS


_Request = _CaptureRequest | _TargetRequest | _LayoutRequest


class ProbeSession:
    """A probe on one server, restarted when it ends. Its events go to ``put``. A failure is logged
    once, not at each new attempt.
    """

    def __init__(self, settings: ProbeSettings, put: Put) -> None:
        self.settings = settings
        self._put = put
        self._pids: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self._known: tuple[int, ...] = ()
        """The processes that the probe knows; guarded by the lock, as the following attributes."""
        self._asked: deque[_Request] = deque()
        """Open requests, in the order of its answers."""
        self._layout = ""
        """Where the server keeps its connections."""
        self._memory: tuple[Moment, ...] = ()
        """Sessions of the capture that is answered next."""
        self._answered = 0.0
        """When the latest answer came."""
        self._stream: Stream | None = None
        self._ready = False
        self._watch = True
        self._watch_again = math.inf
        """When wait programs are to be tried again, while there are none."""
        self._watch_pause = WATCH_AGAIN_SECONDS
        self._changed = threading.Event()
        """Set to end a pause between two probes."""
        self._closing = threading.Event()
        self._failure: str | None = None
        """Why it does not work, for the error of requested captures."""
        self._logged: set[str] = set()
        """Messages that were logged since it last worked; a cause has few different ones."""
        self._thread: threading.Thread | None = None
        self._ignoring = Ignoring(self._say)
        """Our own connections' threads."""
        self.restarts = 0

    def _say(self, line: str) -> None:
        with self._lock:
            if self._stream is not None and self._ready:
                self._stream.say(line)

    def use_layout(self, text: str) -> None:
        """Read connections by this layout from now on; "" reads none."""
        with self._lock:
            self._layout = text
            if self._stream is not None and self._ready:
                self._send_layout(self._stream)

    def _send_layout(self, stream: Stream) -> None:
        """Say the layout, in lines that are short enough; the lock is held."""
        lines = ["-"]
        line = ""
        for word in self._layout.split():
            if len(line) + len(word) > _LAYOUT_LINE:
                lines.append(line)
                line = ""
            line += f" {word}"
        if line:
            lines.append(line)
        for line in lines:
            self._asked.append(_LayoutRequest(time.monotonic()))
            stream.say(f"layout {line.strip()}")

    @property
    def ready(self) -> bool:
        """Return whether it takes captures now."""
        return self._ready

    @property
    def pid(self) -> int | None:
        """Return its process id, while there is one."""
        stream = self._stream
        return None if stream is None else stream.pid

    def start(self, pids: tuple[int, ...]) -> None:
        """Begin with these processes."""
        self._pids = pids
        self._thread = keep_running(
            "probe", self._run, lambda what, why: self._put(ThreadFailed(what, why))
        )

    def follow(self, pids: tuple[int, ...]) -> None:
        """Continue with the processes that replace those that have ended."""
        self._pids = pids
        ring = self.settings.ring
        if ring is not None and not ring.is_dir():  # of the process that has ended
            self.change(msgspec.structs.replace(self.settings, ring=None))
            return
        self._send_targets()
        self._changed.set()

    def _send_targets(self) -> None:
        """Name the processes that a probe which is ready does not know."""
        with self._lock:
            stream, pids = self._stream, self._pids
            if stream is None or not self._ready or pids == self._known:
                return
            self._known = pids
            for pid in pids:
                self._asked.append(_TargetRequest(pid, time.monotonic()))
                stream.say(f"target {pid}")
        self._ignoring.begin(pids)

    def change(self, settings: ProbeSettings) -> None:
        """Restart it where the settings differ."""
        if settings == self.settings:
            return
        self.settings = settings
        self._end_stream()
        self._changed.set()

    def capture(self, key: str, path: Path) -> None:
        """Request a capture; a CaptureResult with this key follows in every case."""
        with self._lock:
            stream = self._stream if self._ready else None
            if stream is not None:
                burst = self.settings.burst
                limit = CAPTURE_SECONDS + burst.captures * burst.interval
                self._asked.append(_CaptureRequest(key, time.monotonic(), limit))
                stream.say(f"{'burst' if burst.captures > 1 else 'snap'} {path}")
        if stream is None:
            self._put(_failed(key, self._failure or "the probe is not ready yet"))

    def close(self) -> None:
        """Ask it to end, and wait a short time for that."""
        self._closing.set()
        self._changed.set()
        self._ignoring.close()
        self._end_stream()
        if self._thread is None:
            return
        self._thread.join(END_SECONDS + 0.3)
        stream = self._stream
        if self._thread.is_alive() and stream is not None:
            stream.kill()  # no other code will: this process ends

    def _end_stream(self) -> None:
        stream = self._stream
        if stream is not None:
            stream.end()

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._closing.is_set():
            begun = time.monotonic()
            self._changed.clear()
            settings, watched = self.settings, self._watch
            was_ready, why = self._once(settings)
            if self._closing.is_set():
                break
            if self._known != self._pids:  # it has ended with the server before
                self._watch = True
                continue
            if self._watch != watched:  # they are tried again
                continue
            if settings != self.settings or self._degrade(was_ready, why):
                continue
            if time.monotonic() - begun > STEADY_SECONDS:
                pause = FIRST_PAUSE
            self._changed.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            self._watch = True
            self.restarts += 1

    def _degrade(self, was_ready: bool, why: str) -> bool:
        """Log the failure; return whether to continue at once, without wait programs."""
        if was_ready:
            self._log_once(f"the probe has ended and is restarted: {why}")
            return False
        if not any(map(processes.read, self._pids)):
            return False  # there is nothing to capture, until the server is back
        if self._watch:
            self._log_once(f"no waits: {why}; only other triggers request captures")
            self._watch = False
            self._watch_again = time.monotonic() + self._watch_pause
            self._watch_pause = min(self._watch_pause * 2, LONGEST_WITHOUT_WATCH)
            return True
        self._log_once(f"no captures by the probe: {why}")
        return False

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            _log.warning("%s", text)
        self._logged.add(text)
        self._failure = text

    def _once(self, settings: ProbeSettings) -> tuple[bool, str]:
        """Run one probe to its end; return whether it was ready, and why it ended."""
        with self._lock:
            pids = self._known = self._pids
        args = arguments(pids, settings, watch=self._watch)
        self._memory = ()
        why = "it ended"
        was_ready = False
        try:
            with Stream(args, max_line=waitlines.MAX_LINE, end_seconds=END_SECONDS) as stream:
                self._stream = stream
                if self._closing.is_set():
                    stream.end()
                patience = settings.interval + WARM_SECONDS if self._watch else math.inf
                try:
                    for number, data in enumerate(stream.lines(patience, self._tick), 1):
                        self._take(data, number, settings)
                        was_ready |= self._ready
                finally:
                    with self._lock:  # its pipe is closed from here on
                        self._ready = False
                        self._stream = None
                    self._ignoring.ended()
        except StallscopeError as error:
            why = str(error)
            if not was_ready and settings.backend != "inproc":
                why = rings.advice(error, pids)
        except Exception as error:
            self._has_ended(traced(error))
            raise
        self._has_ended(why)
        return was_ready, why

    def _has_ended(self, why: str) -> None:
        """Answer the requests that are still open."""
        with self._lock:
            lost, self._asked = self._asked, deque()
        for asked in lost:
            if isinstance(asked, _CaptureRequest):
                self._put(_failed(asked.key, f"the probe ended during the capture: {why}"))
        self._put(ProbeStatus(ready=False, why=why))

    def _tick(self) -> float:
        with self._lock:
            oldest = self._asked[0] if self._asked else None
            answered = self._answered
        if oldest is None:
            return min(self._time_to_watch(), self._ignoring.tick())
        # The time of earlier requests does not count.
        left = max(oldest.asked, answered) + oldest.limit - time.monotonic()
        if left <= 0:
            self._end_stream()
            return math.inf
        return left

    def _time_to_watch(self) -> float:
        """Return in how many seconds wait programs are tried again; try them when it is time."""
        if self._watch or not self._ready:
            return math.inf
        left = self._watch_again - time.monotonic()
        if left > 0:
            return left
        self._watch = True
        self._end_stream()
        return math.inf

    def _take(self, data: bytes, number: int, settings: ProbeSettings) -> None:
        now = time.monotonic_ns()
        if data.startswith(memorysessions.MARK):
            self._memory += memorysessions.decode([data])
            return
        line = waitlines.loads(data, "stallscope-probe", number)
        if isinstance(line, Notice):
            if self._ignoring.answered(line):
                return
            self._handle(line, now, settings)
        elif not line.final:
            self._note_sampling(line)
            self._put(WaitsReceived(line, data, now))

    def _note_sampling(self, line: WaitLine) -> None:
        """Log once why waits are sampled; a probe that has just started reports it itself."""
        programs = (probe for probe in line.programs if probe.name == "wait programs")
        why = next((probe.why_not for probe in programs if not probe.ok), None)
        if line.sampled and why is not None and why not in self._logged:
            self._logged.add(why)
            _log.warning("wait programs: %s", why)

    def _handle(self, line: Notice, now: int, settings: ProbeSettings) -> None:
        match line.type:
            case "ready":
                self._ready = True
                if self._watch:
                    self._failure = None
                    self._logged.clear()
                    self._watch_pause = WATCH_AGAIN_SECONDS
                at_rest = self._watch and settings.at_rest
                self._put(ProbeStatus(ready=True, sees_waits=self._watch, at_rest=at_rest))
                with self._lock:
                    if self._layout and self._stream is not None:
                        self._send_layout(self._stream)
                    known = self._known
                self._ignoring.begin(known)
                self._send_targets()
            case "written":
                request = self._next()
                memory, self._memory = self._memory, ()
                if isinstance(request, _CaptureRequest):
                    self._put(
                        CaptureResult(line.path, now, line.partial, request.key, memory=memory)
                    )
            case "target" | "layout":
                self._next()
            case "captured":
                memory, self._memory = self._memory, ()
                self._put(
                    CaptureResult(line.path, now, line.partial, wait=line.trigger, memory=memory)
                )
            case "not-captured":
                self._memory = ()
                self._put(
                    CaptureResult(
                        None, now, wait=line.trigger, error=line.message or "no reason given"
                    )
                )
            case "ended":
                self._put(TargetEnded())
            case "error":
                self._memory = ()
                why = line.message or "no reason given"
                match self._next():
                    case _CaptureRequest(key):
                        self._put(_failed(key, why))
                    case _TargetRequest(pid):
                        self._not_followed(pid, why)
                    case _LayoutRequest() | None:
                        _log.warning("the probe: %s", why)

    def _not_followed(self, pid: int, why: str) -> None:
        """Restart a probe that could not switch to a process although it exists."""
        if processes.read(pid) is not None:
            _log.warning("the probe cannot follow to process %d: %s", pid, why)
            self._end_stream()

    def _next(self) -> _Request | None:
        """Handle an answer of the probe."""
        with self._lock, contextlib.suppress(IndexError):
            self._answered = time.monotonic()
            return self._asked.popleft()
        return None


def _failed(key: str, why: str) -> CaptureResult:
    return CaptureResult(None, time.monotonic_ns(), key=key, error=why)
