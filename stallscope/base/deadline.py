# SPDX-License-Identifier: Apache-2.0
"""A deadline for a whole exchange over the network: names, connecting, TLS, and all that is sent
and read. A timeout of a socket is for one operation: a peer that sends a byte at intervals is never
late.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

__all__ = ["Deadline", "connect", "name_of_host", "watch"]

T = TypeVar("T")

_CONNECT = 10.0
"""Seconds for one address of a name: what is there answers sooner."""
_OWN_NAME = 1.0
"""Seconds for the name of this host, which is not worth a notification."""
MOST_HANGING = 8
_hanging: set[threading.Thread] = set()
"""Look-ups of names that were left behind: they cannot be ended."""
_lock = threading.Lock()
_current = threading.local()


class Deadline:
    """``with Deadline(seconds):`` - the sockets that this thread makes by ``connect`` in the block
    are shut down when the time is over, which ends what is done with them, and the block raises a
    TimeoutError.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._late = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Deadline:
        """Begin. Deadlines are not nested."""
        _current.deadline = self
        # A host without room for a thread: timeouts of the sockets are left.
        with contextlib.suppress(RuntimeError):
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End. Raises: TimeoutError: it was late, whatever the block made of that."""
        self._timer.cancel()
        _current.deadline = None
        with self._lock:
            for one in self._sockets:
                one.close()
            self._sockets = []
        # A timeout of a socket can be a moment before the timer.
        late = self._late or (error is not None and time.monotonic() >= self._ends)
        if late and (error is None or isinstance(error, Exception)):
            raise self._error() from None

    def left(self) -> float:
        """Return the seconds that are left. Raises: TimeoutError: none."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise self._error()
        return left

    def watch(self, connected: socket.socket) -> None:
        """Shut this socket down when the time is over."""
        # TLS takes the descriptor from the socket that it wraps: a copy stays.
        copy = socket.socket(fileno=socket.dup(connected.fileno()))
        with self._lock:
            self._sockets.append(copy)
            if self._late:
                _shut_down(copy)

    def _end(self) -> None:
        with self._lock:
            self._late = True
            for one in self._sockets:
                _shut_down(one)

    def _error(self) -> TimeoutError:
        return TimeoutError(f"timed out after {self._seconds:g} s")


def connect(host: str, port: int) -> socket.socket:
    """Return a connection within the deadline of this thread. Raises: OSError."""
    deadline = _of_thread()
    host, kind = host.strip("[]"), socket.SOCK_STREAM
    try:
        found = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)
    except OSError:  # it is not an address
        found = _name_service(lambda: socket.getaddrinfo(host, port, type=kind), deadline.left())
    failed: OSError = OSError(f"{host} has no address")
    for family, _, protocol, _, address in found:
        made = None
        try:
            made = socket.socket(family, kind, protocol)
            made.settimeout(min(deadline.left(), _CONNECT))
            made.connect(address)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.settimeout(deadline.left())
            deadline.watch(made)
            return made
        except OSError as error:
            failed = error
            if made is not None:
                made.close()
    raise failed


def watch(connected: socket.socket) -> None:
    """Shut a socket of an earlier exchange down at the end of this thread's deadline."""
    _of_thread().watch(connected)


def name_of_host() -> str:
    """Return the full name of this host; the short one where name service does not answer soon."""
    try:
        return _name_service(socket.getfqdn, min(_OWN_NAME, _of_thread().left()))
    except OSError:
        return socket.gethostname()


def _of_thread() -> Deadline:
    found: Deadline | None = getattr(_current, "deadline", None)
    assert found is not None, "connections are made within a Deadline"
    return found


def _name_service(ask: Callable[[], T], seconds: float) -> T:
    """Return what name service says, in time. Raises: OSError."""
    answers: queue.SimpleQueue[T | Exception] = queue.SimpleQueue()
    with _lock:
        for ended in [thread for thread in _hanging if not thread.is_alive()]:
            _hanging.remove(ended)
        if len(_hanging) >= MOST_HANGING:
            raise TimeoutError(f"{MOST_HANGING} look-ups of names hang")

    def work() -> None:
        try:
            answers.put(ask())
        except Exception as error:
            answers.put(error)

    thread = threading.Thread(target=work, name="name service", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no room for a thread
        work()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        with _lock:
            _hanging.add(thread)
        raise TimeoutError("name service gives no answer") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _shut_down(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
