# SPDX-License-Identifier: Apache-2.0
"""The kinds of waits, their groups, and the causes of loss: one table for Python, C and BPF.

``scripts/lib/waittables.py`` generates ``ebpf/wait_tables.h`` from it in the build, with any
Python: this file imports the standard library only.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "CAUSES",
    "FILE_KINDS",
    "GROUPS",
    "IDLE_KINDS",
    "KINDS",
    "LOCK_KINDS",
    "LOST",
    "SHOWN_KINDS",
    "SOURCE_LOST",
    "TABLE",
    "THRESHOLDS",
    "Call",
    "Cause",
    "Kind",
    "kinds_of",
    "thresholds_of",
]


class Call(NamedTuple):
    """A system call that waits, or ends waits."""

    name: str
    how: str
    """Where its arguments are: an enumerator of enum stall_call_how (``ebpf/waits_calls.h``)."""
    number: int | None = None
    """Its number on x86-64, for systems whose headers are older than the call."""


class Kind(NamedTuple):
    """What threads wait for."""

    name: str
    group: str
    """``lock``: a wait on a futex; stacks show which kind it is."""
    calls: tuple[Call, ...] = ()
    idle: bool = False
    """Waits for work or for the end of a thread: they are counted, and never a stall."""
    named: bool = False
    """Each waiter has its own futex word; uprobes in the server show what they all wait for."""
    bytes: bool = False
    """Its calls return a number of bytes."""
    shown: bool = False
    """Lines contain it also where there was no such wait."""


_FUTEX = (
    Call("futex", "FUTEX"),
    Call("futex_wait", "FUTEX_WAIT", 455),
    Call("futex_waitv", "FUTEX_WAITV", 449),
    Call("futex_wake", "FUTEX_WAKE", 454),
    Call("futex_requeue", "FUTEX_REQUEUE", 456),
    Call("restart_syscall", "RESTART"),
)
_READ = (
    Call("read", "TRANSFER"),
    Call("pread64", "TRANSFER_AT"),
    Call("readv", "VECTOR"),
    Call("preadv", "VECTOR_AT"),
    Call("preadv2", "VECTOR_AT"),
)
_WRITE = (
    Call("write", "TRANSFER"),
    Call("pwrite64", "TRANSFER_AT"),
    Call("writev", "VECTOR"),
    Call("pwritev", "VECTOR_AT"),
    Call("pwritev2", "VECTOR_AT"),
)

# The order is that of the numbers in a ring: new locks come behind the locks, new calls at the end.
TABLE = (
    Kind("mutex", "lock", shown=True),
    Kind("rwlock", "lock"),
    Kind("cond", "lock", idle=True),
    Kind("sem", "lock"),
    Kind("join", "lock", idle=True),
    # A futex of the program itself, or one whose role is not known yet.
    Kind("futex", "lock", _FUTEX),
    Kind("row-lock", "lock", named=True),
    Kind("metadata-lock", "lock", named=True),
    # Until another thread has written or synced a log, or a replica has acknowledged it.
    Kind("commit", "lock"),
    Kind("fsync", "sync", (Call("fsync", "FILE"),), shown=True),
    Kind("fdatasync", "sync", (Call("fdatasync", "FILE"),)),
    Kind("sync_file_range", "sync", (Call("sync_file_range", "RANGE"),)),
    Kind("msync", "sync", (Call("msync", "MAPPING"),)),
    # sync(2) has id 0.
    Kind("syncfs", "sync", (Call("syncfs", "FILE"), Call("sync", "ALL"))),
    Kind("fallocate", "space", (Call("fallocate", "FALLOCATE"),), shown=True),
    Kind("ftruncate", "space", (Call("ftruncate", "TRUNCATE"), Call("truncate", "PATH"))),
    # A positioned write that ends beyond the end of its file: one of the calls of write.
    Kind("extend", "space", bytes=True),
    Kind("unlink", "space", (Call("unlink", "PATH"), Call("unlinkat", "PATH_AT"))),
    Kind(
        "rename",
        "space",
        (Call("rename", "PATH"), Call("renameat", "PATH_AT"), Call("renameat2", "PATH_AT")),
    ),
    Kind("read", "io", _READ, bytes=True),
    Kind("write", "io", _WRITE, bytes=True),
)


class Cause(NamedTuple):
    """Why data is missing from a line."""

    name: str
    lost: str
    """The unit of its count, for people."""


# The order is that of the numbers in a ring.
SOURCE_LOST = (
    Cause(
        "ring-full",
        "records that did not fit into the ring buffer: stacks and events are missing,"
        " counts are correct",
    ),
    Cause("slots-full", "threads that could not be watched"),
    Cause("keys-full", "waits that are counted only under their kind"),
    Cause("files-full", "files without a name"),
    Cause("stack-short", "stacks longer than their copies"),
    Cause("stack-read", "stacks that could not be read"),
    Cause("path-read", "paths or files that could not be read"),
    Cause("missed", "BPF programs skipped because they were already running"),
    Cause("marks-full", "locks whose wakers were not recorded"),
    Cause(
        "rate", "records above the rate limit: stacks and events are missing, counts are correct"
    ),
    Cause("async-full", "asynchronous calls that could not be tracked"),
)
"""In BPF, in the server or while polling."""
_WATCH_LOST = (
    Cause("not-unwound", "stacks not unwound: too many at once"),
    Cause("unwinding-failed", "stacks that failed to unwind"),
    Cause("stacks-full", "stacks beyond the limit of the stack table"),
    Cause("stacks-of-key-full", "stacks beyond the limit of one lock or file"),
    Cause("table-full", "locks and files beyond the limit of the table"),
    Cause("events-full", "events that did not fit into one line"),
)
"""In stallscope-probe, behind all sources."""
CAUSES = SOURCE_LOST + _WATCH_LOST

KINDS = tuple(kind.name for kind in TABLE)
LOCK_KINDS = tuple(kind.name for kind in TABLE if kind.group == "lock")
FILE_KINDS = tuple(kind.name for kind in TABLE if kind.group != "lock")
IDLE_KINDS = tuple(kind.name for kind in TABLE if kind.idle)
SHOWN_KINDS = tuple(kind.name for kind in TABLE if kind.shown)
GROUPS = (*dict.fromkeys(kind.group for kind in TABLE), "all")
"""Groups of kinds on command lines."""
THRESHOLDS = ("lock", *FILE_KINDS)
"""Kinds with their own threshold, in the order of enum stall_wait_kind."""
LOST = {cause.name: cause.lost for cause in CAUSES}


def kinds_of(name: str) -> tuple[str, ...]:
    """Return the kinds of a kind or a group; no group has idle kinds."""
    if name in KINDS:
        return (name,)
    return tuple(kind.name for kind in TABLE if not kind.idle and name in (kind.group, "all"))


def thresholds_of(name: str) -> tuple[str, ...]:
    """Return which of THRESHOLDS apply to a kind or a group."""
    kinds = kinds_of(name)
    return tuple(
        threshold
        for threshold in THRESHOLDS
        if threshold in kinds or (threshold == "lock" and not set(kinds).isdisjoint(LOCK_KINDS))
    )
