# SPDX-License-Identifier: Apache-2.0
"""Listen, and answer each connection in a thread of its own: at most some at a time."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from stallscope.agent.http.address import Address
from stallscope.agent.http.handler import handle
from stallscope.agent.http.pages import Pages
from stallscope.base.errors import StallscopeError

__all__ = ["MAX_CONNECTIONS", "listening"]

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 8
"""Of more, those that come are closed unread: a scraper tries again."""
BACKLOG = 16
SOCKET_MODE = 0o660
_PAUSE = 0.2
"""After an accept(2) that fails, as it does where there are no more file descriptors."""


class _Server:
    def __init__(self, listener: socket.socket, pages: Pages, *, checks_host: bool) -> None:
        self._listener = listener
        self._pages = pages
        self._checks_host = checks_host
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        # close(2) would leave the thread in its accept(2); shutdown(2) ends it.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(1.0)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._closing.wait(_PAUSE):
                    _log.warning("cannot accept a connection: %s", error.strerror)
                continue
            if not self._slots.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(
                    target=self._answer, args=(connection,), name="http-answer", daemon=True
                ).start()
            except RuntimeError as error:  # no more threads
                _log.warning("cannot answer a connection: %s", error)
                connection.close()
                self._slots.release()

    def _answer(self, connection: socket.socket) -> None:
        try:
            handle(connection, self._pages, checks_host=self._checks_host)
        except Exception as error:
            _log.error("HTTP: internal error: %s: %s", type(error).__name__, error)
        finally:
            self._slots.release()


@contextmanager
def listening(address: Address, pages: Pages) -> Iterator[Address]:
    """Serve these pages until the block ends; yield the address, with the port that was taken.

    Raises: StallscopeError where it cannot listen there.
    """
    try:
        listener = _unix(Path(address.path)) if address.path is not None else _tcp(address)
    except OSError as error:
        raise StallscopeError(
            f"cannot listen on {address}: {error.strerror}: give another --listen"
        ) from error
    if address.host is not None:
        address = msgspec.structs.replace(address, port=listener.getsockname()[1])
    server = _Server(listener, pages, checks_host=address.is_local and address.host is not None)
    scheme = "" if address.host is None else "http://"
    if address.is_local:
        _log.info("listening on %s%s", scheme, address)
    else:
        _log.warning("listening on %s%s, without authentication", scheme, address)
    try:
        yield address
    finally:
        server.close()
        if address.path is not None:
            with contextlib.suppress(OSError):
                os.unlink(address.path)


def _tcp(address: Address) -> socket.socket:
    assert address.host is not None
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # After a restart: connections of the agent before may still be in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _unix(path: Path) -> socket.socket:
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(SOCKET_MODE)  # nobody can connect before listen(2)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a socket that an agent left behind, on which nobody listens."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return  # bind(2) says that the name is taken
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.setblocking(False)
            if client.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()
