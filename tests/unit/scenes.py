# SPDX-License-Identifier: Apache-2.0
"""Captures that tests of the analyzers make, and what is found in them.

Stacks are comma-separated names, innermost first.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stallscope.analyzers import catalog, engine
from stallscope.analyzers.analysis import Analysis, Blocker, Finding
from stallscope.model.capture import (
    Capture,
    Frame,
    Label,
    Lock,
    LockKind,
    Process,
    Release,
    Syscall,
    Thread,
)

__all__ = [
    "COND",
    "FUTEX",
    "IDLE_SESSION",
    "OPENING",
    "REDO_WAIT",
    "SESSION",
    "Analyze",
    "Scenery",
    "blocker_of",
    "frames",
]

FUTEX = "__lll_lock_wait, pthread_mutex_lock"
COND = "pthread_cond_wait"
SESSION = "mysql_execute_command, mysql_parse, dispatch_command, do_command, handle_one_connection"
IDLE_SESSION = "poll, vio_io_wait, vio_read, my_net_read, do_command, do_handle_one_connection"
OPENING = f"{FUTEX}, inline_mysql_mutex_lock, open_table, open_tables, {SESSION}"
REDO_WAIT = (
    f"{COND}, os_event_wait_low, log_write_up_to, innobase_commit, ha_commit_trans, {SESSION}"
)

_KNOWN: dict[str, Frame] = {}


def frames(stack: str) -> tuple[Frame, ...]:
    """Turn ``a, b, ??`` into frames; ``??`` has no name."""
    out = []
    for name in (part.strip() for part in stack.split(", ")):
        if name == "??":
            out.append(Frame(symbol=None, pc=0x1234))
        else:
            out.append(_KNOWN.setdefault(name, Frame(symbol=name)))
    return tuple(out)


def blocker_of(finding: Finding) -> Blocker:
    """Return the blocker that a finding names."""
    assert finding.blocker is not None
    return finding.blocker


class Scenery:
    """Builds one capture thread by thread."""

    def __init__(self, *, cpus: int | None = None, exe: str | None = None) -> None:
        self._threads: list[Thread] = []
        self._locks: list[Lock] = []
        self._releases: list[Release] = []
        self._host: dict[str, str | int] = {} if cpus is None else {"cpus": cpus}
        self._exe = exe

    def lock(
        self,
        *,
        owner: int | None = None,
        symbol: str | None = None,
        kind: LockKind = LockKind.MUTEX,
        stable: bool = True,
        readers: int | None = None,
    ) -> int:
        """Add a lock and return its index."""
        self._locks.append(
            Lock(
                process=0,
                address=0x1000 + 64 * len(self._locks),
                kind=kind,
                owner_tid=owner,
                symbol=symbol,
                stable=stable,
                readers=readers,
            )
        )
        return len(self._locks) - 1

    def add(
        self,
        stack: str,
        *,
        times: int = 1,
        tid: int | None = None,
        lock: int | None = None,
        state: str = "S",
        on_cpu: bool = False,
        count: int = 1,
        syscall: str | None = None,
    ) -> Sequence[int]:
        """Add threads and return their TIDs."""
        tids = []
        for _ in range(times):
            number = tid if tid is not None else 100 + len(self._threads)
            tids.append(number)
            self._threads.append(
                Thread(
                    tid=number,
                    frames=frames(stack) if stack else (),
                    name="t",
                    state=state,
                    on_cpu=on_cpu,
                    lock=lock,
                    count=count,
                    syscall=Syscall(nr=0, name=syscall) if syscall else None,
                )
            )
        return tids

    def session(self, *tids: int, **said: object) -> None:
        """Let the server say this of the connections of these threads; each has its TID as its
        number."""
        self._threads = [
            msgspec.structs.replace(thread, **{"connection": thread.tid, **said})
            if thread.tid in tids
            else thread
            for thread in self._threads
        ]

    def unseen(self, *, times: int = 1, state: str = "S", tid: int | None = None) -> Sequence[int]:
        """Add threads as the in-process library has them that are in no wait it watches."""
        tids = self.add("", times=times, state=state, tid=tid, on_cpu=state == "R")
        self._threads[-times:] = [
            msgspec.structs.replace(thread, unwind="not-tried", label=Label.RACED)
            for thread in self._threads[-times:]
        ]
        return tids

    def release(
        self, stack: str, tid: int, lock: int | None, *, ago_ms: int = 12, count: int = 1
    ) -> None:
        """Add a lock that was released after 40 ms of waiting."""
        self._releases.append(
            Release(
                process=0,
                tid=tid,
                frames=frames(stack),
                lock=lock,
                ago_ns=ago_ms * 10**6,
                waited_ns=40 * 10**6,
                count=count,
            )
        )

    def capture(self, backend: str = "bpf") -> Capture:
        return Capture(
            backend=backend,
            processes=(Process(pid=1, exe=self._exe),),
            threads=tuple(self._threads),
            locks=tuple(self._locks),
            releases=tuple(self._releases),
            host=self._host,
        )


class Analyze:
    """Analyses captures by one catalog."""

    def __init__(self, signatures: catalog.Catalog) -> None:
        self._signatures = signatures

    def __call__(self, scene: Scenery | Capture, **options: object) -> Analysis:
        capture = scene.capture() if isinstance(scene, Scenery) else scene
        chosen = msgspec.convert(options, engine.Options) if options else None
        return engine.analyze(capture, self._signatures, options=chosen)
