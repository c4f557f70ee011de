# SPDX-License-Identifier: Apache-2.0
"""The speed of the network link that carries a server's connections; /sys/class/net, /proc/net/tcp.

``link.speed_bytes`` a second, in each direction. A virtual link (veth, most virtual machines) has
none that the kernel knows: then the value is absent, and ``missing`` says why.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from stallscope.collectors.host.collecting import HostCollector

__all__ = ["Links", "addresses_of_host"]

INTERVAL = 60.0
"""The table of connections is long where there are many."""
REST_INTERVAL = 600.0
MAX_TABLE = 1 << 20
_ESTABLISHED = b"01"  # include/net/tcp_states.h
_SIOCGIFADDR = 0x8915  # include/uapi/linux/sockios.h
_MAX_LINKS = 256
_MEGABIT = 1_000_000 // 8


class Links(HostCollector):
    """``pid``: whose network namespace; ``ports``: those that the server listens on."""

    name = "links"
    interval = INTERVAL
    rest_interval = REST_INTERVAL

    def __init__(
        self,
        pid: int,
        ports: Sequence[int],
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        addresses: Callable[[Path], dict[str, str]] | None = None,
    ) -> None:
        super().__init__()
        self._ports = frozenset(ports)
        self._tables = [
            self.keep(proc / str(pid) / "net" / name, MAX_TABLE) for name in ("tcp", "tcp6")
        ]
        self._proc, self._sys, self._pid = proc, sys, pid
        self._addresses = addresses or addresses_of_host
        self.missing: str | None = None
        """Why the speed is not known, after a sample."""
        self.link: str | None = None
        """Name of the interface."""

    def read(self, clock_ns: int) -> dict[str, float]:
        self.link, self.missing = None, None
        found = self._busiest()
        if found is None:
            return {}
        self.link = found
        text = ""
        with contextlib.suppress(OSError):
            text = (self._sys / "class" / "net" / found / "speed").read_text()[:32].strip()
        # -1: not known. Some drivers refuse the read, and some report 2^32 - 1.
        if not text.isascii() or not text.isdigit() or not 0 < int(text) < 10_000_000:
            self.missing = f"{found} does not say how fast it is: it is virtual, or has no cable"
            return {}
        return {"link.speed_bytes": float(int(text) * _MEGABIT)}

    def _busiest(self) -> str | None:
        """Return the interface of most of the connections; None: ``missing`` says why."""
        if not self._ports:
            self.missing = "the server listens on no port: its connections need no link"
            return None
        if self._namespace("self") != self._namespace(str(self._pid)):
            self.missing = "the server has its own network namespace"
            return None
        counts: Counter[str] = Counter()
        for table in self._tables:
            with contextlib.suppress(Exception):
                counts.update(_local(table.read().splitlines()[1:], self._ports))
        links = self._addresses(self._sys)
        of_links: Counter[str] = Counter()
        for address, count in counts.items():
            of_links[links.get(address, "")] += count
        del of_links["lo"]
        if not of_links:
            self.missing = "no connection comes over a network"
            return None
        name = of_links.most_common(1)[0][0]
        if not name:
            self.missing = "the interface of the server's address is not known"
            return None
        return name

    def _namespace(self, who: str) -> str | None:
        try:
            return str((self._proc / who / "ns" / "net").readlink())
        except OSError:
            return None


def _local(lines: Iterable[bytes], ports: frozenset[int]) -> Iterable[str]:
    """Yield the local address of each established connection to these ports."""
    for line in lines:
        words = line.split()
        if len(words) < 4 or words[3] != _ESTABLISHED:
            continue
        address, _, port = words[1].partition(b":")
        with contextlib.suppress(ValueError):
            if int(port, 16) in ports:
                yield _address(address)


def _address(text: bytes) -> str:
    """Return an address of /proc/net/tcp, which has it as words of the host's byte order."""
    data = bytes.fromhex(text.decode("ascii"))
    words = [data[i : i + 4][::-1] for i in range(0, len(data), 4)]
    found = ipaddress.ip_address(b"".join(words))
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    found = mapped or found
    return "loopback" if found.is_loopback else str(found)


def addresses_of_host(sys: Path) -> dict[str, str]:
    """Return the interface of each address of this host."""
    found = {"loopback": "lo"}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        for name in sorted(os.listdir(sys / "class" / "net"))[:_MAX_LINKS]:
            with contextlib.suppress(OSError, ValueError):
                asked = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(end.fileno(), _SIOCGIFADDR, asked)
                found[socket.inet_ntoa(answer[20:24])] = name
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", "rb") as file:
        for line in file.read(MAX_TABLE).splitlines():
            words = line.split()
            with contextlib.suppress(ValueError, IndexError):
                address = ipaddress.ip_address(bytes.fromhex(words[0].decode("ascii")))
                found[str(address)] = words[5].decode("ascii")
    return found
