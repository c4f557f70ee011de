# SPDX-License-Identifier: Apache-2.0
"""One live server as stallscope, eu-stack and gdb dump it, and the verdict on each dump."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from stallscope.collectors import gdb as gdb_collector
from stallscope.collectors import probe, snapshot
from tests.support.servers import (
    PATIENCE,
    ChildEnded,
    Late,
    SqlServer,
    Unavailable,
    program,
    wait_until,
)
from tests.support.stalls import Device

__all__ = ["TOOLS", "Verdict", "eu_stack", "gdb", "held", "own", "verdict"]

CHECKOUT = Path(__file__).resolve().parents[2]


class Verdict(NamedTuple):
    """The first finding of a dump. ``signature``: None where no signature knows the stall."""

    found: bool
    signature: str | None = None
    confidence: float = 0.0
    threads: int = 0

    @property
    def name(self) -> str:
        if not self.found:
            return "no finding"
        return self.signature or "an unknown stall"

    def __str__(self) -> str:
        return f"{self.name} ({self.confidence:.2f}, {self.threads})" if self.found else self.name


def own(server: SqlServer, file: Path) -> None:
    """Save a capture that stops nothing."""
    options = snapshot.Options(backend="bpf", seconds=PATIENCE)
    file.write_bytes(probe.run(snapshot.arguments((server.pid,), options), seconds=PATIENCE))


def eu_stack(server: SqlServer, file: Path) -> None:
    """Save what eu-stack prints. It stops one thread after the other."""
    _run(server.seeing_its_files(_path("eu-stack"), "-p", str(server.pid)), server.pid, file)


def gdb(server: SqlServer, file: Path) -> None:
    """Save what gdb prints for ``thread apply all backtrace``. It stops all threads at once."""
    _run(gdb_collector.command(_path("gdb"), server.pid), server.pid, file)


TOOLS: dict[str, Callable[[SqlServer, Path], None]] = {
    "own capture": own,
    "eu-stack": eu_stack,
    "gdb": gdb,
}
"""What harms least comes first."""


def verdict(file: Path) -> Verdict:
    """Return what ``stallscope analyze`` says of a file."""
    command = [sys.executable, "-P", "-m", "stallscope", "analyze", "--json", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if done.returncode not in (0, 3):
        raise ChildEnded(f"analyze {file.name} ended with {done.returncode}: {done.stderr}")
    findings = json.loads(done.stdout)["findings"]
    if not findings:
        return Verdict(found=False)
    first = findings[0]
    return Verdict(True, first["signature"], first["confidence"], first["threads"])


@contextmanager
def held(pid: int, device: Device | None = None) -> Iterator[None]:
    """Stop a process, so that all tools see the same moment; it goes on at the end.

    Threads that wait for a frozen ``device`` cannot stop, and no debugger gets hold of them: they
    do so when it answers, before they return from their system calls. It is frozen again at the
    end.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        if device is None:
            _wait_for(pid, "Tt")
            yield
            return
        _wait_for(pid, "TtD")
        device.thaw()
        try:
            _wait_for(pid, "Tt")
            yield
        finally:
            device.freeze()
    finally:
        os.kill(pid, signal.SIGCONT)


def _wait_for(pid: int, states: str) -> None:
    """Wait until each thread is in one of these states of /proc/PID/status."""
    wait_until(lambda: _states(pid) <= set(states), f"all threads of {pid} are in {states}")


def _states(pid: int) -> set[str]:
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for line in (task / "status").read_text(errors="replace").splitlines():
                if line.startswith("State:"):
                    found.add(line.split()[1])
    return found


def _path(name: str) -> str:
    found = program(name)
    if found is None:
        raise Unavailable(f"no {name} here: run scripts/setup --all")
    return found


def _run(command: Sequence[str], pid: int, file: Path) -> None:
    """Let a tracer print into a file. One that is late is ended, and the target goes on."""
    # No symbols from the network: what is here is what is compared.
    environment = {**os.environ, "DEBUGINFOD_URLS": "", "LC_ALL": "C.UTF-8"}
    with file.open("wb") as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        try:
            # The code says nothing: eu-stack's is 1 where one stack has no proper end.
            # A thread in an uninterruptible sleep keeps eu-stack and gdb waiting forever.
            process.wait(PATIENCE)
        except BaseException as error:
            process.kill()
            process.wait()
            # The SIGSTOP of its PTRACE_ATTACH can be left over.
            os.kill(pid, signal.SIGCONT)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Late(f"{command[0]} on {pid} took more than {PATIENCE:g} s") from None
            raise
        errors.seek(0)
        said = errors.read()[-500:].decode(errors="replace").strip()
    if file.stat().st_size == 0:
        raise ChildEnded(f"{command[0]} printed nothing: {said}")
