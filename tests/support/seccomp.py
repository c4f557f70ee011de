# SPDX-License-Identifier: Apache-2.0
"""Run a program as runtimes do by default: with the system calls refused that their seccomp profile
(RuntimeDefault of Kubernetes) allows nobody without CAP_SYS_ADMIN or similar.

    python -m tests.support.seccomp [--root DIR] [--refuse CALL,...] PROGRAM [ARGUMENT...]

It needs no_new_privs or CAP_SYS_ADMIN, and libseccomp, which systemd brings. ``--root``: in this
root folder.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import os
from collections.abc import Sequence

__all__ = ["REFUSED", "seccomp_missing"]

REFUSED = (
    *("acct", "add_key", "chroot", "clock_settime", "delete_module", "fanotify_init"),
    *("finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "get_mempolicy", "init_module"),
    *("io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl"),
    *("kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mbind", "mount"),
    *("mount_setattr", "move_mount", "move_pages", "nfsservctl", "open_by_handle_at", "open_tree"),
    *("pivot_root", "quotactl", "quotactl_fd", "reboot", "request_key", "set_mempolicy"),
    *("setdomainname", "sethostname", "setns", "settimeofday", "swapoff", "swapon", "syslog"),
    *("umount", "umount2", "unshare", "userfaultfd", "vhangup"),
)
_LIBRARY = "libseccomp.so.2"
_ALLOW = 0x7FFF0000  # include/uapi/linux/seccomp.h
_ERRNO = 0x00050000


def seccomp_missing() -> str | None:
    """Return why it cannot be used here, or None."""
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        return str(error)
    return None


def _refuse_calls(library: ctypes.CDLL, names: Sequence[str]) -> None:
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_ALLOW)))
    for name, code in (*((one, errno.EPERM) for one in names), ("clone3", errno.ENOSYS)):
        number = library.seccomp_syscall_resolve_name(name.encode())
        action = ctypes.c_uint32(_ERRNO | code)
        # A call that this architecture has not is one that nobody can make.
        if number >= 0 and library.seccomp_rule_add_exact(context, action, number, 0):
            raise OSError(f"seccomp: no rule for {name}")
    if library.seccomp_load(context):
        raise OSError("seccomp: the filter was not taken: is no_new_privs set?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", metavar="DIR")
    parser.add_argument("--refuse", default="", metavar="CALL,...")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    library = ctypes.CDLL(_LIBRARY)
    if arguments.root:
        os.chroot(arguments.root)
        os.chdir("/")
    _refuse_calls(library, (*REFUSED, *filter(None, arguments.refuse.split(","))))
    os.execvp(arguments.program[0], arguments.program)


if __name__ == "__main__":
    main()
