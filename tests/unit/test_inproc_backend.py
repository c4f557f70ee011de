# SPDX-License-Identifier: Apache-2.0
"""``--backend inproc`` and ``--ring``: what the probe is asked, and how its source is named."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stallscope.agent import probe_session
from stallscope.agent.probe_session import ProbeSettings
from stallscope.analyzers import catalog, engine
from stallscope.analyzers.excerpts import Excerpts
from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.base.times import local
from stallscope.collectors import probe, rings, snapshot, waits
from stallscope.collectors.probe import ProbeError
from stallscope.commands import _common, _config, _rings
from stallscope.main import main, parser
from stallscope.model import capturefile, waitlines
from stallscope.model.capture import Capture
from stallscope.model.rings import RingError
from stallscope.model.waitlines import WaitLine
from stallscope.reporters import waits as waits_reporter
from stallscope.screens import panes
from stallscope.screens.events import Analyzed, WaitsSeen
from stallscope.screens.live import LiveOptions, LiveSource
from stallscope.screens.state import State
from tests.support.ringimages import made, of_this_process
from tests.unit.captures import convoy
from tests.unit.programs import python_program

SAMPLES = Path(__file__).parent.parent / "data" / "waits"
OWN = str(os.getpid())
_REFUSED = 'sys.exit("stallscope-probe: CAP_BPF is missing, and ptrace is not permitted")'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which rings are searched, instead of the machine's own."""
    folder = tmp_path / "rings"
    folder.mkdir()
    monkeypatch.setenv("STALLSCOPE_RUNTIME_DIR", str(folder))
    return folder


def taken() -> Capture:
    return msgspec.structs.replace(
        convoy(), backend="inproc", backend_reason="the ring of the server", notes=()
    )


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that makes a probe of these lines; it writes its arguments to a file.

    What is asked of rings, the real one answers.
    """
    real = str(probe.find())

    def make(code: str) -> Path:
        said = tmp_path / "arguments"
        head = (
            "import json, os, sys\n"
            f"if sys.argv[1] == 'rings': os.execv({real!r}, sys.argv)\n"
            f"json.dump(sys.argv[1:], open({str(said)!r}, 'w'))\n"
        )
        monkeypatch.setenv("STALLSCOPE_PROBE", str(python_program(tmp_path / "probe", head + code)))
        return said

    return make


@pytest.fixture
def answering(tmp_path: Path, fake: Callable[[str], Path]) -> Path:
    """Let the probe answer with a capture; return where its arguments are."""
    answer = tmp_path / "answer"
    answer.write_bytes(capturefile.dumps(taken()))
    return fake(f"sys.stdout.write(open({str(answer)!r}).read())")


def words(said: Path) -> list[str]:
    found: list[str] = json.loads(said.read_text())
    return found


def test_snap_by_the_ring_of_a_process(answering: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snap", "-p", OWN, "--backend", "inproc", "--no-sql", "--top", "9"]) == Exit.DONE
    asked = words(answering)
    assert asked[:3] == ["snap", "--backend", "inproc"]
    assert "--ring" not in asked
    assert "backend: inproc (the ring of the server)" in capsys.readouterr().out


def test_snap_by_a_ring_that_is_named(
    folder: Path, answering: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_this_process(folder)
    assert main(["snap", "--ring", str(path), "--no-sql", "--json"]) == Exit.DONE
    asked = words(answering)
    assert asked[:3] == ["snap", "--backend", "inproc"]
    assert asked[asked.index("--pid") + 1] == OWN
    assert asked[asked.index("--ring") + 1] == str(path)
    assert json.loads(capsys.readouterr().out)["backend"] == "inproc"


@pytest.mark.large
def test_a_refusal_says_that_a_ring_is_there(
    folder: Path, fake: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    fake(_REFUSED)
    for command in (["snap", "--no-sql"], ["waits"]):
        assert main([*command, "-p", OWN]) == Exit.FAILED
        assert "inproc" not in capsys.readouterr().err
    of_this_process(folder)
    for command in (["snap", "--no-sql"], ["snap", "--no-sql", "--backend", "proc"], ["waits"]):
        assert main([*command, "-p", OWN]) == Exit.FAILED
        assert capsys.readouterr().err.endswith("; try --backend inproc\n")
    for command in (["snap", "--no-sql"], ["waits"]):
        assert main([*command, "-p", OWN, "--backend", "inproc"]) == Exit.FAILED
        assert "try" not in capsys.readouterr().err


def test_the_agents_probe_says_so_too(folder: Path, fake: Callable[[str], Path]) -> None:
    fake(_REFUSED)
    of_this_process(folder)
    session = probe_session.ProbeSession(ProbeSettings(captures=folder), lambda event: None)
    session._pids = (os.getpid(),)
    was_ready, why = session._once(session.settings)
    assert not was_ready
    assert why.endswith("; try --backend inproc")


def test_what_the_probe_is_asked(tmp_path: Path) -> None:
    ring = tmp_path / "1-1.ring"
    expected = ["--backend", "inproc", "--ring", str(ring)]

    def has(args: list[str]) -> bool:
        at = args.index("--backend")
        return args[at : at + 2] == expected[:2] and args[args.index("--ring") + 1] == str(ring)

    assert has(waits.arguments((1,), waits.Options(backend="inproc", ring=ring)))
    settings = ProbeSettings(captures=tmp_path, backend="inproc", ring=ring)
    assert has(probe_session.arguments((1,), settings, watch=True))
    assert has(probe_session.arguments((1,), settings, watch=False))
    options = LiveOptions(backend="inproc", ring=ring)
    source = LiveSource((1,), (), catalog.load(), options)
    assert has(source._arguments(watch=True))
    assert has(source._arguments(watch=False))
    assert has(snapshot.arguments((1,), snapshot.Options(backend="inproc", ring=ring)))


def arguments(*args: str) -> argparse.Namespace:
    found = parser(args[:1]).parse_args(args)
    return _config.load(found).options if args[0] in ("watch", "cron") else found


@pytest.mark.parametrize("command", ["snap", "waits", "top", "watch", "cron"])
def test_the_server_is_that_of_the_ring(command: str, folder: Path) -> None:
    path = of_this_process(folder)
    args = arguments(command, "--ring", str(path))
    assert _rings.backend(args) == "inproc"
    pids, servers = _rings.resolve(args, [], _common.selector(args))
    assert pids == (os.getpid(),)
    assert servers[0].main.pid == os.getpid()


def test_servers_of_rings_that_are_gone_or_cannot_be_seen(folder: Path) -> None:
    def said(path: Path) -> str:
        args = arguments("snap", "--ring", str(path))
        with pytest.raises(StallscopeError) as caught:
            _rings.resolve(args, [], _common.selector(args))
        return str(caught.value)

    left = made(folder / "1-1.ring", ended=True)
    assert f"`stallscope analyze {left}`" in said(left)
    assert "give -p PID" in said(made(folder / "1-2.ring", pid=2**22 + 1, start_time=0))
    assert "No such file" in said(folder / "no.ring")
    (folder / "broken").write_bytes(b"x" * 5000)
    assert "not a ring of libstallscope.so" in said(folder / "broken")


def test_words_that_contradict_each_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(of_this_process(folder))
    for args, text in (
        (["snap", "--ring", path, "--backend", "ptrace"], "--ring needs --backend inproc"),
        (["snap", "--ring", path, "--core", "x"], "--ring or --core"),
        (["waits", "--ring", path, "--follow", "mysqld", "-p", OWN], "the directory of the rings"),
        (["top", "--ring", path, "--replay", "x"], "--ring or --replay"),
        (["waits", "--backend", "ptrace", "-p", OWN], "invalid choice"),
    ):
        assert main(args) == Exit.USAGE
        assert text in capsys.readouterr().err
    both = arguments("snap", "--ring", path, "-p", OWN, "-p", "1")
    with pytest.raises(UsageError, match="names one process"):
        _rings.resolve(both, both.pid, _common.selector(both))
    folder_of = arguments("snap", "--ring", str(folder))
    with pytest.raises(UsageError, match="is a directory"):
        _rings.resolve(folder_of, [], _common.selector(folder_of))
    pids, _ = _rings.resolve(folder_of, [OWN], _common.selector(folder_of))
    assert pids == (os.getpid(),)


def line(**more: Any) -> WaitLine:
    value = json.loads((SAMPLES / "stalled.json").read_bytes()) | more
    found = waitlines.loads(json.dumps(value).encode(), "sample", 1)
    assert isinstance(found, WaitLine)
    return found


def text(of: WaitLine, **options: Any) -> str:
    shown = waits_reporter.Options(server="mysqld (pid 1)", width=400, **options)
    return "\n".join(row.text for row in waits_reporter.render(of, shown, Excerpts(catalog.load())))


def test_waits_name_their_source() -> None:
    first = line(source="inproc", in_flight_by="scan", server={}, programs=[])
    assert first.source == "inproc"
    assert "source: inproc, the library in the server" in text(first)
    # Only the first line has it.
    assert "source: inproc" in text(line(in_flight_by="scan"), source="inproc")
    # It has no BPF timers, and no uprobes that would identify row locks: neither is a fault.
    assert "kernel has no BPF timers" not in text(first)
    assert "row locks" not in text(first, uprobes=True)
    assert "source:" not in text(line(source="bpf"))


def test_waits_that_are_sampled_say_so() -> None:
    sampled = line(source="poll", in_flight_by="poll", sampled=True, server={}, programs=[])
    sampled = msgspec.structs.replace(sampled, interval_ns=10**7, longest_interval_ns=12 * 10**6)
    said = text(sampled, uprobes=True)
    assert "sampled: /proc is polled every 10" in said
    assert "short waits are missed" in said
    assert "longest pause" not in said
    assert "kernel has no BPF timers" not in said
    assert "row locks" not in said  # it has no uprobes that would distinguish them
    slow = msgspec.structs.replace(sampled, longest_interval_ns=8 * 10**7)
    assert "longest pause of 80" in text(slow, uprobes=True)


def test_top_names_its_source() -> None:
    state = State("mysqld (pid 1)")

    def head() -> str:
        return panes.head(state, 120, paused=False, pattern=None).text

    assert "inproc" not in head()
    state.take(WaitsSeen(line(source="inproc")))
    state.take(WaitsSeen(line()))
    assert "  inproc  " in head()
    state.take(WaitsSeen(line(source="poll", sampled=True)))
    assert "  waits sampled  " in head()
    state = State("mysqld (pid 1)")
    state.take(Analyzed(engine.analyze(taken(), catalog.load()), 1.0))
    assert "  inproc" in head()


def test_a_ring_is_an_input_like_a_core_file(
    folder: Path, answering: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(folder / "any.name", ended=True)
    assert main(["analyze", str(path), "--json", "--sysroot", "/srv/root"]) == Exit.DONE
    assert words(answering)[:5] == ["ring", "--ring", str(path), "--sysroot", "/srv/root"]
    answer = json.loads(capsys.readouterr().out)
    assert answer["inputs"] == [{"path": str(path), "format": "ring", "captures": 1}]
    assert answer["backend"] == "inproc"
    assert main(["analyze", str(path)]) == Exit.DONE
    moment = taken().time_ns
    assert moment is not None
    printed = " ".join(capsys.readouterr().out.split())
    assert f"as of {local(moment)}, the last moment in the ring" in printed
    (folder / "notes").write_text("nothing of a stack\n")
    assert main(["analyze", str(folder), "--top", "9"]) == Exit.DONE
    captured = capsys.readouterr()
    assert "skipped 1 file" in captured.err
    assert "backend: inproc" in captured.out


def test_a_ring_that_the_probe_refuses_is_named(
    folder: Path, fake: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    fake('sys.exit("stallscope-probe: the maps are torn")')
    path = made(folder / "1-1.ring")
    assert main(["analyze", str(path)]) == Exit.FAILED
    assert f"{path}: the maps are torn" in capsys.readouterr().err


def test_a_probe_that_answers_less_than_it_was_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STALLSCOPE_PROBE", str(python_program(folder / "probe", "pass")))
    with pytest.raises(RingError, match="0 answers to 1"):
        rings.look([folder / "x.ring"])


def test_advice_is_given_once_and_not_without_a_probe(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_this_process(folder)
    error = ProbeError("it is refused; try --backend inproc")
    assert rings.advice(error, [os.getpid()]) == str(error)
    monkeypatch.setenv("STALLSCOPE_PROBE", str(folder / "none"))
    assert rings.advice(ProbeError("it is refused"), [os.getpid()]) == "it is refused"
