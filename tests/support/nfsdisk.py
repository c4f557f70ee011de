# SPDX-License-Identifier: Apache-2.0
"""A disk of an NFS server that answers no more: the server of this kernel, behind a relay.

Only guests have it (tests/support/vm): a kernel has one such server. No program of a distribution
is needed: the kernel is given by files what they would give it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.waiting import PATIENCE, wait_until

__all__ = ["dead_nfs", "nfs_missing"]

NFSD = Path("/proc/fs/nfsd")
CACHES = Path("/proc/net/rpc")
EXPORTED = Path("/run/stallscope-exported")
PORT = 2049
ALWAYS = 2**31 - 1
FLAGS = 0x2 | 0x400 | 0x2000
"""From any port, no check of paths below it, and a number of its own (NFSEXP_*)."""
OPTIONS = (
    *("vers=4.2", "hard", "addr=127.0.0.1", "clientaddr=127.0.0.1"),
    # What would be answered without the server, and is not once it has become old.
    *("actimeo=0", "lookupcache=none"),
)
RELAY = f"""\
import socket, threading

def pass_on(source, sink):
    while data := source.recv(1 << 20):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)

listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    client, _ = listener.accept()
    server = socket.create_connection(("127.0.0.1", {PORT}))
    for pair in ((client, server), (server, client)):
        threading.Thread(target=pass_on, args=pair, daemon=True).start()
"""
"""What a stopped process takes from a socket is nothing, and the connection stays."""


def nfs_missing() -> str | None:
    """Return why there is no NFS server here, or None."""
    if "STALLSCOPE_GUEST" not in os.environ:
        return "the server is of the whole machine: only guests of the kernel matrix have one"
    known = Path("/proc/filesystems").read_text().split()
    lacking = [name for name in ("nfs4", "nfsd") if name not in known]
    return f"this kernel has no {' and no '.join(lacking)}" if lacking else None


@contextmanager
def dead_nfs() -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """Mount a folder, and give what makes its server answer no more, and answer again."""
    if not EXPORTED.exists():
        _start_server()
    with (
        tempfile.TemporaryDirectory(prefix="stallscope-nfs-") as mounted,
        tempfile.TemporaryDirectory(dir=EXPORTED) as folder,
        subprocess.Popen([sys.executable, "-c", RELAY], stdout=subprocess.PIPE) as relay,
    ):
        assert relay.stdout is not None
        Path(folder).chmod(0o755)
        port = int(relay.stdout.readline())

        def stop() -> None:
            relay.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, relay.pid, os.WSTOPPED)

        def end() -> None:
            relay.send_signal(signal.SIGCONT)

        options = ",".join((*OPTIONS, f"port={port}"))
        source = f"127.0.0.1:/{Path(folder).name}"
        try:
            # Without the program of nfs-common, whose work the addresses are.
            assert _run("mount", "-i", "-t", "nfs4", "-o", options, source, mounted)
            try:
                yield Path(mounted), stop, end
            finally:
                end()
                # Who waited still has files of it open, for a moment.
                wait_until(lambda: _run("umount", mounted), f"{mounted} is unmounted")
        finally:
            relay.kill()


def _start_server() -> None:
    """Export a file system in memory, as long as the machine runs."""
    EXPORTED.mkdir()
    assert _run("mount", "-t", "tmpfs", "exported", str(EXPORTED))
    if not (NFSD / "threads").exists():
        assert _run("mount", "-t", "nfsd", "nfsd", str(NFSD))
    # Opens of files are not left to the client, so each close is one of the server too.
    Path("/proc/sys/fs/leases-enable").write_text("0")
    # The older versions need programs that find ports and hold locks.
    known = (NFSD / "versions").read_text().replace("+", "").split()
    for path, text in (
        (NFSD / "versions", " ".join(f"-{one}" for one in known if one in ("2", "3"))),
        # Else the server waits so long for clients of an earlier boot.
        (NFSD / "nfsv4gracetime", "10"),
        (CACHES / "auth.unix.ip/channel", f"nfsd 127.0.0.1 {ALWAYS} all"),
        (CACHES / "nfsd.export/channel", f"all {EXPORTED} {ALWAYS} {FLAGS} 65534 65534 0"),
        (CACHES / "nfsd.fh/channel", f"all 1 \\x00000000 {ALWAYS} {EXPORTED}"),
        (NFSD / "portlist", f"tcp {PORT}"),
        (NFSD / "threads", "4"),
    ):
        path.write_text(f"{text}\n")


def _run(*argv: str) -> bool:
    return subprocess.run(argv, check=False, timeout=PATIENCE).returncode == 0
