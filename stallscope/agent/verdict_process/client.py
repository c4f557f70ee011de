# SPDX-License-Identifier: Apache-2.0
"""Start the process, and ask it."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stallscope.agent import verdict_process
from stallscope.agent.verdict_process import Answers, Together, VerdictAnswer, VerdictRequest
from stallscope.base.package import module_command
from stallscope.base.text import one_line

__all__ = ["VerdictProcess"]

SECONDS = 60.0
"""The longest time for all captures of one request."""
_MAX_OUTPUT = 4 << 20


class VerdictProcess:
    """Runs one child at a time, and calls back with its answers.

    ``done`` is called in a thread of its own, once for each list of requests, with an answer to
    each that is not ``known``.
    """

    def __init__(
        self,
        signatures: Sequence[Path] = (),
        seconds: float = SECONDS,
        turn: threading.Lock | None = None,
    ) -> None:
        """``turn``: held while a child runs; agents of several servers have one child in all."""
        self._signatures = tuple(signatures)
        self._seconds = seconds
        self._turn = turn or threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()

    def analyze(self, requests: Sequence[VerdictRequest], done: Callable[[Answers], None]) -> None:
        """Begin to name these captures."""

        def work() -> None:
            try:
                with self._turn:
                    found = self._run(requests)
            except Exception as error:
                why = one_line(f"internal error: {type(error).__name__}: {error}")
                found = Answers(
                    tuple(VerdictAnswer(r.path, error=why) for r in requests if not r.known)
                )
            done(found)

        threading.Thread(target=work, name="verdicts", daemon=True).start()

    def close(self) -> None:
        """End the child, if there is one."""
        self._closing.set()
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    def _run(self, requests: Sequence[VerdictRequest]) -> Answers:
        lines = b"".join(msgspec.json.encode(request) + b"\n" for request in requests)
        out, why = self._child(lines)
        found: dict[str, VerdictAnswer] = {}
        together = Together(None)
        for line in out[:_MAX_OUTPUT].splitlines():
            try:
                answer = msgspec.json.decode(line, type=VerdictAnswer | Together)
            except (msgspec.MsgspecError, RecursionError):
                continue
            if isinstance(answer, Together):
                together = answer
            else:
                found[answer.path] = answer
        asked = [request.path for request in requests if not request.known]
        each = tuple(found.get(path, VerdictAnswer(path, error=why)) for path in asked)
        return Answers(each, together.together, together.facts)

    def _child(self, lines: bytes) -> tuple[bytes, str]:
        """Return its output, and why it is incomplete."""
        if self._closing.is_set():
            return b"", "the agent ended"
        argv, environment = module_command(verdict_process.__name__)
        try:
            process = subprocess.Popen(
                [*argv, *map(str, self._signatures)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # its low priority counts among all sessions
            )
        except OSError as error:
            return b"", f"cannot run {argv[0]}: {error.strerror}"
        with process:
            self._process = process
            if self._closing.is_set():  # it was set after the check above
                process.kill()
            try:
                out, err = process.communicate(lines, timeout=self._seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                out, _ = process.communicate()
                return out, f"the analysis took more than {self._seconds:g} s and was ended"
            finally:
                self._process = None
        said = one_line(err.decode("utf-8", "backslashreplace"), 300)
        if process.returncode < 0:
            return out, f"the analysis was killed by signal {-process.returncode}"
        return out, said or f"the analysis ended with {process.returncode} without a message"
