# SPDX-License-Identifier: Apache-2.0
"""Run a program as on a kernel before 6.5: cachestat(2) is not there.

    python -m tests.support.nocachestat PROGRAM [ARGUMENT...]

It needs root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

__all__: list[str] = []

# include/uapi/linux/bpf_common.h, seccomp.h, prctl.h
_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_CACHESTAT = 451


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _refuse() -> None:
    steps = (
        (_LOAD_WORD, 0, 0, 0),  # the number of the call
        (_JUMP_EQUAL, 0, 1, _CACHESTAT),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    )
    program = _Program(len(steps), b"".join(struct.pack("HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


if __name__ == "__main__":
    _refuse()
    os.execvp(sys.argv[1], sys.argv[1:])
