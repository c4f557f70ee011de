# SPDX-License-Identifier: Apache-2.0
"""``stallscope poke``: its command line, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from stallscope.base.errors import Exit
from stallscope.collectors.poke import allowlist, looking, poking
from stallscope.collectors.poke.poking import PokeError
from stallscope.collectors.probe import ProbeError
from stallscope.main import main
from stallscope.model.pokes import Event, Looked, OpenFile, State, Stored, WordValue
from stallscope.reporters import poke as report
from tests.unit.test_poke_records import ID, created, record

__all__: list[str] = []

SHA = "6f5e16d6534b0aa7ae2e688ed010d4556ae0871e44ac498af90ed87eb7da96a2"
ADDRESS = 0xF6E2C8


def looked(**changes: object) -> Looked:
    value = Looked(
        pid=4711,
        identity=f"1:2:3:{'a' * 64}",
        start_time=1,
        state="S",
        exe="/usr/sbin/mysqld",
        build_id=None,
        sha256=SHA,
        bias=0,
        words=(WordValue(ADDRESS, 8, 0),),
        files=(OpenFile(8, "/d/ib_logfile0", "redo", 1, 2, False, 512, 512),),
    )
    return msgspec.structs.replace(value, **changes)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "nothing was given"),
        (["x", "--list"], "NAME and --list were given"),
        (["x"], "which server"),
        (["--direct-io", "redo"], "which server"),
        (["--direct-io", "data", "-p", "1"], "invalid choice"),
        (["--list", "--yes"], "--yes goes with NAME"),
        (["--undo", ID, "-p", "1"], "--undo knows its server"),
        (["--undo", "--for", "3"], "--for goes with NAME"),
        (["x", "-p", "1", "--for", "0"], "is not a time"),
        (["x", "-p", "1", "--for", "9d"], "is not a time"),
        (["x", "-p", "1", "--value", "-3"], "value"),
        (["x", "-p", "1", "--value", "1" * 50], "is not a number"),
        (["--direct-io", "redo", "-p", "1", "--value", "3"], "--value goes with NAME"),
        (["x", "-p", "1", "--allow-list", "/none/such"], "cannot be read"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], words: list[str], why: str) -> None:
    assert main(["poke", *words]) == Exit.USAGE
    said = capsys.readouterr().err
    assert why in said
    assert len(said.splitlines()) == 1


def test_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["poke", "--undo", "--records", str(tmp_path / "none")]) == Exit.DONE
    assert capsys.readouterr().out == "No poke that could be undone.\n"
    assert main(["poke", "--undo", ID, "--records", str(tmp_path)]) == Exit.FAILED


def test_a_record_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = created(tmp_path / "r")
    path.write_bytes(b"\x00\xff")
    words = ["poke", "--undo", "--json", "--records", str(tmp_path / "r")]
    assert main(words) == Exit.PARTIAL
    out, err = capsys.readouterr()
    assert json.loads(out) == {"schema": "stallscope.poke/1", "action": "undo-list", "pokes": []}
    assert "not an undo record" in err


def test_planned() -> None:
    plan = poking.word_plan(allowlist.load(), "linear-read-ahead", looked(), None)
    assert (plan.address, plan.old, plan.new) == (ADDRESS, 0, 1)
    files = poking.direct_io_plan(allowlist.load(), "redo", looked()).files
    assert [(one.fd, one.dev, one.ino) for one in files] == [(8, 1, 2)]
    text = "\n".join(line.text for line in report.dry_run(plan, 60, 80))
    assert "Dry run: nothing was written." in text
    assert "0 now, 1 then" in text


@pytest.mark.parametrize(
    ("changes", "value", "why"),
    [
        ({"sha256": "0" * 64}, None, "runs another build"),
        ({"build_id": "00aa", "sha256": None}, None, "runs another build"),
        ({"state": "t"}, None, "by a signal or a debugger"),
        ({"words": (WordValue(ADDRESS, 8, 1),)}, None, "is 1 already"),
        ({"words": (WordValue(ADDRESS, 8, 3),)}, None, "expects 0: somebody else changed it"),
        ({"words": (WordValue(ADDRESS, 8, None, "no memory"),)}, None, "no memory"),
        ({"words": ()}, None, "it was not read"),
        ({}, 2, "2 is not allowed"),
    ],
)
def test_refused(changes: dict[str, object], value: int | None, why: str) -> None:
    with pytest.raises(PokeError, match=why):
        poking.word_plan(allowlist.load(), "linear-read-ahead", looked(**changes), value)


def test_no_such_poke() -> None:
    with pytest.raises(PokeError, match="it has: linear-read-ahead"):
        poking.word_plan(allowlist.load(), "other", looked(), None)


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (("redo", True, 512, 512), "is open with O_DIRECT already"),
        (("redo", False, 0, 0), "STATX_DIOALIGN"),
        (("redo", False, 4096, 512), "its writes would fail"),
        (("redo", False, 512, 4096), "its writes would fail"),
        (("data", False, 512, 512), "no file of class redo open"),
    ],
)
def test_direct_writes_that_are_refused(file: tuple[str, bool, int, int], why: str) -> None:
    kind, direct, memory, offset = file
    files = (OpenFile(8, "/d/ib_logfile0", kind, 1, 2, direct, memory, offset),)
    with pytest.raises(PokeError, match=why):
        poking.direct_io_plan(allowlist.load(), "redo", looked(files=files))


def test_an_answer_that_cannot_be_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in (b"", b"{}", b"\xff", b'{"pid":1,"identity":"","head":"zz"}'):
        monkeypatch.setattr(looking.probe, "run", lambda *_, out=answer, **__: out)  # type: ignore[attr-defined]
        with pytest.raises(ProbeError, match="cannot be read"):
            looking.look(1, allowlist.load())


@pytest.mark.parametrize(
    ("identity", "found"),
    [
        (f"1:2:3:{'a' * 64}", "new"),
        (f"1:2:3:{'a' * 64}:{'b' * 64}", "new"),  # the record is of a version without the last part
        (f"1:2:3:{'c' * 64}", "ended"),
        (f"1:2:4:{'a' * 64}", "ended"),
    ],
)
def test_what_a_change_is_now(identity: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"pid": 4711, "identity": identity, "start_time": 1, "base": 3, "state": "S"}
    answer |= {"exe": "/x", "head": "", "words": [{"address": 4096, "size": 8, "value": 1}]}
    out = json.dumps(answer).encode()
    monkeypatch.setattr(looking.probe, "run", lambda *_, **__: out)  # type: ignore[attr-defined]
    assert looking.change_is(record()) == found


def test_states_as_text() -> None:
    stored = Stored(Path("x"), record(seconds=60.0), (Event("written"),))
    said = {
        (): "its supervisors are gone",
        (12, 13): "by a supervisor (pid 12, 13)",
    }
    for pids, text in said.items():
        lines = report.undos([State(stored, "active", None, pids)], 200)
        assert text in " ".join(line.text for line in lines)


def test_hostile_names_stay_text() -> None:
    stored = Stored(Path("x"), record(name="\x1b[2Jx", symbol="a\nb"))
    lines = [*report.undos([State(stored, "unknown", "\x1b]0;x\x07")], 80)]
    assert all("\x1b" not in line.text and "\n" not in line.text for line in lines)
