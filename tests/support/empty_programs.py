# SPDX-License-Identifier: Apache-2.0
"""BPF programs that do nothing, on raw sys_enter and sys_exit: what the two places cost alone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["TRACEPOINTS", "empty_programs"]

TRACEPOINTS = ("sys_enter", "sys_exit")
SYS_BPF = 321
"""Of x86-64."""
PROG_LOAD = 5
RAW_TRACEPOINT_OPEN = 17
TYPE_RAW_TRACEPOINT = 17
INSTRUCTIONS = struct.pack("=BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
"""r0 = 0; exit."""
LICENSE = b"GPL\0"
LOAD = struct.Struct("=IIQQ")
"""The start of union bpf_attr of BPF_PROG_LOAD: type, number of instructions, they, the license."""
OPEN = struct.Struct("=QII")
"""That of BPF_RAW_TRACEPOINT_OPEN: name, program, padding."""


def bpf(command: int, attr: bytes, what: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.syscall(SYS_BPF, command, ctypes.c_char_p(attr), len(attr))
    if number < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return int(number)


@contextmanager
def empty_programs() -> Iterator[None]:
    """Have an empty program attached to both, as every process of the host pays it. Raises: OSError
    where it is not allowed.
    """
    with ExitStack() as stack:
        for name in TRACEPOINTS:
            code = ctypes.create_string_buffer(INSTRUCTIONS, len(INSTRUCTIONS))
            text = ctypes.create_string_buffer(LICENSE, len(LICENSE))
            where = ctypes.create_string_buffer(name.encode() + b"\0")
            load = LOAD.pack(
                TYPE_RAW_TRACEPOINT,
                len(INSTRUCTIONS) // 8,
                ctypes.addressof(code),
                ctypes.addressof(text),
            )
            program = bpf(PROG_LOAD, load, f"an empty program for {name}")
            stack.callback(close, program)
            link = bpf(
                RAW_TRACEPOINT_OPEN,
                OPEN.pack(ctypes.addressof(where), program, 0),
                f"an empty program at {name}",
            )
            stack.callback(close, link)
        yield


def close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
