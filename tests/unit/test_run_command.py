# SPDX-License-Identifier: Apache-2.0
"""``stallscope run``: what the program is given, and what is refused before it starts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stallscope.base.errors import Exit, StallscopeError
from stallscope.collectors import preload
from stallscope.main import main
from tests.support.servers import PATIENCE
from tests.unit.programs import python_program

CHECKOUT = Path(__file__).resolve().parents[2]
UNPRIVILEGED = 65534

_PRINT = """\
import json, os, signal, sys
print(json.dumps({
    "argv": sys.argv[1:],
    "env": {k: v for k, v in os.environ.items() if k.startswith(("STALLSCOPE_", "LD_"))},
    "ignored": [s.name for s in signal.Signals if signal.getsignal(s) is signal.SIG_IGN],
}))
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require: Callable[..., None]) -> Path:
    """Return a library that does nothing, under our library's name."""
    require("cc")
    source = tmp_path / "empty.c"
    source.write_text("int stallscope_is_here;\n")
    path = tmp_path / preload.LIBRARY
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source], check=True)
    for name in [name for name in os.environ if name.startswith(("LD_", "STALLSCOPE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STALLSCOPE_LIBRARY", str(path))
    return path


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stallscope", "run", *args],
        cwd=CHECKOUT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.fixture
def printer(tmp_path: Path) -> str:
    """Return a program that prints what it was given."""
    path = tmp_path / "printer.py"
    path.write_text(_PRINT)
    return str(path)


def printed(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert done.stderr == ""
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def test_the_program_has_the_library_its_arguments_and_the_settings(
    library: Path, printer: str, tmp_path: Path
) -> None:
    options = ["--ring-dir", str(tmp_path), "--threshold", "50", "--threshold", "fsync=20"]
    options += ["--threads", "99", "--keep-ring", "--off"]
    answer = printed(run(*options, "--", sys.executable, printer, "--debug", "--", "-x", "a b"))
    assert answer["argv"] == ["--debug", "--", "-x", "a b"]
    assert answer["env"] == {
        "LD_PRELOAD": str(library),
        "STALLSCOPE_LIBRARY": str(library),
        "STALLSCOPE_RUNTIME_DIR": str(tmp_path),
        "STALLSCOPE_THRESHOLD": "50,fsync=20",
        "STALLSCOPE_THREADS": "99",
        "STALLSCOPE_KEEP_RING": "1",
        "STALLSCOPE_OFF": "1",
    }


def test_the_dashes_may_be_left_out_and_nothing_is_set_that_was_not_asked_for(
    library: Path, printer: str
) -> None:
    answer = printed(run(sys.executable, printer, "--off"))
    assert answer["argv"] == ["--off"]
    assert answer["env"] == {"LD_PRELOAD": str(library), "STALLSCOPE_LIBRARY": str(library)}


def test_libraries_that_are_preloaded_already_stay_first(library: Path) -> None:
    def preloaded(before: str) -> str:
        return preload.environment(library, {"LD_PRELOAD": before})["LD_PRELOAD"]

    assert preloaded("") == str(library)
    assert (
        preloaded("/a/libasan.so.8 libtcmalloc.so") == f"/a/libasan.so.8:libtcmalloc.so:{library}"
    )
    assert preloaded(f"/old/{preload.LIBRARY}:b.so:") == f"b.so:{library}"


def test_the_exit_code_and_the_signals_are_the_programs(library: Path, printer: str) -> None:
    assert run("--", sys.executable, printer, CODE="7").returncode == 7
    killed = run("--", "sh", "-c", "kill -TERM $$")
    assert killed.returncode == -signal.SIGTERM
    # Python has SIGPIPE ignored, and a program would inherit that.
    status = run("--", "cat", "/proc/self/status").stdout
    (ignored,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn:")]
    assert not int(ignored, 16) >> (signal.SIGPIPE - 1) & 1


def test_the_library_is_loaded(library: Path) -> None:
    done = run("--", "cat", "/proc/self/maps")
    assert str(library) in done.stdout


def elf(path: Path, *, interpreter: str | None, machine: int = 62, bits: int = 2) -> Path:
    """Write the beginning of an ELF program."""
    name = (interpreter or "").encode() + b"\0"
    header = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    kind = 3 if interpreter else 1
    table = struct.pack("<IIQQQQQQ", kind, 4, 120, 0, 0, len(name), len(name), 1)
    path.write_bytes(header + table + name)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: elf(path, interpreter=None), "linked statically"),
        (
            lambda path: elf(path, interpreter="/lib/ld-musl-x86_64.so.1"),
            "not linked against glibc",
        ),
        (
            lambda path: elf(path, interpreter="/lib/ld-linux.so.2", machine=3, bits=1),
            "not an x86-64",
        ),
        (
            lambda path: elf(path, interpreter="/lib/ld-linux-aarch64.so.1", machine=183),
            "not an x86-64",
        ),
    ],
)
def test_programs_that_cannot_load_it_are_refused(
    tmp_path: Path, library: Path, make: Callable[[Path], Path], said: str
) -> None:
    program = make(tmp_path / "server")
    with pytest.raises(StallscopeError, match=said):
        preload.check_program(program)
    script = tmp_path / "start"
    script.write_text(f"#!{program} --x\n")
    with pytest.raises(StallscopeError, match=said):
        preload.check_program(script)
    script.chmod(0o755)
    done = run("--", str(script))
    assert done.returncode == Exit.FAILED
    assert done.stderr.count("\n") == 1


def test_real_programs_are_not_refused(tmp_path: Path) -> None:
    preload.check_program(Path(sys.executable))
    preload.check_program(python_program(tmp_path / "script", "pass"))
    preload.check_program(CHECKOUT / "scripts" / "setup")


def test_broken_programs_are_for_the_kernel_to_refuse(tmp_path: Path, library: Path) -> None:
    for number, data in enumerate((b"", b"#!\n", b"garbage", b"#!" + b"x" * 5000)):
        path = tmp_path / f"broken{number}"
        path.write_bytes(data)
        path.chmod(0o755)
        done = run("--", str(path))
        assert done.returncode == Exit.FAILED
        assert done.stderr.startswith("stallscope: ")
        assert done.stderr.count("\n") == 1
    for size in range(4, 200, 7):
        whole = elf(tmp_path / "torn", interpreter="/lib64/ld-linux-x86-64.so.2").read_bytes()
        (tmp_path / "torn").write_bytes(whole[:size])
        try:
            preload.check_program(tmp_path / "torn")
        except StallscopeError:
            continue


def test_rights_that_switch_the_preload_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require: Callable[..., None]
) -> None:
    require("root")
    program = Path(shutil.copy("/bin/true", tmp_path / "server"))
    monkeypatch.setattr(preload, "_no_new_privileges", lambda: False)
    program.chmod(0o4755)
    preload.check_program(program)  # root's own: no change of user
    os.chown(program, UNPRIVILEGED, 0)
    program.chmod(0o4755)
    with pytest.raises(StallscopeError, match="set-user-ID"):
        preload.check_program(program)
    monkeypatch.setattr(preload, "_no_new_privileges", lambda: True)
    preload.check_program(program)
    monkeypatch.setattr(preload, "_no_new_privileges", lambda: False)
    os.chown(program, 0, UNPRIVILEGED)
    program.chmod(0o2755)
    with pytest.raises(StallscopeError, match="set-group-ID"):
        preload.check_program(program)
    program.chmod(0o2745)  # without x for the group it means another thing
    preload.check_program(program)
    program.chmod(0o755)
    # VFS_CAP_REVISION_2 with cap_sys_nice: linux/capability.h
    os.setxattr(program, "security.capability", struct.pack("<5I", 0x02000001, 1 << 23, 0, 0, 0))
    preload.check_program(program)  # root has it anyway
    monkeypatch.setattr(os, "getuid", lambda: UNPRIVILEGED)
    with pytest.raises(StallscopeError, match=r"file capabilities.*AmbientCapabilities"):
        preload.check_program(program)


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        ([], Exit.USAGE, "COMMAND"),
        (["--"], Exit.USAGE, "COMMAND|which program"),
        (["--threshold", "fast", "--", "true"], Exit.USAGE, "milliseconds"),
        (["--threshold", "0.5", "--", "true"], Exit.USAGE, "whole milliseconds"),
        (["--threshold", "nonsense=5", "--", "true"], Exit.USAGE, "KIND=TIME"),
        (["--threads", "0", "--", "true"], Exit.USAGE, "1 to 16384"),
        (["--threads", "16385", "--", "true"], Exit.USAGE, "1 to 16384"),
        (["--ring-dir", "/nowhere", "--", "true"], Exit.USAGE, "no such folder"),
        (["--", "no-such-program-at-all"], Exit.FAILED, "not in PATH"),
        (["--", "/no/such/program"], Exit.FAILED, "no such file"),
        (["--", "/etc/passwd"], Exit.FAILED, "cannot be executed"),
    ],
)
def test_usage_errors(
    library: Path,
    capsys: pytest.CaptureFixture[str],
    args: list[str],
    code: Exit,
    said: str,
) -> None:
    assert main(["run", *args]) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert any(word in err for word in said.split("|")), err


def test_a_library_that_is_not_there_or_cannot_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STALLSCOPE_LIBRARY", "/nowhere/libstallscope.so")
    assert main(["run", "--", "true"]) == Exit.FAILED
    assert "no file there" in capsys.readouterr().err
    path = tmp_path / "a b" / preload.LIBRARY
    path.parent.mkdir()
    path.touch()
    monkeypatch.setenv("STALLSCOPE_LIBRARY", str(path))
    assert main(["run", "--", "true"]) == Exit.FAILED
    assert "no path with a blank" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StallscopeError, match="cannot be written"):
        preload.check_folder(tmp_path)
