# SPDX-License-Identifier: Apache-2.0
"""Take a Capture with gdb: the last fallback, since it stops every thread for as long as it reads.

How its dangers are limited: no init files, no auto-loaded scripts, no debuginfod, no reading
from a terminal; symbols are read before the attach; a deadline.

gdb that is late is ended with SIGKILL. SIGTERM would be worse: gdb 13, during its attach, passes a
SIGINT on to the target, which makes PostgreSQL shut down. Its commands never let the target run
under gdb, so no breakpoint can stay behind in it. But the SIGSTOP of PTRACE_ATTACH can be left over
and stop the target (ptrace(2), "Attaching and detaching"). So afterwards the target gets SIGCONT,
if it is stopped and was not before. A kill -9 of stallscope itself leaves gdb alone: gdb writes to
a file, not to a pipe that breaks, and detaches when it is done.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence

import msgspec

from stallscope.analyzers import importers
from stallscope.base import package, trust
from stallscope.base.errors import StallscopeError
from stallscope.base.text import one_line
from stallscope.collectors import processes
from stallscope.collectors.programs import kill_group, reap
from stallscope.model.capture import Capture, Frame, Lock, Module, Note, Process, Thread

__all__ = ["capture", "command", "find"]

_RESUME_SECONDS = 2.0
_SIGSTOP = 1 << (signal.SIGSTOP - 1)  # in the masks of /proc/PID/status
_POLL_MS = 1
_MAX_OUTPUT = 256 << 20

_QUIET = (
    "set auto-load off",
    "set auto-load safe-path",
    "set debuginfod enabled off",
    "set confirm off",
    "set pagination off",
    "set width 0",
    "set height 0",
    "set breakpoint pending off",
)
_PRINTING = (
    "set print thread-events off",
    "set print inferior-events off",
    "set print elements 4",  # strings among the arguments can be SQL
    "set backtrace limit 1000",
)


def find() -> str:
    """Return the path of gdb."""
    gdb = trust.find_program("gdb")
    if gdb is None:
        raise StallscopeError("gdb is not installed: apt-get install gdb, or another --backend")
    return gdb


def capture(pids: Sequence[int], *, seconds: float, reason: str | None = None) -> Capture:
    """Stop the processes one after the other and take their stacks.

    ``seconds`` is the deadline of each. ``stopped_ns`` of its threads is the time that gdb was
    attached to it, measured by this process.
    """
    gdb = find()
    begin = time.time_ns()
    start = time.monotonic_ns()
    parts, notes = _capture_each(gdb, pids, seconds)
    found: list[Process] = []
    threads: list[Thread] = []
    locks: list[Lock] = []
    modules: list[Module] = []
    for part in parts:
        moved = _renumber(part, process=len(found), first_lock=len(locks))
        found += moved.processes
        threads += moved.threads
        locks += moved.locks
        modules += moved.modules
        notes += moved.notes
    return Capture(
        backend="gdb",
        backend_reason=reason,
        processes=tuple(found),
        threads=tuple(threads),
        locks=tuple(locks),
        modules=tuple(modules),
        notes=tuple(notes),
        time_ns=begin,
        snapshot_ns=sum(part.stopped_ns for part in parts),
        elapsed_ns=time.monotonic_ns() - start,
        stopped_ns=max(part.stopped_ns for part in parts),
        host=_host(),
        tool={"name": "stallscope", "version": package.version()},
    )


def _renumber(part: Capture, *, process: int, first_lock: int) -> Capture:
    """Return the capture of one process as the part of a larger one."""
    modules = {m: msgspec.structs.replace(m, process=process) for m in part.modules}
    frames: dict[Frame, Frame] = {}

    def frame(old: Frame) -> Frame:
        new = frames.get(old)
        if new is None:
            module = None if old.module is None else modules.get(old.module, old.module)
            new = frames[old] = msgspec.structs.replace(old, module=module, process=process)
        return new

    def thread(old: Thread) -> Thread:
        return msgspec.structs.replace(
            old,
            process=process,
            frames=tuple(map(frame, old.frames)),
            lock=None if old.lock is None else old.lock + first_lock,
        )

    return msgspec.structs.replace(
        part,
        threads=tuple(map(thread, part.threads)),
        locks=tuple(msgspec.structs.replace(lock, process=process) for lock in part.locks),
        modules=tuple(modules.values()),
    )


def _capture_each(
    gdb: str, pids: Sequence[int], seconds: float
) -> tuple[list[Capture], list[Note]]:
    """Capture each process by itself; where one of several ends meanwhile, add a note."""
    parts: list[Capture] = []
    notes: list[Note] = []
    for pid in pids:
        try:
            parts.append(_capture_one(gdb, pid, seconds))
        except StallscopeError:
            if len(pids) == 1 or processes.read(pid) is not None:
                raise
            notes.append(Note("process-ended", f"process {pid} ended before gdb could attach"))
    if not parts:
        raise StallscopeError(f"all {len(pids)} processes ended before gdb could attach")
    return parts, notes


def _host() -> dict[str, str | int]:
    name = os.uname()
    return {
        "name": name.nodename,
        "kernel": name.release,
        "arch": name.machine,
        "cpus": os.cpu_count() or 1,
    }


def command(gdb: str, pid: int) -> list[str]:
    """Return gdb's command line: settings, then symbols, then the attach, as short as it gets."""
    args = [gdb, "-nx", "-nh", "-batch"]
    settings = list(_QUIET)
    steps = list(_PRINTING)
    # Once attached, gdb opens files in the target's mount namespace (its sysroot is "target:").
    # Before that, it follows the text of /proc/PID/exe to a file of that name in our own namespace.
    if not _in_other_namespace(pid):
        root = os.readlink(f"/proc/{pid}/root")
        if root != "/":
            settings.append(f"set sysroot {root}")
        steps.append(f"file /proc/{pid}/exe")
    for setting in settings:
        args += ["-iex", setting]
    for step in (*steps, f"attach {pid}", "thread apply all backtrace", "detach"):
        args += ["-ex", step]
    return args


def _command_of(gdb: str, target: _Target) -> list[str]:
    try:
        return command(gdb, target.pid)
    except OSError as error:
        raise StallscopeError(
            f"cannot read the files of process {target.pid}: {error.strerror}; run it as root"
        ) from error


def _in_other_namespace(pid: int) -> bool:
    return not os.path.samefile(f"/proc/{pid}/ns/mnt", "/proc/self/ns/mnt")


def _capture_one(gdb: str, pid: int, seconds: float) -> Capture:
    target = _Target(pid)
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            args = _command_of(gdb, target)
            stopped_ns = _run(args, target, seconds, out.fileno(), err.fileno())
            out.seek(0)
            err.seek(0)
            text = out.read(_MAX_OUTPUT)
            complaint = _complaint(err.read(1 << 20))
        tids = target.tids
    finally:
        target.close()
    try:
        found = importers.load(text, f"gdb -p {pid}")[0]
    except StallscopeError as error:
        advice = "; run it as root" if "not permitted" in complaint and os.geteuid() else ""
        raise StallscopeError(
            f"gdb could not take the stacks of process {pid}: "
            f"{complaint.rstrip('.') or error}{advice}"
        ) from error
    names = dict(target.names)
    threads = tuple(
        msgspec.structs.replace(
            thread,
            tid=thread.tid or (pid if len(found.threads) == 1 else 0),
            name=thread.name or names.get(thread.tid or pid, ""),
            stopped_ns=stopped_ns,
        )
        for thread in found.threads
    )
    lost = len(tids - {thread.tid for thread in threads})
    notes = list(found.notes)
    if lost:
        notes.append(Note("threads-lost", f"gdb shows no stack of {lost} threads of process {pid}"))
    if target.continued:
        what = f"gdb left process {pid} stopped; SIGCONT was sent"
        notes.append(Note("gdb-left-stopped", what))
    return msgspec.structs.replace(
        found,
        processes=(processes.described(target.pid, lost),),
        threads=threads,
        notes=tuple(notes),
        stopped_ns=stopped_ns,
    )


def _run(args: list[str], target: _Target, seconds: float, out: int, err: int) -> int:
    """Run gdb to its end; return for how long it traced the target, in ns, to about 1 ms."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
        "HOME": "/nonexistent",
    }
    watch = _StopWatch(target)
    process = subprocess.Popen(
        args,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        env=environment,
        cwd="/",
        # Ctrl-C is for stallscope, which then ends gdb cleanly.
        start_new_session=True,
    )
    deadline = time.monotonic() + seconds
    pidfd = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        while not poll.poll(_POLL_MS):
            watch.poll()
            if time.monotonic() > deadline:
                ended = _end(process, target)
                late = f"gdb on process {target.pid} took more than {seconds:g} s"
                if not ended:
                    raise StallscopeError(f"{late} and was left behind: a disk does not answer")
                raise StallscopeError(
                    f"{late} and was ended;"
                    f" it was stopped for {watch.stop() / 1e9:.3f} s; give a longer --deadline"
                )
        _reap(process)
        target.resume(0)
    except BaseException:
        _end(process, target)
        raise
    finally:
        os.close(pidfd)
    return watch.stop() or watch.longest_unseen


def _end(process: subprocess.Popen[bytes], target: _Target) -> bool:
    """End gdb so that the target continues; return whether it has ended."""
    if process.returncode is not None:
        return True
    ended = _reap(process)
    target.resume(_RESUME_SECONDS)
    return ended


def _reap(process: subprocess.Popen[bytes]) -> bool:
    """Kill gdb and its children, and return whether it has ended.

    It tests ptrace on a child, which would stay stopped forever.
    """
    kill_group(process)
    return reap(process) is not None


class _StopWatch:
    """Measure for how long the target is traced: an upper bound of the time that it was stopped."""

    def __init__(self, target: _Target) -> None:
        self._target = target
        self._before = time.monotonic_ns()
        self._begin: int | None = None
        self._total = 0
        self.longest_unseen = 0
        """The longest time between two polls: a stop that no poll saw was no longer than this."""

    def poll(self) -> None:
        now = time.monotonic_ns()
        self.longest_unseen = max(self.longest_unseen, now - self._before)
        if self._target.is_traced():
            if self._begin is None:
                self._begin = self._before
        elif self._begin is not None:
            self._total += now - self._begin
            self._begin = None
        self._before = now

    def stop(self) -> int:
        """Return the measured nanoseconds; gdb has ended or detached."""
        now = time.monotonic_ns()
        self.longest_unseen = max(self.longest_unseen, now - self._before)
        if self._begin is not None:
            self._total += now - self._begin
            self._begin = None
        self._before = now
        return self._total


class _Target:
    """The process, held by a pidfd, so that no signal reaches a later process with the same pid."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.continued = False
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError as error:
            raise StallscopeError(f"no process {pid}: {error.strerror}") from error
        tracer = self._status().get("TracerPid", "0")
        if tracer != "0":
            os.close(self._pidfd)
            raise StallscopeError(f"process {pid} is traced already, by process {tracer}")
        self._stopped_before = "stopped" in map(self._stop_state, self._tids())
        self.tids = self._tids()
        self.names = [(tid, processes.thread_name(self.pid, tid)) for tid in self.tids]

    def close(self) -> None:
        os.close(self._pidfd)

    def is_traced(self) -> bool:
        return self._status().get("TracerPid", "0") != "0"

    def resume(self, seconds: float) -> None:
        """Send SIGCONT where an ended tracer left the process stopped, and only there.

        The kernel makes threads stop after their tracer died, not at once, and nothing reports it:
        ``seconds`` is how long to wait for threads that are not stopped yet.
        """
        if self._stopped_before:
            return
        deadline = time.monotonic() + seconds
        pause = 0.001
        while True:
            late = time.monotonic() >= deadline
            states = [self._stop_state(tid) for tid in self._tids()]
            if "stopped" in states:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)
                    self.continued = True
            elif "undecided" not in states:
                return
            if late:
                return
            time.sleep(pause)
            pause = min(pause * 2, 0.1)

    def _tids(self) -> set[int]:
        with contextlib.suppress(OSError):
            return {int(tid) for tid in os.listdir(f"/proc/{self.pid}/task")}
        return set()

    def _stop_state(self, tid: int) -> str:
        """Return ``stopped``, ``undecided`` or ``going`` for a thread."""
        fields = self._status(tid)
        state = fields.get("State", "")
        if state == "T":
            return "stopped"
        pending = int(fields.get("SigPnd", "0"), 16) | int(fields.get("ShdPnd", "0"), 16)
        # Stopped by a tracer, running, or about to take a SIGSTOP: any of these can end in T.
        return "undecided" if state in ("t", "R") or pending & _SIGSTOP else "going"

    def _status(self, tid: int | None = None) -> dict[str, str]:
        """Return the first word of each field of /proc/PID/task/TID/status."""
        path = f"/proc/{self.pid}/task/{tid or self.pid}/status"
        with contextlib.suppress(OSError), open(path, "rb") as file:
            lines = [line.split() for line in file.read().decode("ascii", "replace").splitlines()]
            return {line[0].rstrip(":"): line[1] for line in lines if len(line) > 1}
        return {}


def _complaint(err: bytes) -> str:
    """Return gdb's own message about why it failed."""
    lines = [line.strip() for line in err.decode("utf-8", "backslashreplace").splitlines()]
    for word in ("ptrace:", "Could not attach", "No such process", "Operation not permitted"):
        for line in lines:
            if word in line:
                return one_line(line)
    real = [line for line in lines if line and not line.startswith("warning:")]
    return one_line(real[0]) if real else ""
