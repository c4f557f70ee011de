# SPDX-License-Identifier: Apache-2.0
"""Captures with connections: of a serving probe, or of a new one each time."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from stallscope.collectors import probe
from stallscope.collectors.calibration import stored
from stallscope.model import capturefile, memorysessions
from stallscope.model.sessions import Moment
from tests.bench.stats import BenchError
from tests.support.servers import PATIENCE

__all__ = ["SessionsProbe", "Shot", "one_shot", "sessions_probe"]

BACKEND = "bpf"


class Shot(NamedTuple):
    """What a capture has of the connections, and how long it stopped a thread."""

    moment: Moment
    stopped_ns: int


class SessionsProbe:
    """Takes captures; the connections are there before a capture is whole."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path) -> None:
        self._process = process
        self._file = file
        self._expect("ready")

    def begin(self) -> Moment:
        """Begin a capture; return the connections that were read right after the stacks."""
        self._send(f"snap {self._file}")
        (moment,) = memorysessions.decode([self._expect("sessions")])
        return moment

    def finish(self) -> int:
        """Wait for the end of the capture. Return how long it has stopped threads, in ns."""
        self._expect("written")
        capture = capturefile.read(self._file)
        self._file.unlink()
        return capture.stopped_ns or 0

    def _send(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"the probe ended: {self._process.wait(PATIENCE)}")
        return line

    def _expect(self, kind: str) -> bytes:
        line = self._line()
        if not line.startswith(f'{{"type":"{kind}"'.encode()):
            raise BenchError(f"the probe says {line[:200]!r}, not {kind}")
        return line


@contextmanager
def sessions_probe(pids: Sequence[int], layout: Mapping[str, int]) -> Iterator[SessionsProbe]:
    """Run ``stallscope-probe serve`` with a layout until the block ends."""
    argv = [str(probe.find()), "serve", "--backend", BACKEND, *_of(pids)]
    if layout:
        argv += ["--layout", stored.text(layout)]
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        try:
            yield SessionsProbe(process, Path(folder) / "one.jsonl")
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.stdin = None
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()


def one_shot(pids: Sequence[int]) -> Shot:
    """Capture processes with a new probe; no layout is needed for PostgreSQL."""
    args = ["snap", "--backend", BACKEND, *_of(pids)]
    data, moments = memorysessions.split(probe.run(args, seconds=PATIENCE))
    return Shot(moments[0], capturefile.loads(data, "snap").stopped_ns or 0)


def _of(pids: Sequence[int]) -> list[str]:
    return [word for pid in pids for word in ("--pid", str(pid))]
