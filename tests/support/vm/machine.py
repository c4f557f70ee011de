# SPDX-License-Identifier: Apache-2.0
"""Boot an image in a virtual machine, and run commands in it.

Commands and their answers are lines of JSON on a virtio port (control.py runs in the machine):
nothing is read out of a console. All is emulated, so that it works where no machine may be nested;
times in it say nothing.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

from tests.support.vm.systems import Image

__all__ = ["BOOT_SECONDS", "SECONDS", "Done", "Machine", "MachineError"]

BOOT_SECONDS = 600.0
SECONDS = 300.0
"""Of one command: what takes a second elsewhere takes twenty here, and the host may be busy."""
PAUSE = 1.0
MEMORY = "2G"
CPU = "Nehalem"
"""x86-64-v2, as wheels want it; emulating wider vectors takes longer than doing without them."""
PATIENT = (
    "systemd.default_timeout_start_sec=1800 systemd.service_watchdogs=no tsc=nowatchdog"
    " no_timer_check mitigations=off"
)
"""Emulated on a busy host, what kernel and systemd take for broken or hanging is only slow."""
CPUS = 2

T = TypeVar("T")


class MachineError(Exception):
    """The machine did not start, ended, or does not answer."""


class Done(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return f"exit code {self.code}\n{self.out[-4000:]}\n{self.err[-4000:]}"


class Machine:
    """A virtual machine, whose disk forgets what was written to it when it ends.

    With ``keep`` it does not: end it by ``power_off``.
    """

    def __init__(
        self,
        image: Image,
        folder: Path,
        payload: Path | None = None,
        parameters: str = "",
        *,
        keep: bool = False,
    ) -> None:
        self._keep = keep
        self.console = folder / "console.log"
        """What kernel and systemd printed, for people."""
        self._image = image
        self._folder = folder
        self._payload = payload
        self._parameters = f"root=/dev/vda rw console=ttyS0 panic=-1 {PATIENT} {parameters}"
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._data = b""
        self._orders = 0
        self._boot = ""

    def __enter__(self) -> Self:
        port = self._folder / "control"
        snapshot = "off" if self._keep else "on"
        with self.console.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "qemu-system-x86_64",
                    *("-accel", "tcg,thread=single", "-cpu", CPU, "-smp", str(CPUS)),
                    *("-m", MEMORY, "-nodefaults", "-display", "none", "-serial", "stdio"),
                    *("-kernel", str(self._image.kernel), "-initrd", str(self._image.initrd)),
                    *("-append", self._parameters),
                    *(
                        "-drive",
                        f"file={self._image.disk},if=virtio,format=raw,snapshot={snapshot}",
                    ),
                    *self._second_disk(),
                    *("-chardev", f"socket,id=control,path={port},server=on,wait=off"),
                    *("-device", "virtio-serial-pci"),
                    *("-device", "virtserialport,chardev=control,name=stallscope.control"),
                    *("-device", "virtio-rng-pci"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Where QEMU keeps what is written to the disk.
                env={**os.environ, "TMPDIR": str(self._folder)},
            )
        try:
            self._connect(port)
            self._wait_for_boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _second_disk(self) -> tuple[str, ...]:
        if self._payload is None:
            return ()
        return ("-drive", f"file={self._payload},if=virtio,format=raw,readonly=on")

    def power_off(self) -> None:
        """Shut it down."""
        assert self._process is not None
        self.run("systemctl poweroff --no-block")
        self._process.wait(BOOT_SECONDS)

    def run(self, script: str, *, seconds: float = SECONDS, stdin: str = "") -> Done:
        """Run a shell script as root and return what it did; code -1 where it took too long."""
        self._orders += 1
        order = {
            "id": self._orders,
            "script": script,
            "seconds": seconds,
            "input": base64.b64encode(stdin.encode()).decode(),
        }
        assert self._socket is not None
        self._socket.sendall(json.dumps(order).encode() + b"\n")
        deadline = time.monotonic() + seconds + BOOT_SECONDS
        while True:
            answer = self._answer(deadline)
            if "booted" in answer:
                raise MachineError(f"it started again while it ran: {script[:200]}")
            if answer["id"] == self._orders:
                break
        out, err = (
            base64.b64decode(str(answer[name])).decode(errors="replace") for name in ("out", "err")
        )
        return Done(int(str(answer["code"])), out, err)

    def check(self, script: str, *, seconds: float = SECONDS, stdin: str = "") -> str:
        """Run a shell script that is to succeed; return what it printed."""
        done = self.run(script, seconds=seconds, stdin=stdin)
        assert done.code == 0, f"{script}\n{done.said}"
        return done.out

    def until(self, condition: Callable[[], T], what: str, seconds: float = SECONDS) -> T:
        """Return the first true value of ``condition``."""
        deadline = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline:
                raise MachineError(f"not within {seconds:g} s: {what} (last seen: {value!r})")
            time.sleep(PAUSE)

    def write(self, path: str, text: str, mode: str = "644") -> None:
        """Write a file, and make its folder."""
        self.check(f"install -D -m {mode} /dev/stdin {path}", stdin=text)

    def reboot(self) -> None:
        """Restart the system cleanly, and wait until it takes commands."""
        before = self._boot
        self.run("systemctl reboot --no-block")
        self._wait_for_boot()
        assert self._boot != before, "it has not started again"

    def _connect(self, port: Path) -> None:
        deadline = time.monotonic() + 60
        self._socket = socket.socket(socket.AF_UNIX)
        while True:
            try:
                self._socket.connect(str(port))
                return
            except OSError as error:
                self._alive()
                if time.monotonic() > deadline:
                    raise MachineError(f"no control port: {error}") from error
                time.sleep(0.05)

    def _wait_for_boot(self) -> None:
        deadline = time.monotonic() + BOOT_SECONDS
        while True:
            answer = self._answer(deadline)
            if "booted" in answer and answer["booted"] != self._boot:
                self._boot = str(answer["booted"])
                return

    def _alive(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            tail = self.console.read_bytes()[-2000:].decode(errors="replace")
            raise MachineError(f"it ended, exit code {self._process.returncode}:\n{tail}")

    def _answer(self, deadline: float) -> dict[str, object]:
        """Return the next line that comes."""
        assert self._socket is not None
        while b"\n" not in self._data:
            self._alive()
            left = deadline - time.monotonic()
            if left <= 0:
                tail = self.console.read_bytes()[-2000:].decode(errors="replace")
                raise MachineError(f"no answer in time; its console ends:\n{tail}")
            self._socket.settimeout(min(left, 5.0))
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            if not data:
                self._alive()
                raise MachineError("its control port was closed")
            self._data += data
        line, _, self._data = self._data.partition(b"\n")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer
