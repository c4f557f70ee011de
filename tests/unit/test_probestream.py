# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from stallscope.base.errors import UsageError
from stallscope.collectors.probe import ProbeError
from stallscope.collectors.probestream import Stream
from tests.unit.programs import python_program


def never() -> float:
    return math.inf


def stream(end_seconds: float = 10.0) -> Stream:
    return Stream(["waits"], max_line=1 << 20, end_seconds=end_seconds)


def lines_of(patience: float = 30.0, end_seconds: float = 10.0) -> list[bytes]:
    with stream(end_seconds) as running:
        return list(running.lines(patience, never))


def test_lines_however_they_are_cut(fake_probe: Path) -> None:
    """Done in part, exit code 3, is done."""
    python_program(
        fake_probe,
        """\
        import os, sys
        for piece in (b"one\\ntw", b"o\\n", b"\\n", b"x" * 200_000, b"\\nlast\\n"):
            os.write(1, piece)
        sys.exit(3)
        """,
    )
    assert lines_of() == [b"one", b"two", b"", b"x" * 200_000, b"last"]


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        ("sys.exit(3)", ProbeError, "ended within a line"),
        ("os.kill(os.getpid(), 9)", ProbeError, "killed by signal 9"),
        ("os.write(2, b'stallscope-probe: no process 7\\n'); sys.exit(2)", UsageError, "^no proc"),
    ],
)
def test_an_end_within_a_line(
    fake_probe: Path, code: str, kind: type[Exception], said: str
) -> None:
    python_program(fake_probe, f"import os, sys; os.write(1, b'one\\ntorn'); {code}")
    with pytest.raises(kind, match=said):
        lines_of()


def test_more_on_stderr_than_a_pipe_holds(fake_probe: Path) -> None:
    python_program(
        fake_probe,
        """\
        import sys
        sys.stderr.write("note\\n" * 100_000 + "stallscope-probe: the last\\n")
        print("one")
        sys.exit(1)
        """,
    )
    with pytest.raises(ProbeError, match=r"^the last$"):
        lines_of()


def test_a_line_without_end(fake_probe: Path) -> None:
    python_program(
        fake_probe,
        """\
        import os
        while True:
            os.write(1, b"x" * 65536)
        """,
    )
    with pytest.raises(ProbeError, match="longer than"):
        lines_of()


_SILENT = """\
import os, signal
signal.signal(signal.SIGTERM, {how})
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_silence_ends(fake_probe: Path) -> None:
    python_program(fake_probe, _SILENT.format(how="signal.SIG_DFL"))
    with stream() as running, pytest.raises(ProbeError, match=r"sent nothing for 0\.1 s"):
        list(running.lines(0.1, never))
    assert ended(running.pid)


def test_a_probe_that_does_not_end_is_killed(
    fake_probe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stallscope.collectors.probe._TERM_SECONDS", 0.2)
    python_program(fake_probe, _SILENT.format(how="signal.SIG_IGN"))
    with stream(end_seconds=0.2) as running:
        got = running.lines(30, never)
        assert next(got) == b"ready"
        running.end()
        assert running.ending
        with pytest.raises(ProbeError, match=r"did not end within 0\.2 s"):
            next(got)
    assert ended(running.pid)


def test_asked_to_end_it_has_last_words(fake_probe: Path) -> None:
    python_program(
        fake_probe,
        """\
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"final\\n"), os._exit(0)))
        os.write(1, b"ready\\n")
        while True:
            signal.pause()
        """,
    )
    with stream() as running:
        got = running.lines(30, never)
        assert next(got) == b"ready"
        running.end()
        assert list(got) == [b"final"]
        running.end()  # it has ended: nobody else is killed


def test_ctrl_c_of_the_terminal_is_not_its_own(fake_probe: Path) -> None:
    python_program(fake_probe, "import os; print(os.getsid(0) == os.getpid())")
    assert lines_of() == [b"True"]


def test_words_to_it(fake_probe: Path) -> None:
    python_program(
        fake_probe, "import sys\nprint('ready', flush=True)\nprint(sys.stdin.readline())"
    )
    with stream() as running:
        got = running.lines(30, never)
        assert next(got) == b"ready"
        running.say("target 7")
        assert next(got) == b"target 7"
        list(got)
        running.say("nobody listens")


def test_pauses_are_used(fake_probe: Path) -> None:
    """A descriptor ends a pause; what is called in it says when to come again."""
    python_program(
        fake_probe,
        """\
        import sys
        print(sys.stdin.readline().strip())
        """,
    )
    reader, writer = os.pipe()
    calls = 0
    with stream() as running:
        running.wake_on(reader)

        def tick() -> float:
            nonlocal calls
            calls += 1
            if calls == 1:
                os.write(writer, b"x")
            elif calls == 2:
                os.read(reader, 1)
                running.forget(reader)
                running.say("line")
            return math.inf

        assert list(running.lines(30, tick)) == [b"line"]
    assert calls >= 2
    os.close(reader)
    os.close(writer)


def test_closed_while_busy_it_ends(fake_probe: Path) -> None:
    python_program(fake_probe, _SILENT.format(how="signal.SIG_DFL"))
    running = stream()
    assert next(running.lines(30, never)) == b"ready"
    running.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert ended(running.pid)
