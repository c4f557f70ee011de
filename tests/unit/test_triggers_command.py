# SPDX-License-Identifier: Apache-2.0
"""`stallscope triggers`, and the programs that triggers ask."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import msgspec
import pytest

from stallscope.base.errors import Exit, StallscopeError
from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.command import CommandCollector
from stallscope.collectors.triggers.dryrun import TriggerRun, sentence
from stallscope.collectors.triggers.engine import Engine
from stallscope.collectors.triggers.settings import CommandSettings
from stallscope.main import main
from tests.unit.trigger_recordings import FOLDER


def program(folder: Path, text: str) -> str:
    path = folder / "number"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def collector(
    folder: Path, text: str, *arguments: str, deadline: float = 20.0, interval: float = 0.05
) -> CommandCollector:
    run = [program(folder, text), *arguments]
    return CommandCollector(CommandSettings("queue", run, interval, deadline))


def test_the_defaults_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["triggers"]) == Exit.DONE
    assert capsys.readouterr().out == triggerfile.DEFAULTS.read_text()


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["triggers", "--json"]) == Exit.DONE
    settings = json.loads(capsys.readouterr().out)
    assert settings["poll-interval"] == 1
    assert {trigger["name"] for trigger in settings["triggers"]} >= {"row-lock", "no-answer"}


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.toml"
    path.write_text('defaults = false\n[[trigger]]\nname = "x"\nvariable = "a > 1"\n')
    assert main(["triggers", "--check", str(path)]) == Exit.DONE
    assert capsys.readouterr().out == f"{path}: no errors; 1 triggers are on: x\n"
    path.write_text('[[trigger]]\nname = "x"\nvariable = "a >"\n')
    assert main(["triggers", "--check", str(path)]) == Exit.USAGE
    assert capsys.readouterr().err.startswith(f"stallscope: {path}:3: trigger 'x': variable 'a >'")


def test_try(capsys: pytest.CaptureFixture[str]) -> None:
    samples = str(FOLDER / "metadata-lock.jsonl.zst")
    assert main(["triggers", "--try", samples]) == Exit.DONE
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert '21 threads in state "Waiting for * metadata lock", over 2' in lines["metadata-lock"]
    assert "would not fire: came to 0, and > 5 fires" in lines["table-lock"]
    assert "would not fire: it was never true" in lines["qps-collapse"]


def test_try_says_how_far_it_was_and_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'defaults = false\n[[trigger]]\nname = "far"\nvariable = "Threads_running"\n'
        'threshold = 30\n[[trigger]]\nname = "long"\nvariable = "Threads_running"\n'
        'threshold = 20\ncycles = 100\n[[trigger]]\nname = "typo"\nvariable = "Thread_runing"\n'
        "threshold = 1\n"
    )
    samples = str(FOLDER / "metadata-lock.jsonl.zst")
    assert main(["triggers", "--check", str(path), "--try", samples, "--json"]) == Exit.DONE
    shown = json.loads(capsys.readouterr().out)
    texts = {trigger["name"]: trigger["text"] for trigger in shown["triggers"]}
    assert texts["far"] == "would not fire: came to 22, and > 30 fires"
    assert texts["long"].startswith("would not fire: came to 22, and > 20 fires; breached in 1")
    assert texts["typo"] == "cannot fire: no sample has Thread_runing"


def test_waits_come_near_in_milliseconds() -> None:
    settings = triggerfile.defaults()
    (convoy,) = (trigger for trigger in settings.triggers if trigger.name == "lock-convoy")
    (state,) = (state for state in Engine(settings).states() if state.name == convoy.name)
    near = msgspec.structs.replace(state, samples=1, nearest=120.0, nearest_threshold=500.0)
    said = sentence(TriggerRun(convoy, near, ()))
    assert said == "would not fire: came to 120 ms, and 500 ms fires"


@pytest.mark.parametrize("text", ["", "[1]\n", '{"source": 3}\n', "{\n"])
def test_what_is_no_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text(text)
    assert main(["triggers", "--try", str(path)]) in (Exit.USAGE, Exit.FAILED)
    assert capsys.readouterr().err.startswith(f"stallscope: {path}")


def test_a_number_is_printed(tmp_path: Path) -> None:
    one = collector(tmp_path, 'echo " $1.5 "', "42; echo 7")
    with pytest.raises(StallscopeError, match="it must print one number"):
        one.collect()
    # The child that it leaves behind holds nobody: that would be an error at the deadline.
    sample = collector(tmp_path, 'sleep 3600 & echo " $1.5 "', "42").collect()
    assert sample.values == {"command.queue": 42.5}
    assert sample.source == "command.queue"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("echo many", "printed 'many'; it must print one number"),
        ("echo", "printed ''"),
        ("echo nan", "printed nan, which is not a number to compare"),
        ("echo 1; echo 2", "it must print one number"),
        ("echo 5; echo broken >&2; exit 3", "exited with 3 and printed broken"),
        ("yes 1", "not finished within 0.2 s"),
        ("sleep 3600 & wait", "not finished within 0.2 s"),
    ],
)
def test_what_is_no_number(tmp_path: Path, text: str, complaint: str) -> None:
    late = 0.2 if "0.2" in complaint else 20.0
    with pytest.raises(StallscopeError, match=complaint) as caught:
        collector(tmp_path, text, deadline=late).collect()
    assert "\n" not in str(caught.value)


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(StallscopeError, match="/no/such cannot be run: No such file"):
        CommandCollector(CommandSettings("queue", ["/no/such"])).collect()
