# SPDX-License-Identifier: Apache-2.0
"""Captures made by hand for the tests."""

from __future__ import annotations

from stallscope.model.capture import (
    Capture,
    Frame,
    Label,
    Lock,
    LockKind,
    Module,
    Note,
    Process,
    Release,
    Syscall,
    Thread,
    Trigger,
)

__all__ = ["convoy", "stack"]


def stack(*names: str, module: Module | None = None) -> tuple[Frame, ...]:
    """Return frames with these names, innermost first."""
    return tuple(
        Frame(symbol=name, module=module, pc=0x401000 + i, offset=0x1000 + i, symbol_offset=i)
        for i, name in enumerate(names)
    )


def _threads(module: Module, waiters: int) -> tuple[Thread, ...]:
    """Return a holder, those who wait for it, and one that runs."""
    waiting = stack(
        "__lll_lock_wait", "pthread_mutex_lock", "open_table(THD*, TABLE_LIST*)", module=module
    )
    holding = stack("pread64", "dict_update_statistics", "open_table(THD*)", module=module)
    kernel = (Frame(symbol="futex_wait_queue", kernel=True, pc=0xFFFFFFFF81000010, process=0),)
    return (
        Thread(tid=100, frames=holding, name="mysqld", state="D", label=Label.VERIFIED, passes=1),
        *(
            Thread(
                tid=101 + i,
                ns_tid=11 + i,
                frames=waiting,
                kernel_frames=kernel,
                name="mysqld",
                state="S",
                label=Label.VERIFIED,
                passes=1,
                switches=7,
                syscall=Syscall(nr=202, name="futex", args=(0xD000, 128, 2, 0, 0, 0)),
                lock=0,
            )
            for i in range(waiters)
        ),
        Thread(tid=900, frames=(), label=Label.RUNNING, on_cpu=True, state="R", unwind="not-tried"),
    )


def convoy(waiters: int = 3) -> Capture:
    """Return a capture with every record and field of the format: threads wait for one mutex."""
    module = Module(
        process=0,
        path="/usr/sbin/mysqld",
        start=0x400000,
        end=0x900000,
        bias=0,
        build_id="0123456789abcdef",
        symbols=".symtab",
        cfi=".eh_frame",
    )
    lock = Lock(
        process=0,
        address=0xD000,
        futex=0xD000,
        kind=LockKind.MUTEX,
        owner_tid=100,
        waiters=waiters,
        symbol="LOCK_open",
    )
    return Capture(
        backend="bpf",
        backend_reason="works here and stops no thread",
        processes=(
            Process(
                pid=100,
                ppid=1,
                start_time=12345,
                comm="mysqld",
                exe="/usr/sbin/mysqld",
                cmdline=("mysqld", "--datadir=/d"),
                strings={"server_version": "5.5.9"},
            ),
        ),
        threads=_threads(module, waiters),
        locks=(lock,),
        releases=(
            Release(
                process=0,
                tid=102,
                frames=stack("pthread_mutex_unlock", "open_table(THD*)", module=module),
                lock=0,
                name="mysqld",
                label=Label.VERIFIED,
                ago_ns=12_000_000,
                waited_ns=250_000_000,
                count=3,
            ),
        ),
        modules=(module,),
        notes=(Note("threads-lost", "1 thread ended meanwhile"),),
        time_ns=1_763_714_796_123_456_789,
        host={"name": "db1", "kernel": "6.18.0", "arch": "x86_64", "cpus": 2},
        tool={"name": "stallscope-probe", "version": "0.1.0"},
        snapshot_ns=4_200_000,
        elapsed_ns=31_000_000,
        phases={"attach_ns": 1, "snapshot_ns": 2},
        trigger=Trigger(
            reason="threshold",
            kind="mutex",
            name="LOCK_open",
            address=0xD000,
            pid=100,
            tid=101,
            length_ms=201.25,
            threshold_ms=200.0,
            waiters=waiters,
            delay_ms=1.25,
            copied_ms=5.5,
            finished_ms=33.0,
            suppressed=2,
        ),
    )
