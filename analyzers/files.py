# SPDX-License-Identifier: Apache-2.0
"""The file that holds a thread up: in words, and whether its file system is frozen."""

from __future__ import annotations

from stallscope.base.text import clean
from stallscope.model.capture import Thread

__all__ = ["is_frozen", "text"]

ENOUGH = 2
"""Names at the end of a path that say which file it is."""
INNERMOST = 4
"""Kernel frames, one of which shows that a thread waits until a file system is thawed."""
# Linux' sb_start_write(), include/linux/fs.h: who changes a file takes a per-CPU semaphore of its
# file system, which who freezes that keeps. __sb_start_write is a function of its own before 5.10
# (fs/super.c). Other per-CPU semaphores (of control groups, of fork) are not taken in these calls.
_WAITS = frozenset(("percpu_rwsem_wait", "__percpu_down_read", "__sb_start_write"))
_CALLS = frozenset(
    (
        *("write", "writev", "pwrite64", "pwritev", "pwritev2", "copy_file_range", "sendfile"),
        *("fallocate", "ftruncate", "truncate", "fsync", "fdatasync", "io_submit"),
        *("open", "openat", "openat2", "creat", "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat"),
        *("rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat"),
        *("fchmod", "fchmodat", "fchown", "fchownat", "utimensat"),
    )
)


def text(thread: Thread, *, brief: bool = False) -> str | None:
    """Return in which call of which file a thread is blocked, and where the file is.

    ``brief``: the end of the path is enough.
    """
    file = thread.file
    if file is None:
        return None
    call = thread.syscall.name if thread.syscall is not None else None
    parts = file.path.split("/")
    path = "/".join(["…", *parts[-ENOUGH:]]) if brief and len(parts) > ENOUGH + 1 else file.path
    found = f"{call} of {clean(path)}" if call else clean(path)
    if file.device is None:
        return found
    where = [part for part in (file.type, file.mount and f"mounted at {file.mount}") if part]
    return f"{found} on {clean(file.device)}" + (f" ({clean(', '.join(where))})" if where else "")


def is_frozen(thread: Thread) -> bool:
    """Return whether a thread waits until the file system that it changes is thawed."""
    if thread.state != "D" or thread.syscall is None or thread.syscall.name not in _CALLS:
        return False
    innermost = {str(frame) for frame in thread.kernel_frames[:INNERMOST]}
    return not _WAITS.isdisjoint(innermost)
