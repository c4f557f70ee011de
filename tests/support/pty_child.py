# SPDX-License-Identifier: Apache-2.0
"""A program on a terminal of its own, whose output is read and thrown away."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import termios
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["OnTerminal", "on_terminal"]

END_SECONDS = 20.0


class OnTerminal:
    """The program, what it has written so far, and a keyboard."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self.bytes = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._master, keys.encode())

    def _read(self) -> None:
        with suppress(OSError):  # EIO: nobody has the terminal open any more
            while data := os.read(self._master, 1 << 16):
                self.bytes += len(data)


@contextmanager
def on_terminal(
    argv: Sequence[str], folder: Path, *, rows: int = 24, columns: int = 80
) -> Iterator[OnTerminal]:
    """Run a program on a new terminal of this size; end it with the block."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color"}
    try:
        process = subprocess.Popen(
            argv,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=env,
            start_new_session=True,
        )
    finally:
        os.close(slave)
    try:
        yield OnTerminal(process, master)
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        finally:
            process.kill()
            os.close(master)
