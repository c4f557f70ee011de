# SPDX-License-Identifier: Apache-2.0
"""A probe that comes late: the stall is there already."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.servers import PATIENCE, wait_until
from tests.support.stalls import Device, loop_device
from tests.support.targets import Script
from tests.support.watching import Waits, key_of

pytestmark = pytest.mark.needs("root", "waits", "freeze")

WRITER = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
print("ready", flush=True)
sys.stdin.readline()
os.pwrite(fd, b"x" * 65536, 0)
"""
PWRITE = "18"
"""Its number on x86-64, as /proc/PID/syscall shows it."""


def in_pwrite(pid: int) -> bool:
    """Return whether the process sleeps in pwrite64(2)."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[0] == PWRITE


def test_a_write_that_hangs_already_is_seen_with_its_file() -> None:
    with loop_device() as device:
        disk = Device(device.folder, device.folder)
        file = disk.folder / "t1.ibd"
        with Script(WRITER, str(file)) as writer:
            disk.freeze()
            try:
                writer.go_on()
                wait_until(lambda: in_pwrite(writer.pid), "the writer hangs")
                with Waits("--interval", "100", "--threshold", "1", pids=(writer.pid,)) as probe:
                    line = probe.line()
                    while not any(key.waiters for key in line.keys):
                        line = probe.line()
                    key = key_of(line, "extend", str(file))
            finally:
                disk.thaw()
            assert writer.wait(PATIENCE) == 0
    assert key.file_class == "data"
    assert key.in_flight == 1
    assert key.waiters[0].label == "verified"
    assert any("pwrite" in frame for frame in key.waiters[0].frames)
