# SPDX-License-Identifier: Apache-2.0
"""One agent a server: who watches it holds the server's lock in the store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from stallscope.base.errors import StallscopeError
from stallscope.collectors.processes import Server
from stallscope.collectors.serverkey import server_key
from stallscope.store.serverstate import AGENT_LOCK, CRON_LOCK, ServerBusy, ServerState

__all__ = ["only_agent", "only_pass"]

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def only_agent(dest: Path, server: Server) -> Iterator[ServerState | None]:
    """Be the only agent of a server and a store for the body of ``with``.

    None: the store cannot be locked, because its disk is full or read-only for one. This is logged,
    since an agent that does not run is worse than two. Raises: ServerBusy, in one line.
    """
    with _locked(dest, server, (AGENT_LOCK,)) as state:
        yield state


@contextlib.contextmanager
def only_pass(dest: Path, server: Server) -> Iterator[ServerState | None]:
    """Be the only pass of ``stallscope cron``, beside no agent; otherwise the same."""
    with _locked(dest, server, (CRON_LOCK, AGENT_LOCK)) as state:
        yield state


@contextlib.contextmanager
def _locked(dest: Path, server: Server, names: tuple[str, ...]) -> Iterator[ServerState | None]:
    state: ServerState | None = None
    with contextlib.ExitStack() as locks:
        try:
            state = ServerState.open(dest, server_key(server))
            for name in names:
                locks.callback(state.lock(name).release)
        except ServerBusy as busy:
            raise _said(busy, server, name) from None
        except StallscopeError as error:
            _log.warning("%s; another agent may watch the same server", error)
            state = None
        yield state


def _said(busy: ServerBusy, server: Server, name: str) -> ServerBusy:
    by = busy.holder or "another process"
    which = f"{server.name} (pid {server.main.pid})"
    if name == CRON_LOCK:
        return ServerBusy(f"the previous pass for {which} is still running: {by}", busy.holder)
    return ServerBusy(f"{which} is already watched by {by}: {busy}", busy.holder)
