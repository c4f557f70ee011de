# SPDX-License-Identifier: Apache-2.0
"""What is said of threads that sleep, and of threads that do not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.servers import wait_until
from tests.support.servers.tasks import at_rest, held_up

BUSY = "print(flush=True)\nwhile True: pass"
ASLEEP = """
import threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
time.sleep(600)
"""


@contextmanager
def program(text: str) -> Iterator[int]:
    """Run a program of Python, from its first line on; yield its pid."""
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            yield child.pid
        finally:
            child.kill()


def test_one_that_works_is_not_at_rest() -> None:
    with program(BUSY) as pid:
        assert not any(at_rest(pid) for _ in range(100))
        assert not held_up(pid)


def test_threads_that_sleep_are_at_rest_and_wait_for_no_disk() -> None:
    with program(ASLEEP) as pid:
        wait_until(lambda: at_rest(pid), "both threads sleep")
        assert not held_up(pid)
