# SPDX-License-Identifier: Apache-2.0
"""`stallscope symbolize`, with a probe that knows one table of symbols."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from stallscope.base.errors import Exit, StallscopeError
from stallscope.collectors.symbols import Debuginfod, symbolize
from stallscope.main import main
from stallscope.model import capturefile
from stallscope.model.capture import Capture, Frame, Module, Process, Thread
from tests.unit.programs import python_program

# A function at 0x1000 of 0x20 bytes, and nothing else.
_PROBE = """\
import json, os, sys
assert sys.argv[1] == "symbolize"
dirs = sys.argv[3::2]
assert sys.argv[2::2] == ["--debug-dir"] * len(dirs)
for line in sys.stdin:
    number, addresses, name = line.split()
    files = [f"{d}/.build-id/{name[:2]}/{name[2:]}.debug" for d in dirs]
    files = [f for f in files if os.path.lexists(f)] + ["/debug/work.debug"] * (name == "aa11")
    symbols = []
    for address in addresses.split(","):
        offset, caller, _ = (address + "--").split("-", 2)
        at = int(offset, 16) - 0x1000
        found = {"symbol": "work(int)", "linkage": "_Z4worki", "symbol_offset": at}
        symbols.append(found if files and 0 <= at - (caller == "1") < 0x20 else None)
    print(json.dumps({
        "id": int(number),
        "file": files[0] if files else None,
        "error": None if files else "no file with this build-id",
        "symbols": symbols,
    }))
"""

WORK = Module(process=0, path="/usr/bin/work", build_id="aa11", symbols="none")
OTHER = Module(process=0, path="/usr/lib/other.so", build_id="bb22", symbols="none")
BARE = Module(process=0, path="/usr/lib/bare.so")


def frame(module: Module | None, offset: int | None, symbol: str | None = None) -> Frame:
    return Frame(symbol=symbol, module=module, offset=offset, pc=1)


def capture_of(*stacks: tuple[Frame, ...]) -> Capture:
    return Capture(
        backend="bpf",
        processes=(Process(pid=1),),
        threads=tuple(Thread(tid=i + 1, frames=stack) for i, stack in enumerate(stacks)),
        modules=(WORK, OTHER, BARE),
    )


@pytest.fixture(autouse=True)
def fake_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = python_program(tmp_path / "stallscope-probe", _PROBE)
    monkeypatch.setenv("STALLSCOPE_PROBE", str(program))


def names(capture: Capture) -> list[list[str | None]]:
    return [[frame.symbol for frame in thread.frames] for thread in capture.threads]


def test_innermost_frames_by_their_address_callers_by_the_one_before() -> None:
    # 0x1020 is behind the function: no place to be in it, but where a call as its last
    # instruction returns to. 0x1000 is its first byte: nothing of it can have called.
    capture = capture_of(
        (frame(WORK, 0x1000), frame(WORK, 0x1020)),
        (frame(WORK, 0x1020), frame(WORK, 0x1000)),
    )
    result = symbolize(capture, debug_dir=None)
    assert names(result.capture) == [["work(int)", "work(int)"], [None, None]]
    assert [f.symbol_offset for f in result.capture.threads[0].frames] == [0, 0x20]
    assert result.capture.threads[0].frames[0].linkage == "_Z4worki"
    assert (result.wanted, result.named, result.files) == (4, 2, 1)


def test_the_module_says_where_its_symbols_are_from() -> None:
    result = symbolize(capture_of((frame(WORK, 0x1001),)), debug_dir=None)
    module = result.capture.threads[0].frames[0].module
    assert module is not None
    assert (module.symbols, module.debug_file) == ("separate", "/debug/work.debug")
    assert result.capture.modules[0] == module
    assert result.capture.modules[1:] == (OTHER, BARE)


def test_names_that_are_there_stay_unless_asked_for_again() -> None:
    capture = capture_of((frame(WORK, 0x1001, "old"),))
    assert names(symbolize(capture, debug_dir=None).capture) == [["old"]]
    assert names(symbolize(capture, debug_dir=None, again=True).capture) == [["work(int)"]]


def test_what_cannot_be_named_is_said() -> None:
    kernel = Frame(symbol=None, module=OTHER, offset=1, kernel=True)
    stack = (frame(OTHER, 1), frame(BARE, 2), frame(None, None), frame(WORK, None), kernel)
    result = symbolize(capture_of(stack), debug_dir=None)
    assert result.capture == capture_of(stack)
    assert (result.wanted, result.named) == (2, 0)
    assert "/usr/lib/bare.so: no build-id" in " ".join(result.problems)
    assert "/usr/lib/other.so (bb22): no file with this build-id" in result.problems


@pytest.mark.parametrize("build_id", ["aa11\n0 0x1 aa11", "aa11 /etc/passwd", "-", "../aa", "AA11"])
def test_a_build_id_that_is_none_is_not_asked_for(build_id: str) -> None:
    hostile = msgspec.structs.replace(WORK, build_id=build_id)
    result = symbolize(capture_of((frame(hostile, 0x1001), frame(WORK, 0x1001))), debug_dir=None)
    assert names(result.capture) == [[None, "work(int)"]]
    assert result.problems == (f"/usr/bin/work: {build_id} is not a build-id",)


def test_fetched_files_are_used_and_failures_named() -> None:
    def fetch(build_id: str) -> Path:
        if build_id == "bb22":
            return Path("/cache/bb22")
        raise StallscopeError("debuginfod: server said no")

    capture = capture_of((frame(OTHER, 0x1001), frame(WORK, 0x1002)))
    result = symbolize(capture, debug_dir=None, fetch=fetch)
    assert names(result.capture) == [["work(int)", "work(int)"]]
    assert result.problems == ("/usr/bin/work (aa11): debuginfod: server said no",)
    assert result.capture.modules[1].debug_file == "/cache/bb22"


def test_debuginfod_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(StallscopeError, match="apt-get install debuginfod"):
        Debuginfod()
    (tmp_path / "bin").mkdir()
    code = """\
    import sys
    if sys.argv[1:] == ["debuginfo", "aa11"]:
        print("/cache/aa11/debuginfo")
    else:
        sys.exit("Server query failed: No such file or directory")
    """
    python_program(tmp_path / "bin" / "debuginfod-find", code)
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    with pytest.raises(StallscopeError, match="DEBUGINFOD_URLS"):
        Debuginfod()
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://127.0.0.1:1")
    assert Debuginfod()("aa11") == Path("/cache/aa11/debuginfo")
    with pytest.raises(StallscopeError, match="Server query failed"):
        Debuginfod()("bb22")


@pytest.mark.parametrize("answer", ["nonsense", '{"id": "x"}', "[]", ""])
def test_a_probe_that_answers_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    python_program(Path(os.environ["STALLSCOPE_PROBE"]), f"print({answer!r})")
    capture = capture_of((frame(WORK, 0x1001),))
    if answer:
        with pytest.raises(StallscopeError, match="not understood"):
            symbolize(capture, debug_dir=None)
    else:
        assert symbolize(capture, debug_dir=None).problems == (
            "/usr/bin/work (aa11): no answer from the probe",
        )


def test_command(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    path = tmp_path / "a.jsonl"
    capturefile.write(capture_of((frame(WORK, 0x1001),)), path)
    assert main(["symbolize", str(path), "--debug-dir", str(tmp_path)]) == Exit.DONE
    out, err = capsysbinary.readouterr()
    assert names(capturefile.loads(out, "stdout")) == [["work(int)"]]
    assert err == b"stallscope: 1 of 1 frames named in 1 of 1 files\n"
    named = tmp_path / "named.jsonl.zst"
    words = ["symbolize", str(path), "--debug-dir", str(tmp_path), "-o", str(named)]
    assert main(words) == Exit.DONE
    assert names(capturefile.read(named)) == [["work(int)"]]
    assert main(words) == Exit.FAILED
    assert b"--force" in capsysbinary.readouterr().err
    assert main([*words, "--force"]) == Exit.DONE


def test_command_in_part(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    path = tmp_path / "a.jsonl"
    capturefile.write(capture_of((frame(OTHER, 1),)), path)
    code = main(["symbolize", str(path), "--debug-dir", str(tmp_path)])
    assert code == Exit.PARTIAL
    assert b"no file with this build-id" in capsysbinary.readouterr().err


def test_only_the_capture_changes(tmp_path: Path) -> None:
    before = capture_of((frame(WORK, 0x1001), frame(BARE, 7)))
    after = symbolize(before, debug_dir=tmp_path).capture
    assert msgspec.structs.replace(after, threads=(), modules=()) == msgspec.structs.replace(
        before, threads=(), modules=()
    )
