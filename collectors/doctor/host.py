# SPDX-License-Identifier: Apache-2.0
"""The host: Python, tools, and the kernel's settings that decide what may be seen."""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import sys
from collections.abc import Iterator

from stallscope.base import extras
from stallscope.base.errors import StallscopeError
from stallscope.collectors import probe
from stallscope.collectors.doctor.checks import Check, Place

__all__ = ["container", "lockdown", "privileges", "python", "tools", "yama"]

# include/uapi/linux/capability.h
_CAPABILITIES = {
    "CAP_SYS_PTRACE": 19,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}
_LOST = {
    "CAP_SYS_PTRACE": "no stacks of other users' processes",
    "CAP_PERFMON": "no wait programs (waits are sampled), no BPF backend",
    "CAP_BPF": "no wait programs (waits are sampled), no BPF backend",
    "CAP_CHECKPOINT_RESTORE": "no symbols of replaced or deleted programs",
}
_LOST_WITHOUT_EXTRA = {
    "top": "stallscope top",
    "report": "stallscope report",
    "parquet": "stallscope export --to parquet",
    "apprise": "destinations of the kind apprise",
    "ed25519": "SQL by an account of MariaDB with the plugin ed25519",
    "postgres": "SQL with PostgreSQL",
}
# include/uapi/linux/capability.h: struct vfs_cap_data, of versions 2 and 3.
_XATTR = "security.capability"
_CAP_DATA = struct.Struct("<IIIII")
_CAP_EFFECTIVE = 1
# include/linux/proc_ns.h: the inodes of the namespaces that the kernel begins with.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_FIRST_USER_NAMESPACE = "user:[4026531837]"
_YAMA = {
    "0": "a process may trace other processes of its user",
    "1": "without CAP_SYS_PTRACE a process may trace only its children",
    "2": "CAP_SYS_PTRACE is needed",
    "3": "no process may trace, not even as root",
}


def python() -> Iterator[Check]:
    """Check Python and its packages."""
    yield Check("python", "ok", f"Python {'.'.join(map(str, sys.version_info[:3]))}")
    yield _extras()
    if importlib.util.find_spec("pymysql") is None:
        lost = "no SQL: no connections, statements, or owners of row locks"
        yield Check("pymysql", "degraded", lost, "python3 -m pip install pymysql")
    if sys.version_info < (3, 14) and importlib.util.find_spec("backports.zstd") is None:
        fix = "python3 -m pip install backports.zstd"
        yield Check("zstd", "missing", "no compressed captures", fix)


def _extras() -> Check:
    """Return which extras are installed, and what does not work without the others."""
    missing = [extra for extra in extras.EXTRAS if not extras.is_installed(extra)]
    if not missing:
        there = ", ".join(f"{module} ({extra})" for extra, module in extras.EXTRAS.items())
        return Check("packages", "ok", there)
    lost = "; ".join(
        f"without {extras.EXTRAS[extra]} no {_LOST_WITHOUT_EXTRA[extra]}" for extra in missing
    )
    return Check("packages", "degraded", lost, extras.how_to_install(*missing))


def tools() -> Iterator[Check]:
    """Check for optional programs."""
    for program, lost, fix in (
        ("gdb", "no gdb backend (the last fallback)", "apt-get install gdb"),
        ("debuginfod-find", "no symbolize --debuginfod", "apt-get install debuginfod"),
    ):
        path = shutil.which(program)
        if path is None:
            yield Check(program, "degraded", lost, fix)
        else:
            yield Check(program, "ok", path)


def privileges(place: Place) -> Iterator[Check]:
    """Report the user, and the capabilities of this process and of the probe's file."""
    who = "root" if os.geteuid() == 0 else f"uid {os.geteuid()}"
    yield Check("user", "ok", who)
    own = _own_capabilities(place)
    if own is None:
        yield Check("privileges", "degraded", "/proc/self/status does not show the capabilities")
        return
    if not _without(own):
        yield Check("privileges", "ok", ", ".join(_CAPABILITIES))
        return
    file = _file_capabilities()
    missing = _without(own | file)
    if file and _has_no_new_privileges(place):
        what = "the probe's file has capabilities, but no_new_privs disables them"
        fix = "remove the unit's options that set it (NoNewPrivileges=, SystemCallFilter=, ...)"
        yield Check("privileges", "degraded", what, fix)
    elif not missing:
        yield Check("privileges", "ok", f"from the probe's file: {', '.join(_CAPABILITIES)}")
    else:
        lost = "; ".join(dict.fromkeys(_LOST[name] for name in missing))
        fix = "run it with sudo, or: setcap " + (
            "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_checkpoint_restore+ep stallscope-probe"
        )
        yield Check("privileges", "degraded", f"without {', '.join(missing)}: {lost}", fix)


def _without(held: int) -> list[str]:
    return [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]


def _status(place: Place, name: str) -> str | None:
    for line in (place.text("/proc/self/status") or "").splitlines():
        key, _, value = line.partition(":")
        if key == name and value.strip():
            return value.strip()
    return None


def _own_capabilities(place: Place) -> int | None:
    try:
        return int(_status(place, "CapEff") or "", 16)
    except ValueError:
        return None


def _has_no_new_privileges(place: Place) -> bool:
    return _status(place, "NoNewPrivs") == "1"


def _file_capabilities() -> int:
    """Return the capabilities that the probe gets from its file; 0 where none."""
    try:
        path = probe.find()
        data = os.getxattr(path, _XATTR)
    except (StallscopeError, OSError):
        return 0
    if len(data) < _CAP_DATA.size or not os.access(path, os.X_OK):
        return 0
    magic, low, _, high, _ = _CAP_DATA.unpack_from(data)
    # Without the effective bit the program would have to raise them itself.
    return low | high << 32 if magic & _CAP_EFFECTIVE else 0


def lockdown(place: Place) -> Iterator[Check]:
    """Report the kernel's lockdown mode; without the file it has none."""
    text = place.text("/sys/kernel/security/lockdown")
    if text is None:
        yield Check(
            "kernel-lockdown", "ok", "none (the kernel has no lockdown module, or hides it)"
        )
        return
    mode = next((word.strip("[]") for word in text.split() if word.startswith("[")), "?")
    if mode == "confidentiality":
        what = (
            "confidentiality: BPF may not read kernel memory: no BPF backend, no wait programs"
            " (waits are sampled)"
        )
        fix = "boot with lockdown=integrity, or use --backend proc or ptrace"
        yield Check("kernel-lockdown", "degraded", what, fix)
    else:
        yield Check("kernel-lockdown", "ok", mode)


def yama(place: Place) -> Iterator[Check]:
    """Report what kernel.yama.ptrace_scope allows."""
    scope = place.text("/proc/sys/kernel/yama/ptrace_scope")
    if scope is None:
        yield Check("ptrace-scope", "ok", "not restricted: the kernel has no Yama")
        return
    what = f"kernel.yama.ptrace_scope = {scope}: {_YAMA.get(scope, 'unknown value')}"
    if scope == "3":
        fix = "it can only be lowered by a reboot; see /etc/sysctl.d"
        yield Check("ptrace-scope", "missing", what, fix)
    elif scope in ("1", "2") and not _may_trace(place):
        fix = "run it with sudo, or sysctl kernel.yama.ptrace_scope=0"
        yield Check("ptrace-scope", "degraded", what, fix)
    else:
        yield Check("ptrace-scope", "ok", what)


def _may_trace(place: Place) -> bool:
    """Return whether this process or the probe has what Yama requires."""
    if os.geteuid() == 0:
        return True
    file = 0 if _has_no_new_privileges(place) else _file_capabilities()
    return bool(((_own_capabilities(place) or 0) | file) >> _CAPABILITIES["CAP_SYS_PTRACE"] & 1)


def container(place: Place) -> Iterator[Check]:
    """Report whether stallscope runs in a container, which hides the host's processes."""
    own = place.link("/proc/self/ns/pid")
    user = place.link("/proc/self/ns/user")
    if own is None:
        yield Check(
            "container", "degraded", "/proc is not mounted here", "mount -t proc proc /proc"
        )
        return
    inside = [
        name
        for name, link, first in (
            ("pid", own, _FIRST_PID_NAMESPACE),
            ("user", user, _FIRST_USER_NAMESPACE),
        )
        if link != first
    ]
    if not inside:
        yield Check("container", "ok", "none: all processes of the host are visible")
        return
    what = f"in a {' and '.join(inside)} namespace: processes outside are not visible"
    if "user" in inside:
        what += ", and BPF is not permitted"
    fix = "start the container with --pid=host --privileged, or run it on the host"
    yield Check("container", "degraded", what, fix)
