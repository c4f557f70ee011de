# SPDX-License-Identifier: Apache-2.0
"""Machines as strangers have them: a release's bare root folder, and what one may not do in it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from packages import copy_sources

from tests.support.agents import CHECKOUT
from tests.support.vm import roots
from tests.support.vm.roots import Overlay, Release

__all__ = ["OLD_REFUSED", "Limits", "bare", "machine"]

# What Docker gives by default, but for MKNOD.
_OF_CONTAINERS = (
    *("chown", "dac_override", "fsetid", "fowner", "net_raw", "setgid", "setuid", "setfcap"),
    *("setpcap", "net_bind_service", "sys_chroot", "kill", "audit_write"),
)
_REFUSED = ("bpf", "perf_event_open")
OLD_REFUSED = ("ptrace", "process_vm_readv", "process_vm_writev", "kcmp")
"""What their filter refused before Docker 19.03, and does on kernels before 4.8."""


class Limits(NamedTuple):
    """What is not there."""

    container: bool = False
    """Root has the capabilities of a container, /sys is read-only, and /dev/shm has 64 MB."""
    refused: Sequence[str] = ()
    """System calls, in a container, in addition to what its filter refuses."""
    user: str = ""
    """An ordinary user of the root folder, who runs all."""
    network: bool = True
    mounts: str = ""
    """A shell command that mounts more; $root is the folder."""


def bare(suite: str, folder: Path) -> Path:
    """Make the smallest system of a release: no compiler, no Python, and old lists of packages."""
    root = folder / suite
    roots.debootstrap(Release(suite, suite), root, updates=suite != "sid")
    roots.trust(root)
    (root / "usr/sbin/policy-rc.d").unlink()
    return root


def machine(base: Path | Overlay, folder: Path, limits: Limits | None = None) -> Overlay:
    """Return a machine that begins as ``base``, with a copy of this checkout in /src."""
    made = Overlay(base, folder, last=_entering(limits or Limits()))
    if isinstance(base, Path):
        copy_sources(made.path("/src"), 0)
    return made


def _entering(limits: Limits) -> Callable[[Path], str]:
    def last(root: Path) -> str:
        before, words = [f"root={root}", limits.mounts], ["chroot", str(root)]
        if limits.container:
            before += [
                # Without "bind" the kernel's one sysfs gets it, which is the host's /sys too.
                "mount -o remount,bind,ro $root/sys",
                "mount -t tmpfs -o size=64m,noexec none $root/dev/shm",
            ]
            refused = ",".join((*_REFUSED, *limits.refused))
            kept = ",".join(f"+{name}" for name in _OF_CONTAINERS)
            words = ["env", f"PYTHONPATH={CHECKOUT}", sys.executable, "-m", "tests.support.seccomp"]
            words += ["--root", str(root), "--refuse", refused]
            words += ["setpriv", f"--bounding-set=-all,{kept}", "--inh-caps=-all"]
        if not limits.network:
            words = ["unshare", "--net", *words]
        if limits.user:
            words += [
                "setpriv",
                f"--reuid={limits.user}",
                f"--regid={limits.user}",
                "--init-groups",
            ]
            words += ["env", f"HOME=/home/{limits.user}"]
        return " && ".join((*filter(None, before), f"exec {shlex.join(words)}"))

    return last
