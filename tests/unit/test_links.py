# SPDX-License-Identifier: Apache-2.0
"""The link of a server's connections, from recorded tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from stallscope.collectors.host.links import Links

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue\n"
# 10.0.0.7:3306 (twice), 127.0.0.1:3306, one that listens, one of another port.
TCP = HEAD + "".join(
    f"   {i}: {local} {remote} {state} 00000000:00000000\n"
    for i, (local, remote, state) in enumerate(
        [
            ("0700000A:0CEA", "0900000A:8000", "01"),
            ("0700000A:0CEA", "0900000A:8001", "01"),
            ("0100007F:0CEA", "0100007F:8002", "01"),
            ("0800000A:0CEA", "00000000:0000", "0A"),
            ("0800000A:0016", "0900000A:8000", "01"),
        ]
    )
)
# ::ffff:10.0.0.8 at the same port, three times.
TCP6 = HEAD + "   0: 0000000000000000FFFF00000800000A:0CEA X 01\n" * 3


def tree(root: Path, speed: str | None = "1000\n", tcp: str = TCP, tcp6: str = HEAD) -> Links:
    for pid in ("42", "self"):
        folder = root / "proc" / pid
        (folder / "net").mkdir(parents=True)
        (folder / "ns").mkdir()
        (folder / "ns" / "net").symlink_to("net:[1]")
        (folder / "net" / "tcp").write_text(tcp)
        (folder / "net" / "tcp6").write_text(tcp6)
    for name in ("eth0", "eth1"):
        (root / "sys" / "class" / "net" / name).mkdir(parents=True)
    if speed is not None:
        (root / "sys" / "class" / "net" / "eth0" / "speed").write_text(speed)
        (root / "sys" / "class" / "net" / "eth1" / "speed").write_text("25000\n")
    known = {"loopback": "lo", "10.0.0.7": "eth0", "10.0.0.8": "eth1"}
    return Links(
        42, (3306,), proc=root / "proc", sys=root / "sys", addresses=lambda sys: dict(known)
    )


def test_the_speed_is_that_of_most_connections(tmp_path: Path) -> None:
    links = tree(tmp_path / "a")
    assert links.read(1) == {"link.speed_bytes": 125e6}
    assert links.link == "eth0"
    links = tree(tmp_path / "b", tcp6=TCP6)
    assert links.read(1) == {"link.speed_bytes": 25 * 125e6}


@pytest.mark.parametrize("speed", ["-1\n", "4294967295\n", "", "x\n", None])
def test_a_virtual_link_has_no_speed(tmp_path: Path, speed: str | None) -> None:
    links = tree(tmp_path, speed)
    assert links.read(1) == {}
    assert "eth0 does not say" in (links.missing or "")


def test_why_there_is_no_link(tmp_path: Path) -> None:
    links = tree(tmp_path / "a", tcp=HEAD)
    assert links.read(1) == {}
    assert links.missing == "no connection comes over a network"
    links = tree(tmp_path / "b")
    namespace = tmp_path / "b" / "proc" / "42" / "ns" / "net"
    namespace.unlink()
    namespace.symlink_to("net:[2]")
    assert links.read(1) == {}
    assert "namespace" in (links.missing or "")
