# SPDX-License-Identifier: Apache-2.0
"""Containers made by hand of namespaces, as an orchestrator makes them: one for a server, and one
for what watches it. No container runtime is needed.

A server's root is an overlay file system, as those of images. What watches it sees none of its
files: its own root is read-only, with another program in place of the server's, and has a new /sys
and the masks on /proc that runtimes make.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.agents import CHECKOUT
from tests.support.jail import python
from tests.support.seccomp import seccomp_missing
from tests.support.servers import MariaDB, program
from tests.support.servers.child import UNPRIVILEGED
from tests.support.targets import target_path

__all__ = ["STORE", "Box", "any_python", "box", "contained", "containers_missing"]

STORE = "/mnt/store"
"""Where a box may write, as a volume: in the box's own mount namespace."""
BECOME = (f"--reuid={UNPRIVILEGED}", "--regid=nogroup", "--clear-groups")

# $0: a folder that stays as it is, a volume. The rest is the program.
_SERVER_ROOT = """
set -e
mount --make-rprivate /
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay none -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root
cd /mnt/root
mount --rbind /dev dev
mount -t proc proc proc
for folder in $0; do mkdir -p .$folder; mount --bind $folder .$folder; done
mkdir -p old
pivot_root . old
umount -l /old
exec "$@"
"""
_NAMESPACES = ("unshare", "--net", "--uts", "--ipc", "--mount")
_OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")

# $0: the folder that is its volume; $1: whether /proc is that of the first namespace.
_BOX = f"""
set -e
mount --make-rprivate /
volume=$0 host=$1; shift
mount --bind /bin/true {program("mariadbd")}
mount -t tmpfs none /mnt
mkdir {STORE}
mount --bind $volume {STORE}
[ $host = yes ] || mount -t proc proc /proc
mkdir /mnt/checkout
mount --bind {CHECKOUT} /mnt/checkout
for folder in /tmp /var/tmp /run; do mount -t tmpfs none $folder; done
# In its own place also where that is in one of these.
mkdir -p {CHECKOUT}
mount --bind /mnt/checkout {CHECKOUT}
for folder in /tmp /var/tmp /run; do mount -o remount,ro $folder; done
mount -t tmpfs -o size=64m none /dev/shm
mount -t sysfs -o ro none /sys
for file in /proc/kcore /proc/keys /proc/timer_list; do
  [ ! -e $file ] || mount --bind /dev/null $file
done
for folder in /proc/sys /proc/irq /proc/bus /proc/fs; do
  [ ! -e $folder ] || {{ mount --bind $folder $folder; mount -o remount,bind,ro $folder; }}
done
mount -o remount,bind,ro /mnt
mount -o remount,bind,ro /
exec "$@"
"""


def containers_missing() -> str | None:
    """Return why containers cannot be made here, or None."""
    if reason := seccomp_missing():
        return reason
    if not target_path("jail").is_file():
        return f"{target_path('jail')} is not built: run scripts/setup"
    with tempfile.TemporaryDirectory() as folder:
        argv = [*_NAMESPACES, "sh", "-c", _SERVER_ROOT, folder, *_OWN_PIDS, "true"]
        tried = subprocess.run(argv, capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else tried.stderr.strip() or "unshare failed"


@contextlib.contextmanager
def contained(*options: str, user_namespace: bool) -> Iterator[MariaDB]:
    """Start a server in mount, pid, net, ipc and uts namespaces of its own, on an overlay.

    ``user_namespace``: in one of those too, and without capabilities.
    """
    server = MariaDB(*options)
    inner: Sequence[str] = (str(target_path("jail")),)
    if not user_namespace:
        inner = (*_OWN_PIDS, "setpriv", "--pdeathsig", "KILL", *BECOME)
    with _prepared(server, inner) as started:
        yield started


@contextlib.contextmanager
def _prepared(server: MariaDB, inner: Sequence[str]) -> Iterator[MariaDB]:
    create = server._create_data

    def create_and_wrap() -> None:
        create()
        # As of the images of servers: everybody can connect to the socket.
        server.folder.chmod(0o755)
        volumes = f"{server.folder} {server.temporary}"
        server.wrapper = (*_NAMESPACES, "sh", "-c", _SERVER_ROOT, volumes, *inner)

    server._create_data = create_and_wrap  # type: ignore[method-assign]
    with server as started:
        yield started


class Box:
    """A container of what watches: its command lines, and its volume."""

    def __init__(self, volume: Path, enter: Sequence[str], limits: Sequence[str]) -> None:
        self.volume = volume
        """The folder that is ``STORE`` in it."""
        self._enter = tuple(enter)
        self._limits = tuple(limits)

    def command(self, *words: object) -> list[str]:
        """Return a command line that runs a program in it."""
        return [*self._enter, *self._limits, *(str(word) for word in words)]

    def stallscope(self, *words: object) -> list[str]:
        """Return a command line that runs stallscope in it."""
        return self.command(*any_python(), "-P", "-m", "stallscope", *words)


def any_python() -> list[str]:
    """Return a command line of a Python with this checkout, which any user may run."""
    first, *rest = python()
    if first == "env":
        return [first, f"{rest[0]}:{CHECKOUT}", *rest[1:]]
    return ["env", f"PYTHONPATH={CHECKOUT}", sys.executable]


@contextlib.contextmanager
def box(
    capabilities: Sequence[str],
    *,
    beside: int | None = None,
    user: str | None = None,
) -> Iterator[Box]:
    """Make a container with these capabilities at most: on the host's pids, as a DaemonSet with
    hostPID, or ``beside`` a process in its pid and net namespaces, as a sidecar.

    As ``allowPrivilegeEscalation: false`` and a RuntimeDefault seccomp profile have it, it can gain
    no privileges, and some system calls are refused.
    """
    volume = Path(tempfile.mkdtemp(prefix="stallscope-box-", dir="/var/tmp"))
    if user is not None:
        shutil.chown(volume, user)
    enter: tuple[str, ...] = (*_NAMESPACES, "sh", "-c", _BOX, str(volume), "yes")
    if beside is not None:
        target = ("nsenter", "--target", str(beside))
        # Its pid namespace last: after that, /proc still shows the other pids.
        enter = (*target, "--net", "--ipc", "--uts", "unshare", "--mount", *target, "--pid")
        enter = (*enter, "sh", "-c", _BOX, str(volume), "no")
    bounds = ",".join(("-all", *(f"+{name}" for name in capabilities)))
    limits = ["setpriv", "--pdeathsig", "KILL", f"--bounding-set={bounds}", "--inh-caps=-all"]
    limits += [] if user is None else [f"--reuid={user}", "--regid=nogroup", "--clear-groups"]
    limits += ["--no-new-privs", *any_python(), "-P", "-m", "tests.support.seccomp"]
    try:
        yield Box(volume, enter, limits)
    finally:
        shutil.rmtree(volume, ignore_errors=True)
