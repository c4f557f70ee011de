# SPDX-License-Identifier: Apache-2.0
"""Run a program that ends when this one does, and end it by its own pid."""

from __future__ import annotations

import functools
import grp
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tests.support.rights import READABLE
from tests.support.servers.waiting import PATIENCE, wait_until

__all__ = ["UNPRIVILEGED", "Child", "ChildEnded", "primary_group", "program", "server_user"]

T = TypeVar("T")

UNPRIVILEGED = "nobody"
"""Owner of servers and their data when root starts them."""
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
LOG_TAIL = 1500


class ChildEnded(Exception):
    """The program ended before it was ready."""


def program(name: str) -> str | None:
    """Return the path of a program; sbin counts even where PATH leaves it out."""
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":" + SBIN)


class Child:
    """One program in a session of its own: a Ctrl-C at the terminal reaches only its owner.

    ``user`` is a user to become, when this runs as root. Output goes to ``log``.
    """

    def __init__(
        self,
        argv: Sequence[str],
        log: Path,
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        # setpriv executes the program in place, so its pid is the program's own. The death
        # signal is set after the change of user, which would clear it (prctl(2)).
        wrapper = become(user)
        self.log = log
        self.name = Path(argv[0]).name
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*wrapper, *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=None if env is None else {**os.environ, **env},
                cwd=cwd,
            )
        self.pid = self._process.pid

    def only_child(self) -> int:
        """Return the pid of the process that it has started."""
        (pid,) = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return int(pid)

    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float = PATIENCE) -> int:
        """Return the exit code (negative: the signal) of a program that ends by itself."""
        return self._process.wait(seconds)

    def succeed(self, what: str, seconds: float = PATIENCE) -> None:
        """Wait for the end of a program that is to end with 0."""
        try:
            code = self.wait(seconds)
        except BaseException:
            self.end()
            raise
        if code != 0:
            raise ChildEnded(f"{what} failed ({code}): {self.tail()}")

    def wait_until(self, condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
        """Wait as `waiting.wait_until`, but no longer than the program runs."""

        def checked() -> T:
            value = condition()
            if not value and not self.running():
                raise ChildEnded(f"{self.name} ended ({self._process.returncode}): {self.tail()}")
            return value

        return wait_until(checked, what, seconds)

    def tail(self) -> str:
        """Return the end of its output."""
        return self.log.read_text(errors="replace")[-LOG_TAIL:].strip()

    def end(self, polite: signal.Signals | None = None, seconds: float = 10.0) -> None:
        """End it and what shares its session; ``polite`` is tried first."""
        if polite is not None and self.running():
            self._process.send_signal(polite)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        if self.running():
            # Not waited for yet, so the number cannot belong to anyone else.
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()


def become(user: str | None) -> list[str]:
    """Return the command that runs another one, as this user where root runs this."""
    command = ["setpriv", "--pdeathsig", "KILL", *READABLE[1:]]
    if user is not None and os.geteuid() == 0:
        command += [f"--reuid={user}", f"--regid={primary_group(user)}", "--clear-groups"]
    return command


def primary_group(user: str) -> str:
    """Return the name of the group that /etc/passwd gives the user."""
    return grp.getgrgid(pwd.getpwnam(user).pw_gid).gr_name


@functools.cache
def server_user() -> str | None:
    """Return the user that servers become when root starts them.

    None: they stay who starts them, as do all where that is not root. Root without CAP_SYS_PTRACE,
    as in a container, cannot read the processes of others.
    """
    if os.geteuid() != 0:
        return None
    command = [*become(UNPRIVILEGED), "sh", "-c", "echo ready; read end"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        if not child.stdout.readline():
            return None
        try:
            Path(f"/proc/{child.pid}/maps").read_bytes()
        except PermissionError:
            return None
    return UNPRIVILEGED
