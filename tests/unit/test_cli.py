# SPDX-License-Identifier: Apache-2.0
"""The command line as its users see it: exit codes, one line an error, never a traceback."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallscope.base import inputfile
from stallscope.base.errors import Exit
from stallscope.main import COMMANDS, main
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Process
from tests.support.chance import SEED
from tests.unit.captures import convoy
from tests.unit.programs import python_program

ROOT = Path(__file__).parent.parent.parent

GDB_TEXT = """\
Thread 2 (Thread 0x7f0000001700 (LWP 102)):
#0  0x00007f1 in __lll_lock_wait () from /lib64/libpthread.so.0
#1  0x00007f2 in pthread_mutex_lock () from /lib64/libpthread.so.0
#2  0x0000001 in do_work (arg=0x0) at work.c:10
#3  0x00007f3 in start_thread () from /lib64/libpthread.so.0
Thread 1 (Thread 0x7f0000000700 (LWP 101)):
#0  0x00007f4 in poll () from /lib64/libc.so.6
#1  0x0000002 in main () at work.c:20
"""


class Result(msgspec.Struct):
    code: int
    out: str
    err: str


class Cli:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: str | Path) -> Result:
        code = main([str(arg) for arg in args])
        out, err = self._capsys.readouterr()
        return Result(code, out, err)

    def refused(self, *args: str | Path) -> Result:
        """Run what must fail with one line on stderr and nothing on stdout."""
        result = self(*args)
        assert result.out == ""
        assert result.err.startswith("stallscope: ")
        assert result.err.count("\n") == 1
        assert "Traceback" not in result.err
        return result


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "stall.jsonl.zst"
    capturefile.write(convoy(), path)
    return path


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


@pytest.fixture
def fake_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sleeper: int) -> Path:
    """A probe that answers with a capture of the sleeper, and writes down what it was asked."""
    capture = msgspec.structs.replace(
        convoy(),
        processes=(msgspec.structs.replace(convoy().processes[0], pid=sleeper),),
        notes=(),
    )
    (tmp_path / "answer").write_bytes(capturefile.dumps(capture))
    program = python_program(
        tmp_path / "stallscope-probe",
        f"""\
        import json, sys
        open({str(tmp_path / "asked")!r}, "w").write(json.dumps(sys.argv[1:]))
        sys.stdout.write(open({str(tmp_path / "answer")!r}).read())
        """,
    )
    monkeypatch.setenv("STALLSCOPE_PROBE", str(program))
    return program


def asked(fake_probe: Path) -> list[str]:
    words = json.loads((fake_probe.parent / "asked").read_text())
    assert isinstance(words, list)
    return words


@pytest.mark.parametrize(
    "args",
    [
        ["frobnicate"],
        ["snap"],
        ["snap", "-p", "1", "--lines", "-1"],
        ["snap", "-p", "1", "--lines", "x"],
        ["snap", "-p", "1", "--top", "1e9"],
        ["snap", "-p", "1", "--port", "70000"],
        ["snap", "-p", "1", "--deadline", "0"],
        ["snap", "-p", "1", "--deadline", "nan"],
        ["snap", "-p", "1", "--captures", "0"],
        ["snap", "-p", "1", "--captures", "10001"],
        ["snap", "-p", "1", "--captures", "5", "--once"],
        ["snap", "-p", "1", "--for", "1000", "--interval", "1"],
        ["snap", "-p", "1", "--interval", "0"],
        ["snap", "-p", "a/b"],
        ["snap", "-p", ""],
        ["snap", "--backend", "core"],
        ["snap", "--core", "x", "-p", "1"],
        ["snap", "--core", "x", "--backend", "bpf"],
        ["snap", "-p", "1", "--exe", "x"],
        ["snap", "--jso", "-p", "1"],
        ["symbolize", "x", "--debug-dir", "/proc/nonexistent"],
        ["signatures", "no-such-signature"],
        ["signatures", "innodb-row-loc"],
        ["signatures", "x", "--check", "y"],
    ],
)
def test_wrong_usage(cli: Cli, args: list[str]) -> None:
    assert cli.refused(*args).code == Exit.USAGE


@pytest.mark.parametrize(
    "args",
    [
        ["snap", "-p", "nosuchserver"],
        ["snap", "-p", "4194304"],
        ["snap", "--core", "/proc/nonexistent"],
        ["analyze", "/proc/nonexistent"],
        ["analyze", "/dev/null"],
        ["analyze", "bad\nname"],
        ["symbolize", "/dev/null", "--debug-dir", "/"],
        ["symbolize", "/proc/nonexistent", "--debug-dir", "/"],
        ["signatures", "--check", "/proc/nonexistent"],
        ["signatures", "--signatures", "/proc/nonexistent"],
        ["analyze", "--signatures", "/proc/nonexistent", "/dev/null"],
    ],
)
def test_failures(cli: Cli, args: list[str]) -> None:
    assert cli.refused(*args).code == Exit.FAILED


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert f"examples:\n  stallscope {name}" in capsys.readouterr().out.replace("sudo ", "")


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"stallscope {(ROOT / 'VERSION').read_text().strip()}\n"


def test_debug_adds_the_traceback(cli: Cli) -> None:
    assert "Traceback" in cli("analyze", "--debug", "/proc/nonexistent").err


def test_a_bug_is_one_line_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(path: Path) -> bytes:
        raise ValueError("odd\nthing")

    monkeypatch.setattr(inputfile, "chunks", bug)
    result = cli.refused("analyze", "x")
    assert result.code == Exit.FAILED
    assert "internal error: ValueError: odd thing" in result.err


def test_ctrl_c(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(path: Path) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(inputfile, "chunks", interrupt)
    assert cli.refused("analyze", "x").code == 130


def test_a_reader_that_has_seen_enough(saved: Path) -> None:
    command = [sys.executable, "-m", "stallscope", "analyze", "--full", *[str(saved)] * 400]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


class TestAnalyze:
    def test_capture(self, cli: Cli, saved: Path) -> None:
        result = cli("analyze", saved)
        assert result.code == Exit.PARTIAL  # it has a note
        assert "mysqld 5.5.9 (pid 100)" in result.out
        assert "1 thread ended meanwhile" in result.out
        assert str(saved) in result.out

    def test_json(self, cli: Cli, saved: Path) -> None:
        value = json.loads(cli("analyze", "--json", saved).out)
        assert value["schema"] == "stallscope.analysis/1"
        assert value["inputs"] == [{"path": str(saved), "format": "stallscope", "captures": 1}]
        assert value["capture"] == str(saved)
        assert value["target"]["pid"] == 100
        assert value["threads"]["total"] == 5

    def test_gdb_text(self, cli: Cli, tmp_path: Path) -> None:
        dump = tmp_path / "dump.txt"
        dump.write_text(GDB_TEXT)
        value = json.loads(cli("analyze", "--json", dump).out)
        assert value["inputs"] == [{"path": str(dump), "format": "gdb", "captures": 1}]
        assert value["capture"] is None
        assert value["elapsed_ms"] > 0
        assert value["threads"]["total"] == 2

    def test_standard_input(self, cli: Cli, monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
        for data in (GDB_TEXT.encode(), saved.read_bytes()):
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
            value = json.loads(cli("analyze", "--json", "-").out)
            assert value["inputs"][0]["path"] == "-"
            assert value["capture"] is None

    def test_several_captures_are_json_lines(self, cli: Cli, saved: Path, tmp_path: Path) -> None:
        dump = tmp_path / "dump.txt"
        dump.write_text(GDB_TEXT + GDB_TEXT)
        lines = cli("analyze", "--json", saved, dump).out.splitlines()
        captures = [json.loads(line)["inputs"][0]["captures"] for line in lines]
        assert captures == [1, 2, 2]
        out = cli("analyze", saved, dump).out
        assert f"== {dump}, dump 2 of 2\n" in out

    def test_directory_skips_files_without_stacks(
        self, cli: Cli, saved: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "status.txt").write_text("Uptime 12\n")
        (tmp_path / "sub" / "dump.txt").write_text(GDB_TEXT)
        (tmp_path / "link").symlink_to(saved)
        result = cli("analyze", "--json", tmp_path)
        assert len(result.out.splitlines()) == 2
        assert "skipped 1 files" in result.err

    def test_directory_without_stacks(self, cli: Cli, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("nothing\n")
        assert cli.refused("analyze", tmp_path).code == Exit.FAILED

    def test_one_bad_file_does_not_stop_the_rest(
        self, cli: Cli, saved: Path, tmp_path: Path
    ) -> None:
        torn = tmp_path / "torn.jsonl"
        torn.write_bytes(capturefile.dumps(convoy())[:-300])
        result = cli("analyze", "--json", torn, saved)
        assert result.code == Exit.PARTIAL
        assert len(result.out.splitlines()) == 1
        assert "torn" in result.err
        assert cli.refused("analyze", torn).code == Exit.FAILED

    def test_lines_group_by_the_first_frames(self, cli: Cli, saved: Path) -> None:
        groups = json.loads(cli("analyze", "--json", "--lines", "1", saved).out)["groups"]
        assert max(len(group["frames"]) for group in groups) == 1

    def test_fail_on_stall(self, cli: Cli, tmp_path: Path) -> None:
        path = tmp_path / "many.jsonl"
        capturefile.write(convoy(60), path)
        value = json.loads(cli("analyze", "--json", path).out)
        assert value["findings"]
        assert cli("analyze", "--fail-on-stall", path).code == Exit.STALL
        healthy = tmp_path / "healthy.jsonl"
        capturefile.write(Capture(backend="bpf", processes=(Process(1),), threads=()), healthy)
        assert cli("analyze", "--fail-on-stall", healthy).code == Exit.DONE


def test_alone_it_shows_how_to_begin(cli: Cli) -> None:
    done = cli()
    assert done.code == Exit.DONE
    examples = [line for line in done.out.splitlines() if line.startswith("  stallscope ")]
    assert len(examples) == 3


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["sanp"], "no command 'sanp': did you mean snap?"),
        (["snap", "-p", "1", "--no-sqll"], "--no-sqll: did you mean --no-sql?"),
        (["snap", "-p", "1", "--dedline=3"], "did you mean --deadline?"),
    ],
)
def test_what_was_meant_is_said(cli: Cli, args: list[str], meant: str) -> None:
    assert meant in cli.refused(*args).err


def test_random_bytes_are_refused_at_their_beginning(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "rubbish"
    path.write_bytes(random.Random(SEED).randbytes(3 << 20))
    assert "random, compressed or encrypted" in cli.refused("analyze", path).err


class TestSnap:
    def test_what_the_probe_is_asked(self, cli: Cli, fake_probe: Path, sleeper: int) -> None:
        result = cli("snap", "-p", str(sleeper), "--top", "10")
        assert result.code == Exit.DONE
        for said in (f"(pid {sleeper})", "0 threads stopped", "works here and stops no thread"):
            assert said in result.out
        words = asked(fake_probe)
        assert words[:3] == ["snap", "--backend", "auto"]
        assert words[words.index("--pid") + 1] == str(sleeper)
        assert words[words.index("--read-string") + 1] == "server_version"
        assert "--allow-stop" not in words
        options = ["--allow-stop", "--stop-blocked-reads", "--no-kernel-stacks"]
        numbers = ["--max-threads", "7", "--max-stack", "8", "--passes", "9"]
        cli("snap", "-p", str(sleeper), "--backend", "ptrace", *options, *numbers)
        words = asked(fake_probe)
        assert {*options, *numbers, "ptrace"} <= set(words)

    def test_saved_file_has_the_same_verdict(
        self, cli: Cli, fake_probe: Path, sleeper: int, tmp_path: Path
    ) -> None:
        path = tmp_path / "a.jsonl.zst"
        first = json.loads(cli("snap", "--json", "-p", str(sleeper), "-o", path).out)
        assert first["capture"] == str(path)
        again = json.loads(cli("analyze", "--json", path).out)
        assert {**again, "inputs": []} == first

    def test_a_capture_is_never_lost_to_a_file_that_exists(
        self, cli: Cli, fake_probe: Path, sleeper: int, tmp_path: Path
    ) -> None:
        path = tmp_path / "a.jsonl.zst"
        path.write_text("precious")
        for number in (2, 3):
            done = cli("snap", "-p", str(sleeper), "-o", path)
            found = tmp_path / f"a.{number}.jsonl.zst"
            assert done.code == Exit.DONE
            assert f"{path} exists: the capture goes to {found}" in done.err
            assert capturefile.read(found).backend == "bpf"
        assert path.read_text() == "precious"
        assert cli("snap", "-p", str(sleeper), "-o", path, "--force").code == Exit.DONE
        assert capturefile.read(path).backend == "bpf"

    def test_part_is_exit_code_3(self, cli: Cli, fake_probe: Path, sleeper: int) -> None:
        (fake_probe.parent / "answer").write_bytes(capturefile.dumps(convoy()))
        assert cli("snap", "-p", str(sleeper)).code == Exit.PARTIAL

    @pytest.mark.parametrize(
        ("uid", "advice"), [(1000, "run it as root, or setcap cap_bpf,cap_"), (0, "root may")]
    )
    def test_probe_that_fails(
        self,
        cli: Cli,
        fake_probe: Path,
        sleeper: int,
        monkeypatch: pytest.MonkeyPatch,
        uid: int,
        advice: str,
    ) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        code = "import sys; sys.stderr.write('stallscope-probe: no CAP_SYS_PTRACE\\n'); sys.exit(1)"
        python_program(fake_probe, code)
        result = cli.refused("snap", "-p", str(sleeper))
        assert result.code == Exit.FAILED
        assert f"no CAP_SYS_PTRACE; {advice}" in result.err

    def test_probe_that_is_killed_during_its_output(
        self, cli: Cli, fake_probe: Path, sleeper: int
    ) -> None:
        answer = fake_probe.parent / "answer"
        answer.write_bytes(answer.read_bytes()[:-200])
        assert "torn" in cli.refused("snap", "-p", str(sleeper)).err

    def test_a_core(self, cli: Cli, fake_probe: Path, tmp_path: Path) -> None:
        core = tmp_path / "dump.txt"
        core.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\0" + bytes(100))
        result = cli("analyze", "--json", core, "--exe", "/bin/x")
        expected = ["core", "--core", str(core), "--exe", "/bin/x"]
        assert asked(fake_probe)[:5] == expected
        assert json.loads(result.out)["inputs"][0]["format"] == "core"
        cli("snap", "--core", core, "--exe", "/bin/x", "--sysroot", "/r")
        assert asked(fake_probe)[:7] == [*expected, "--sysroot", "/r"]

    @pytest.mark.needs("gdb")
    def test_gdb_only_by_the_users_word(
        self, cli: Cli, fake_probe: Path, sleeper: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        python_program(fake_probe, "import sys; sys.exit('stallscope-probe: no backend works')")
        assert "no backend works" in cli.refused("snap", "-p", str(sleeper)).err
        value = json.loads(cli("snap", "--json", "--allow-stop", "-p", str(sleeper)).out)
        assert value["backend"] == "gdb"
        assert "no backend works" in value["backend_reason"]
        assert value["stopped_ns"] > 0
        assert value["threads"]["stopped"] == 1
        monkeypatch.setenv("STALLSCOPE_PROBE", "/proc/nonexistent")
        value = json.loads(cli("snap", "--json", "--backend", "gdb", "-p", str(sleeper)).out)
        assert value["backend_reason"] == "requested by name"


class TestSignatures:
    def test_list_and_one(self, cli: Cli) -> None:
        listed = json.loads(cli("signatures", "--json").out)["signatures"]
        ids = [signature["id"] for signature in listed]
        assert {"innodb-index-lock", "table-open-lock", "innodb-deadlock-check"} <= set(ids)
        out = cli("signatures").out
        assert all(name in out for name in ids)
        one = json.loads(cli("signatures", "--json", "table-open-lock").out)
        assert one == listed[ids.index("table-open-lock")]
        assert one["remedies"][0].split()[0] in cli("signatures", "table-open-lock").out

    def test_check(self, cli: Cli, tmp_path: Path) -> None:
        good = next((ROOT / "analyzers" / "signatures").glob("*.toml"))
        bad = tmp_path / "bad.toml"
        bad.write_text("nonsense = [\n")
        assert cli("signatures", "--check", good).code == Exit.DONE
        assert "bad.toml" in cli.refused("signatures", "--check", bad).err


class TestDoctor:
    def features(self, fake_probe: Path, value: object) -> None:
        (fake_probe.parent / "answer").write_text(json.dumps(value))

    def test_lines(self, cli: Cli, fake_probe: Path) -> None:
        value = {
            "schema": "stallscope.features/1",
            "kernel": "6.18.0",
            "features": {
                "bpf-iterator": {"ok": True},
                "ptrace": {"ok": False, "why": "yama\x1b[31m", "fix": "sysctl x=0"},
            },
        }
        self.features(fake_probe, value)
        result = cli("doctor")
        assert result.code == Exit.PARTIAL
        lines = result.out.splitlines()
        assert any(line.split()[:2] == ["ok", "bpf-iterator"] for line in lines)
        assert any(line.split()[:3] == ["degraded", "ptrace", "yama\\x1b[31m"] for line in lines)
        assert any("-> sysctl x=0" in line for line in lines)
        checks = json.loads(cli("doctor", "--json").out)["checks"]
        assert {check["name"]: check["status"] for check in checks}["ptrace"] == "degraded"

    def test_without_a_probe(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STALLSCOPE_PROBE", "/proc/nonexistent")
        result = cli("doctor")
        assert result.code == Exit.FAILED
        assert "missing  stallscope-probe" in result.out
        assert "scripts/setup" in result.out

    @pytest.mark.parametrize("value", [{"schema": "other/1", "features": {}}, [], "x", {}])
    def test_a_probe_that_speaks_otherwise(self, cli: Cli, fake_probe: Path, value: object) -> None:
        self.features(fake_probe, value)
        result = cli("doctor")
        assert result.code == Exit.FAILED
        assert "missing  features" in result.out

    def test_process(self, cli: Cli, fake_probe: Path, sleeper: int) -> None:
        # The fake answers every question with the capture: only the part about the process counts.
        result = cli("doctor", "-p", str(sleeper), "--json")
        checks = {check["name"]: check for check in json.loads(result.out)["checks"]}
        assert checks["access"]["status"] == "ok"
        assert "5 threads by bpf" in checks["access"]["what"]
        assert checks["symbols"]["status"] == "ok"
        result = cli("doctor", "-p", "nosuchserver", "--json")
        checks = {check["name"]: check for check in json.loads(result.out)["checks"]}
        assert checks["access"]["status"] == "missing"


@pytest.mark.parametrize("closed", ["", "<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(saved: Path, closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m stallscope analyze "$1" {closed}', sys.executable, str(saved)],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.PARTIAL
    assert ("LOCK_open" in done.stdout) == (">&-" not in closed)
    assert done.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_behind_standard_output(saved: Path, unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "stallscope", "analyze", str(saved)],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    said = "stallscope: cannot write standard output: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)


def test_interrupted_while_it_starts(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        [sys.executable, "-m", "stallscope", "--help"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "stallscope: interrupted\n")


@pytest.mark.parametrize(
    ("gone", "said"), [(False, "is not set up: run "), (True, "the Python that it was made with")]
)
def test_a_checkout_without_its_python_says_why(gone: bool, said: str, tmp_path: Path) -> None:
    script = tmp_path / "scripts" / "stallscope"
    script.parent.mkdir()
    shutil.copy(ROOT / "scripts" / "stallscope", script)
    if gone:
        python = tmp_path / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to("/nowhere/python3")
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert done.returncode == Exit.FAILED
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
