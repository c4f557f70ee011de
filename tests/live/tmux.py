# SPDX-License-Identifier: Apache-2.0
"""A terminal in tmux: type, read the screen, resize."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers.waiting import PATIENCE, wait_until

__all__ = ["Terminal", "terminal"]

CODE = "ended with code"


class Terminal:
    """One window; ``folder`` holds the socket of its tmux."""

    def __init__(self, folder: Path) -> None:
        # -u: also where no variable names a locale that has all characters.
        self._tmux = ["tmux", "-u", "-f", "/dev/null", "-S", str(folder / "tmux")]

    def tmux(self, *words: str) -> str:
        """Run one command of tmux."""
        done = subprocess.run(
            [*self._tmux, *words], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def begin(self, argv: Sequence[str], size: tuple[int, int], folder: Path) -> None:
        """Run a program in a shell, which says at its end with which code it ended."""
        script = f"{shlex.join(argv)}; echo {CODE} $?; stty -a; exec cat"
        width, height = map(str, size)
        self.tmux("new-session", "-d", "-x", width, "-y", height, "-c", str(folder), script)

    def press(self, *keys: str) -> None:
        """Type keys, in tmux's names for them."""
        self.tmux("send-keys", *keys)

    def text(self) -> str:
        """Return what is seen."""
        return self.tmux("capture-pane", "-p")

    def flag(self, name: str) -> str:
        """Return a variable of tmux: ``alternate_on``, ``cursor_flag``, ``mouse_any_flag``."""
        return self.tmux("display-message", "-p", f"#{{{name}}}").strip()

    def shows(self, *what: str) -> str:
        """Wait until all of it is seen; return the screen."""
        return self.until(lambda text: all(part in text for part in what), f"{what} on the screen")

    def until(self, wanted: Callable[[str], bool], what: str) -> str:
        """Wait until the screen is as wanted; return it."""
        last = ""

        def seen() -> bool:
            nonlocal last
            last = self.text()
            return wanted(last)

        try:
            wait_until(seen, what)
        except Exception as error:
            raise AssertionError(f"{error}\n{last}") from error
        return last


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    """Give a tmux of its own, and end it."""
    made = Terminal(folder)
    try:
        yield made
    finally:
        subprocess.run(
            [*made._tmux, "kill-server"], capture_output=True, timeout=PATIENCE, check=False
        )
