# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stallscope.base import package
from stallscope.base.errors import StallscopeError, UsageError
from stallscope.collectors import probe
from tests.support.servers import PATIENCE, wait_until
from tests.unit.programs import python_program


def test_output_and_input_pass_through(fake_probe: Path) -> None:
    """More than a pipe holds, too."""
    python_program(fake_probe, "import sys; print(sys.argv[1:], sys.stdin.read())")
    data = b"x" * (4 << 20)
    assert probe.run(["a", "b"], seconds=PATIENCE, stdin=data) == b"['a', 'b'] %s\n" % data


def test_partial_success_is_success(fake_probe: Path) -> None:
    python_program(fake_probe, "import sys; print('part'); sys.exit(3)")
    assert probe.run([], seconds=PATIENCE) == b"part\n"
    with pytest.raises(probe.ProbeError, match="exit code 3"):
        probe.run([], seconds=PATIENCE, partial=False)


def test_its_own_line_is_the_error(fake_probe: Path) -> None:
    line = "stallscope-probe: no process 7: \\x1b[31m\\n"
    python_program(fake_probe, f"import sys; sys.stderr.write('note\\n{line}'); sys.exit(1)")
    with pytest.raises(probe.ProbeError) as error:
        probe.run([], seconds=PATIENCE)
    assert str(error.value) == "no process 7: \\x1b[31m"


def test_its_advice_names_our_options(fake_probe: Path) -> None:
    line = "kernel 6 crashes; --force runs it anyway; see stallscope-probe --help"
    python_program(fake_probe, f"import sys; sys.stderr.write({line!r}); sys.exit(2)")
    with pytest.raises(UsageError, match=r"--force-kernel runs it .* see `stallscope snap --help`"):
        probe.run([], seconds=PATIENCE)


def test_silent_failure_and_death_have_a_line(fake_probe: Path) -> None:
    python_program(fake_probe, "import sys; sys.exit(1)")
    with pytest.raises(probe.ProbeError, match="exit code 1"):
        probe.run([], seconds=PATIENCE)
    python_program(fake_probe, "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(probe.ProbeError, match="killed by signal 9"):
        probe.run([], seconds=PATIENCE)


def test_deadline_ends_it_even_where_it_will_not(
    fake_probe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_TERM_SECONDS", 0.2)
    started: list[subprocess.Popen[bytes]] = []
    start = probe.start

    def ignoring(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*args, **options))
        name = Path(f"/proc/{started[0].pid}/comm")
        wait_until(lambda: name.read_text() == "sleep\n", "it ignores the signal")
        return started[0]

    monkeypatch.setattr(probe, "start", ignoring)
    fake_probe.write_text("#!/bin/sh\ntrap '' TERM\nexec sleep 1000\n")
    fake_probe.chmod(0o755)
    with pytest.raises(probe.ProbeError, match=r"more than 0\.2 s"):
        probe.run(["snap"], seconds=0.2)
    assert started[0].returncode == -signal.SIGKILL


def test_ctrl_c_ends_it_cleanly(fake_probe: Path, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    python_program(
        fake_probe,
        f"""\
        import os, signal, sys
        def end(*_):
            open({str(ended)!r}, "w").close()
            os._exit(0)
        signal.signal(signal.SIGTERM, end)
        sys.stderr.write("ready")
        os.kill(os.getppid(), signal.SIGINT)
        while True:
            signal.pause()
        """,
    )
    code = "from stallscope.collectors import probe; probe.run(['snap'], seconds=60)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(package.FOLDER.parent)},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == -signal.SIGINT
    assert ended.exists()


def test_a_named_probe_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STALLSCOPE_PROBE", str(tmp_path / "absent"))
    with pytest.raises(probe.ProbeMissingError, match="no program there"):
        probe.find()


def test_a_probe_that_is_no_program(fake_probe: Path) -> None:
    fake_probe.write_bytes(b"\x7fELF nonsense")
    fake_probe.chmod(0o755)
    with pytest.raises(StallscopeError, match="cannot run"):
        probe.run([], seconds=PATIENCE)


def test_the_program_that_writes_has_a_name_of_its_own(
    fake_probe: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "poke"
    monkeypatch.setenv("STALLSCOPE_POKE", str(program))
    with pytest.raises(probe.ProbeMissingError, match=r"^STALLSCOPE_POKE="):
        probe.find(probe.POKE)
    line = "stallscope-poke: CAP_SYS_PTRACE is missing; see stallscope-poke --help"
    python_program(program, f"import sys; sys.exit({line!r})")
    with pytest.raises(probe.ProbeError) as error:
        probe.run([], seconds=PATIENCE, program=probe.POKE)
    # No advice to give it capabilities.
    assert str(error.value) == "CAP_SYS_PTRACE is missing; see `stallscope poke --help`"


def test_a_program_of_the_package_that_is_for_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packaged = fake_checkout(tmp_path, monkeypatch) / "stallscope" / "_bin" / probe.POKE
    packaged.parent.mkdir()
    packaged.touch(mode=0o600)
    with pytest.raises(probe.ProbeMissingError, match=f"^{packaged}: you may not run it: do this"):
        probe.find(probe.POKE)


def fake_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("STALLSCOPE_PROBE", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    folder = tmp_path / "checkout" / "stallscope"
    folder.mkdir(parents=True)
    monkeypatch.setattr(package, "FOLDER", folder)
    return folder.parent


def test_where_it_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = fake_checkout(tmp_path, monkeypatch)
    with pytest.raises(probe.ProbeMissingError, match="scripts/setup"):
        probe.find()

    def add(folder: Path, age: int) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = python_program(folder / "stallscope-probe", "")
        os.utime(path, (time.time() - age, time.time() - age))
        return path

    on_path = add(tmp_path / "bin", 0)
    assert probe.find() == on_path
    packaged = add(checkout / "stallscope" / "_bin", 0)
    assert probe.find() == packaged
    old = add(checkout / "build-old", 100)
    assert probe.find() == packaged  # not a checkout without meson.build
    (checkout / "meson.build").touch()
    assert probe.find() == old
    newer = add(checkout / "build-new" / "pmp", 50)
    assert probe.find() == newer
    usual = add(checkout / "build", 200)
    assert probe.find() == usual
