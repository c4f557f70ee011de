# SPDX-License-Identifier: Apache-2.0
"""Run a program that is killed by any system call which writes to another process, and see who
opens the memory of a process for writing.

    python -m tests.support.nowrites PROGRAM [ARGUMENT...]

It needs root.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path
from typing import Self

__all__ = ["MemoryWatch"]

# include/uapi/linux/bpf_common.h, seccomp.h, prctl.h
_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_REQUEST = 16  # offset of the first argument, struct seccomp_data

# arch/x86/entry/syscalls/syscall_64.tbl
_PTRACE, _PROCESS_VM_WRITEV, _PIDFD_GETFD = 101, 311, 438
# include/uapi/linux/ptrace.h, asm/ptrace-abi.h: POKETEXT, POKEDATA, POKEUSR, SETREGS, SETFPREGS,
# SETFPXREGS, SETSIGINFO, SETREGSET, SETSIGMASK.
_WRITING = (4, 5, 6, 13, 15, 19, 0x4203, 0x4205, 0x420B)

# include/uapi/linux/inotify.h
_CLOSED_WRITABLE, _CLOSED = 0x8, 0x10
_EVENT = struct.Struct("iIII")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _forbid() -> None:
    calls = (_PROCESS_VM_WRITEV, _PIDFD_GETFD)
    kill = len(calls) + 1 + 1 + len(_WRITING) + 1  # index of its step, from the first jump on
    steps = [(_LOAD_WORD, 0, 0, 0)]  # the number of the call
    steps += [(_JUMP_EQUAL, kill - at - 1, 0, call) for at, call in enumerate(calls)]
    steps += [(_JUMP_EQUAL, 0, len(_WRITING) + 1, _PTRACE), (_LOAD_WORD, 0, 0, _REQUEST)]
    at = len(calls) + 2
    steps += [(_JUMP_EQUAL, kill - at - i - 1, 0, one) for i, one in enumerate(_WRITING)]
    steps += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _KILL)]
    program = _Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


class MemoryWatch:
    """Counts who opens the memory of a process, by /proc/PID/mem or that of a thread."""

    def __init__(self, pid: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        folders = [Path(f"/proc/{pid}"), *Path(f"/proc/{pid}/task").iterdir()]
        for folder in folders:
            path = os.fsencode(folder / "mem")
            if libc.inotify_add_watch(self._fd, path, _CLOSED_WRITABLE | _CLOSED) < 0:
                raise OSError(ctypes.get_errno(), f"{folder}/mem")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def opened(self) -> tuple[int, int]:
        """Return how often it was opened since the last time: for reading alone, and for
        writing."""
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            data = b""
        masks = [_EVENT.unpack_from(data, at)[1] for at in range(0, len(data), _EVENT.size)]
        writable = sum(bool(mask & _CLOSED_WRITABLE) for mask in masks)
        return len(masks) - writable, writable


if __name__ == "__main__":
    _forbid()
    os.execvp(sys.argv[1], sys.argv[1:])
