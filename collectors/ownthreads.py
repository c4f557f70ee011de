# SPDX-License-Identifier: Apache-2.0
"""The threads of servers that serve connections of this process, so that a probe ignores them.

A server gives a thread to the next connection when one has ended: a thread is ours from the login
until either side closes the socket, which the kernel reports at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stallscope.collectors.ownclaims import Claim, claims
from stallscope.model.waitlines import Notice

__all__ = [
    "Ignoring",
    "OwnThread",
    "close",
    "has_thread",
    "is_pool",
    "open_threads",
    "opened",
    "peer_inode",
    "reading_thread",
]

MAX_TRIES = 10
FIRST_PAUSE = 0.05
"""Seconds until a thread is searched for again, doubled each time: it is found while it waits for
us, and not while it works."""
LONGEST_PAUSE = 5.0
OTHERS_SECONDS = 1.0
"""From one search for connections of other processes to the next."""

# include/uapi/linux/sock_diag.h, unix_diag.h
_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_SHOW_PEER = 4
_PEER = 2
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBHIIIII")
_ANSWER = struct.Struct("=BBBBIII")

_READS = {"x86_64": (0, 45), "aarch64": (63, 207)}
"""read, recvfrom: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h"""
_MAX_THREADS = 65536


class OwnThread:
    """A connection of ours, and the thread that serves it."""

    def __init__(self, pid: int | None, inode: int | None) -> None:
        self.pid = pid
        """The server's process, according to the kernel; None: it is reached over TCP."""
        self.inode = inode
        """Of the server's end of a Unix socket."""
        self.tid: int | None = None
        """Its number in its own pid namespace, according to the server."""
        self.wants_tid = False
        """The server must be asked for the number: by the connection itself, when it is used."""
        self.was_asked = False
        self.pool = False
        """The server has a pool of threads: no thread is ours."""
        self.ended = False
        self._descriptor = -1
        self._claim: Claim | None = None

    def ask(self) -> None:
        """Have the connection ask for the number, once."""
        self.wants_tid, self.was_asked = not self.was_asked, True

    def found(self, tid: int | None, *, pool: bool = False) -> None:
        """Take what the server says of it."""
        self.wants_tid = False
        self.tid = tid
        self.pool = pool
        _registry.changed()

    def is_of(self, pid: int) -> bool:
        """Return whether the process is its server's, as far as that can be known."""
        if self.pid:
            return self.pid == pid
        return self.tid is not None and has_thread(pid, self.tid)

    @property
    def words(self) -> str | None:
        """Return by what the probe knows which thread it is; None: it is not known."""
        if self.ended or self.pool:
            return None
        if self.tid is not None:
            return str(self.tid)
        return None if self.inode is None else f"socket:{self.inode}"


class _Registry:
    """The connections of this process, and who has their threads ignored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[int, OwnThread] = {}
        """By the descriptor that shows the end of the socket."""
        self._listeners: list[Callable[[], None]] = []
        self.lost: deque[OwnThread] = deque()
        """Those whose owner was collected. That may be in any thread, at any moment, also in one
        that holds the lock: they are removed later."""
        self._ends = select.epoll()
        self._claims = False
        """Other processes are to know of the connections."""
        self._watcher: threading.Thread | None = None

    def add(self, thread: OwnThread, descriptor: int) -> None:
        self.sweep()
        with self._lock:
            thread._descriptor = descriptor
            self._threads[descriptor] = thread
            # Data is not waited for: only the end.
            self._ends.register(descriptor, select.EPOLLRDHUP)
            self._claim(thread)
        self.changed()

    def _claim(self, thread: OwnThread) -> None:
        if self._claims and thread._claim is None and thread.pid and thread.inode:
            thread._claim = Claim(thread.pid, thread.inode)

    def remove(self, thread: OwnThread) -> None:
        with self._lock:
            if thread.ended:
                return
            thread.ended = True
            del self._threads[thread._descriptor]
            with contextlib.suppress(OSError):
                self._ends.unregister(thread._descriptor)
            os.close(thread._descriptor)
            if thread._claim is not None:
                thread._claim.release()
        self.changed()

    def sweep(self) -> None:
        """Remove those that are lost; not to be called with a lock held."""
        while self.lost:
            with contextlib.suppress(IndexError):  # another thread was faster
                self.remove(self.lost.popleft())

    def all(self) -> list[OwnThread]:
        with self._lock:
            return list(self._threads.values())

    def listen(self, listener: Callable[[], None]) -> None:
        """From now on the connections are claimed, too: a process with a probe keeps them."""
        with self._lock:
            self._listeners.append(listener)
            self._claims = True
            if self._watcher is None:
                self._watcher = threading.Thread(
                    target=self._watch, name="own-threads", daemon=True
                )
                self._watcher.start()
            for thread in self._threads.values():
                self._claim(thread)

    def forget(self, listener: Callable[[], None]) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._listeners.remove(listener)

    def changed(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _watch(self) -> None:
        while True:
            for descriptor, _ in self._ends.poll():
                with self._lock:
                    thread = self._threads.get(descriptor)
                    # Another connection may have this descriptor by now.
                    if thread is None or not _is_over(descriptor):
                        continue
                self.remove(thread)


def _is_over(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))


_registry = _Registry()


def opened(owner: object, end: socket.socket, pid: int | None) -> OwnThread:
    """Note a connection that has logged in; ``pid``: its server's process, where it is known. It
    is over when it is closed, or when nobody has its owner any more."""
    local = end.family == socket.AF_UNIX
    thread = OwnThread(pid, peer_inode(end) if local and pid else None)
    _registry.add(thread, os.dup(end.fileno()))
    weakref.finalize(owner, _registry.lost.append, thread)
    return thread


def close(thread: OwnThread) -> None:
    """Note the end of a connection, before its socket is closed."""
    _registry.remove(thread)


def open_threads() -> list[OwnThread]:
    """Return those of all open connections of this process."""
    return _registry.all()


def is_pool(thread_handling: str | None) -> bool:
    """Return whether a server's threads serve several connections by turns."""
    return thread_handling not in (None, "one-thread-per-connection", "no-threads")


def peer_inode(end: socket.socket) -> int | None:
    """Return the inode number of the other end of a Unix socket; None where the kernel does not
    say."""
    with contextlib.suppress(OSError, struct.error):
        inode = os.fstat(end.fileno()).st_ino
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            request = _REQUEST.pack(
                socket.AF_UNIX, 0, 0, 0xFFFFFFFF, inode, _SHOW_PEER, 0xFFFFFFFF, 0xFFFFFFFF
            )
            size = _HEADER.size + len(request)
            kernel.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, 1, 1, 0) + request)
            return _peer_of(kernel.recv(4096))
    return None


def _peer_of(data: bytes) -> int | None:
    size, kind, *_ = _HEADER.unpack_from(data)
    at = _HEADER.size + _ANSWER.size
    while kind == _SOCK_DIAG_BY_FAMILY and at + 8 <= min(size, len(data)):
        length, attribute, value = struct.unpack_from("=HHI", data, at)
        if attribute == _PEER:
            return int(value)
        at += max(4, (length + 3) & ~3)
    return None


def reading_thread(pid: int, inode: int) -> int | None:
    """Return the thread of a server that waits in a read for what this socket brings; None: none
    does, or this user may not see it.

    For servers that do not say which thread serves a connection: MySQL before 5.7, which reads
    where later ones poll. The probe knows both, where threads are to be ignored.
    """
    link = f"socket:[{inode}]"
    reads = _READS.get(os.uname().machine, ())
    with contextlib.suppress(OSError, ValueError):
        for task in list(os.scandir(f"/proc/{pid}/task"))[:_MAX_THREADS]:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                call = Path(task.path, "syscall").read_text().split()
                # "running", or the number of the call and its arguments.
                if len(call) < 2 or int(call[0]) not in reads:
                    continue
                if os.readlink(f"/proc/{pid}/fd/{int(call[1], 16)}") == link:
                    return int(task.name)
    return None


def has_thread(pid: int, tid: int) -> bool:
    """Return whether a process has a thread of this number, in its own pid namespace and ours: in a
    container it may be that of another one."""
    try:
        with open(f"/proc/{pid}/task/{tid}/status", "rb") as file:
            text = file.read(8192)
    except OSError:
        return False
    numbers = next((line for line in text.splitlines() if line.startswith(b"NSpid:")), b"")
    return len(numbers.split()) <= 2


class _Request(msgspec.Struct, eq=False):
    """What a probe was asked for a thread."""

    thread: OwnThread
    pid: int
    words: str = ""
    tid: int | None = None
    """The number under which the probe ignores it."""
    waits: bool = False
    """An answer is to come."""
    tries: int = 0
    due: float = 0.0


class Ignoring:
    """Has one probe ignore our threads of its processes, as long as they are ours."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """``say`` writes a line to the probe that runs; it may be called in any thread."""
        self._say = say
        self._lock = threading.RLock()
        self._pids: tuple[int, ...] = ()
        self._requests: dict[OwnThread, _Request] = {}
        self._sent: list[_Request] = []
        """In the order of the answers."""
        self._others: dict[tuple[int, int], OwnThread] = {}
        """Of other processes of stallscope, by the server's process and inode number."""
        self._others_due = 0.0
        self._changed = self._update
        _registry.listen(self._changed)

    def close(self) -> None:
        """Do nothing from now on."""
        _registry.forget(self._changed)
        self.ended()

    def begin(self, pids: Sequence[int]) -> None:
        """A probe has started, or follows to other processes."""
        with self._lock:
            if self._pids != tuple(pids):
                self._requests = {
                    one: request for one, request in self._requests.items() if request.pid in pids
                }
                self._pids = tuple(pids)
            self._update()

    def ended(self) -> None:
        """The probe has ended: another one knows nothing."""
        with self._lock:
            self._pids = ()
            self._requests = {}
            self._sent = []
            self._others = {}

    def answered(self, notice: Notice) -> bool:
        """Take an answer; return whether it was one to this."""
        if notice.type not in ("ignored", "not-ignored", "heeded"):
            return False
        with self._lock:
            if notice.type == "heeded" or not self._sent:
                return True
            request = self._sent.pop(0)
            request.waits = False
            if notice.type == "ignored":
                request.tid = notice.tid
                if self._requests.get(request.thread) is not request or request.thread.ended:
                    self._heed(request)
            else:
                self._refused(request)
        return True

    def tick(self) -> float:
        """Search again for threads that were not found; return in how many seconds to come back."""
        _registry.sweep()
        with self._lock:
            if not self._pids:
                return float("inf")
            now = time.monotonic()
            if now >= self._others_due:
                self._others_due = now + OTHERS_SECONDS
                if self._find_others():
                    self._update()
            left = self._others_due - now
            for request in self._requests.values():
                if request.tid is None and not request.waits and request.due:
                    left = min(left, max(0.0, request.due - time.monotonic()))
            if left == 0.0:
                self._update()
                return FIRST_PAUSE
            return left

    @property
    def tids(self) -> frozenset[int]:
        """Return the numbers of those that the probe ignores now."""
        with self._lock:
            return frozenset(
                request.tid for request in self._requests.values() if request.tid is not None
            )

    def _refused(self, request: _Request) -> None:
        request.tries += 1
        if request.tries < MAX_TRIES:
            pause = min(FIRST_PAUSE * 2**request.tries, LONGEST_PAUSE)
            request.due = time.monotonic() + pause
            return
        request.due = 0.0
        if request.thread.tid is None:
            request.thread.ask()

    def _find_others(self) -> bool:
        """Return whether other processes have other connections than before."""
        own = {(thread.pid, thread.inode) for thread in _registry.all()}
        found = {one for one in claims() if one[0] in self._pids and one not in own}
        gone = [one for one in self._others if one not in found]
        for one in gone:
            self._others.pop(one).ended = True
        new = [one for one in found if one not in self._others]
        for pid, inode in new:
            self._others[pid, inode] = OwnThread(pid, inode)
        return bool(gone or new)

    def _update(self) -> None:
        with self._lock:
            now = time.monotonic()
            for request in list(self._requests.values()):
                if request.thread.ended:
                    del self._requests[request.thread]
                    if request.tid is not None:
                        self._heed(request)
            for thread in (*_registry.all(), *self._others.values()):
                self._ask_for(thread, now)

    def _ask_for(self, thread: OwnThread, now: float) -> None:
        words = thread.words
        if self._pids and words is None and not thread.ended:
            thread.ask()
        pid = next((pid for pid in self._pids if thread.is_of(pid)), None)
        if words is None or pid is None:
            return
        request = self._requests.get(thread)
        if request is None or (
            request.words != words and not request.waits and request.tid is None
        ):
            request = self._requests[thread] = _Request(thread, pid, words, due=now)
        if request.tid is None and not request.waits and request.due and request.due <= now:
            request.waits = True
            self._sent.append(request)
            self._say(f"ignore {pid} {words}")

    def _heed(self, request: _Request) -> None:
        self._say(f"heed {request.pid} {request.tid}")
