# SPDX-License-Identifier: Apache-2.0
"""Captures made up for tests of the analyzers: stacks as comma-separated names, innermost first."""

from __future__ import annotations

from collections.abc import Sequence

from stallscope.model import Capture, Frame, Lock, LockKind, Process, Syscall, Thread

__all__ = ["FUTEX", "IDLE_SESSION", "Scenery", "frames"]

FUTEX = "__lll_lock_wait, pthread_mutex_lock"
IDLE_SESSION = "poll, vio_io_wait, vio_read, my_net_read, do_command, do_handle_one_connection"

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


class Scenery:
    """Builds one capture thread by thread."""

    def __init__(self, *, cpus: int | None = None, exe: str | None = None) -> None:
        self._threads: list[Thread] = []
        self._locks: list[Lock] = []
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

    def capture(self) -> Capture:
        return Capture(
            backend="bpf",
            processes=(Process(pid=1, exe=self._exe),),
            threads=tuple(self._threads),
            locks=tuple(self._locks),
            host=self._host,
        )
