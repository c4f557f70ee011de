# SPDX-License-Identifier: Apache-2.0
"""Start the small programs of tests/targets, and know what their threads are doing.

A target prints what it knows about its threads, then ``ready``; it answers commands and ends when
its stdin is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from stallscope.model.capture import Frame, Thread
from tests.support.rights import READABLE
from tests.support.servers import PATIENCE, Late, wait_until

__all__ = [
    "Fact",
    "Script",
    "Target",
    "TargetError",
    "build_folder",
    "own_frames",
    "target_path",
    "trouble",
    "trouble_left",
    "without_plt",
]

CHECKOUT = Path(__file__).resolve().parents[2]
END_SECONDS = 60.0
"""A target that was damaged on purpose may never end by itself."""
MAX_LINE = 16 << 20
CLONE = re.compile(r" \[clone [^\]]*\]")
STUB = re.compile(r"target-\w+\+0x")
TRACED = re.compile(rb"^TracerPid:\t([1-9]\d*)$", re.M)
STOPPED = re.compile(rb"^State:\t([Tt] .*)$", re.M)


class TargetError(Exception):
    """A target did not start, or stopped answering."""


class Fact(msgspec.Struct):
    """One line that a target printed before it was ready; what is meant depends on ``fact``."""

    fact: str = ""
    tid: int = 0
    wait: str = ""
    syscall: int | None = None
    leaf: str = ""
    depth: int = 0
    root: str = ""
    frames: list[str] | None = None
    spin: str = ""
    kind: str = ""
    sp: str = ""
    name_hex: str = ""
    seed: int = 0
    count: int = 0
    owner: int | None = None
    readers: int | None = None
    address: str = ""
    symbol: str | None = None

    def expected(self) -> list[str]:
        """Return the names of the target's own functions, innermost first."""
        if self.frames is not None:
            return self.frames
        levels = [f"level_{nr % 25}" for nr in range(self.depth)]
        return [self.leaf, *reversed(levels), self.root]


def is_static(name: str) -> bool:
    """Return whether a stripped target has no name for this function (tests/targets/levels.h)."""
    if name.startswith("level_"):
        return int(name.removeprefix("level_")) % 2 == 1
    return not name.startswith("wait_") and name != "main"


def build_folder() -> Path:
    """Return the Meson build folder: STALLSCOPE_BUILD, or ``build`` of this checkout."""
    return Path(os.environ.get("STALLSCOPE_BUILD") or CHECKOUT / "build").resolve()


def target_path(name: str) -> Path:
    """Return the path of a built target; ``name`` is without the prefix ``target-``."""
    path = build_folder() / "tests" / "targets" / f"target-{name}"
    if not path.exists():
        raise TargetError(f"{path} is not built: run scripts/setup")
    return path


class Target:
    """One running target; use it as a context manager.

    ``executable`` is a path to run in place of the built target of that name, ``wrapper`` what to
    put before it on the command line, which must execute it in place. ``listens`` says that the
    main thread waits for commands, as all do but those that execute or exit by themselves.
    """

    def __init__(
        self,
        name: str,
        *arguments: str,
        executable: Path | None = None,
        wrapper: Sequence[str] = (),
        env: dict[str, str] | None = None,
        listens: bool = True,
    ) -> None:
        self.name = name
        self.executable = executable or target_path(name)
        self.argv = [*(wrapper or READABLE), str(self.executable), *arguments]
        self.env = {**os.environ, **(env or {})}
        self.listens = listens
        self.facts: list[Fact] = []
        self.pid = 0
        self._buffer = b""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.env,
            start_new_session=True,
        )
        self.pid = self._process.pid
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_ready(self) -> None:
        """Read what it knows: after its start, and after it has executed itself again."""
        self.facts.clear()
        while (line := self._line()) != b"ready":
            self.facts.append(msgspec.json.decode(line, type=Fact))
        self._settle()

    @property
    def threads(self) -> list[Fact]:
        """Facts about threads with known frames."""
        return [fact for fact in self.facts if fact.fact == "thread"]

    def fact(self, name: str) -> Fact:
        """Return the one fact of that name."""
        (found,) = [fact for fact in self.facts if fact.fact == name]
        return found

    def ask(self, command: str) -> dict[str, Any]:
        """Send a command and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._line())
        assert isinstance(answer, dict)
        self._settle()
        return answer

    def send(self, command: str) -> None:
        """Send a command that has no answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def beats_on(self) -> bool:
        """Return whether its heartbeat goes on; it may have to wait for a CPU before it does."""
        before = self.ask("gap")["ticks"]
        with contextlib.suppress(Late):
            wait_until(lambda: self.ask("gap")["ticks"] > before, "the heartbeat goes on")
            return True
        return False

    def wait_asleep(self) -> None:
        """Wait until every known thread sleeps: one that was woken has counted that by then."""
        tasks = [Path(f"/proc/{self.pid}/task/{fact.tid}") for fact in self.threads]

        def asleep() -> bool:
            return all(is_asleep(task) for task in tasks)

        wait_until(asleep, f"the threads of {self.name} sleep")

    def running(self) -> bool:
        return self._process.poll() is None

    def wait(self, seconds: float = PATIENCE) -> int:
        """Return the exit code of a target that ends by itself."""
        return self._process.wait(seconds)

    def close(self) -> int:
        """Let the target end by itself, or else end it; return its exit code."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return self._process.returncode

    def _settle(self) -> None:
        """Wait until the main thread, which has just written a line, sleeps again."""
        if self.listens:
            task = Path(f"/proc/{self.pid}")
            wait_until(lambda: is_asleep(task), f"{self.name} listens")

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([output], [], [], left)[0]:
                raise TargetError(f"{self.name}: nothing said for {PATIENCE:g} s")
            data = os.read(output, 1 << 20)
            if not data or len(self._buffer) > MAX_LINE:
                raise TargetError(f"{self.name} ended with {self._process.wait()}")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line


class Script(subprocess.Popen[str]):
    """A target in Python: it prints ``ready``, and goes on at each line of its stdin."""

    def __init__(self, code: str, *words: str) -> None:
        pipe = subprocess.PIPE
        super().__init__([sys.executable, "-c", code, *words], stdin=pipe, stdout=pipe, text=True)

    def __enter__(self) -> Self:
        super().__enter__()
        assert self.line() == "ready"
        return self

    def line(self) -> str:
        """Return the next line that it prints."""
        assert self.stdout is not None
        return self.stdout.readline().rstrip("\n")

    def go_on(self) -> None:
        """Let it do what it waits to do."""
        assert self.stdin is not None
        self.stdin.write("\n")
        self.stdin.flush()


def is_asleep(task: Path) -> bool:
    """Return whether a thread (its folder in /proc) is in a call other than write, or has ended."""
    try:
        text = (task / "syscall").read_text()
    except OSError:
        return True
    return not text.startswith(("running", "1 "))


def trouble(pid: int) -> list[str]:
    """Return what a capture has left behind in a process: tracers, stopped threads. Empty is well.

    States are those of /proc/PID/stat: T is stopped, t is stopped by a tracer.
    """
    found = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{pid}/task/{tid}/status").read_bytes()
            if tracer := TRACED.search(status):
                found.append(f"{tid}: traced by {tracer[1].decode()}")
            if stopped := STOPPED.search(status):
                found.append(f"{tid}: {stopped[1].decode()}")
    return found


def trouble_left(pid: int) -> list[str]:
    """Return the trouble that stays: the end of a tracer takes the kernel a moment."""
    found: list[str] = []

    def well() -> bool:
        found[:] = trouble(pid)
        return not found

    with contextlib.suppress(Late):
        wait_until(well, f"nobody traces {pid} any more")
    return found


def own_frames(thread: Thread, *modules: str) -> list[str]:
    """Return the names of the frames in these files (by their last name), innermost first."""
    return [
        CLONE.sub("", str(frame))
        for frame in thread.frames
        if not frame.kernel and frame.symbol != "_start" and basename(frame) in modules
    ]


def without_plt(names: list[str]) -> list[str]:
    """Leave out the stub through which a library is called: no symbol covers it."""
    return names[1:] if names and STUB.match(names[0]) else names


def basename(frame: Frame) -> str:
    return frame.module.path.rsplit("/", 1)[-1] if frame.module else ""
