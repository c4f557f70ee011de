# SPDX-License-Identifier: Apache-2.0
"""One ZooKeeper of the distribution's, for replicas of ClickHouse."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.support.servers.child import Child, program
from tests.support.servers.ports import free_port

__all__ = ["ZooKeeper", "zookeeper_missing"]

_JAR = Path("/usr/share/java/zookeeper.jar")
_LOGGING = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %m%n
"""


def zookeeper_missing() -> str | None:
    """Return why none can be started here, or None."""
    if not _JAR.exists():
        return f"no {_JAR} here: run scripts/setup --fleet"
    return None if program("java") else "no java here: run scripts/setup --fleet"


class ZooKeeper:
    """A context manager: it runs from its start to its end, in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """Return the pid of a server that runs."""
        assert self._child is not None
        return self._child.pid

    def __enter__(self) -> Self:
        self.port = free_port()
        (self.folder / "data").mkdir(parents=True)
        (self.folder / "log4j.properties").write_text(_LOGGING)
        config = self.folder / "zoo.cfg"
        config.write_text(
            f"dataDir={self.folder}/data\nclientPort={self.port}\n"
            "clientPortAddress=127.0.0.1\ntickTime=500\nminSessionTimeout=1000\n"
            "maxSessionTimeout=60000\nmaxClientCnxns=0\nadmin.enableServer=false\n"
            "4lw.commands.whitelist=srvr\nfsync.warningthresholdms=60000\n"
        )
        self.start()
        return self

    def start(self) -> None:
        """Start it on its data, and wait until it answers."""
        self._child = Child(
            [
                "java",
                "-Xmx128m",
                "-XX:+UseSerialGC",
                f"-Dlog4j.configuration=file:{self.folder}/log4j.properties",
                "-Dzookeeper.forceSync=no",
                "-cp",
                str(_JAR),
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                str(self.folder / "zoo.cfg"),
            ],
            self.folder / "log",
        )
        self._child.wait_until(self._answers, "ZooKeeper answers")

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as end:
            # "ruok" is answered before it serves, when a server of ClickHouse 18 would never try
            # again: it ends by a segmentation fault at the next ON CLUSTER.
            end.sendall(b"srvr")
            return b"Mode: standalone" in b"".join(iter(lambda: end.recv(4096), b""))
        return False

    def kill(self) -> None:
        """End it at once."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def __exit__(self, *_: object) -> None:
        self.kill()
