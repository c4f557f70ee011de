# SPDX-License-Identifier: Apache-2.0
"""Hooks: which are run, how long that may take, and that a failure has no effect."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stallscope.agent.hooks import MAX_RUNNING, Hooks
from stallscope.base.errors import UsageError
from stallscope.commands._notify import command_words
from tests.support.servers.waiting import wait_until
from tests.unit.agentlog import Messages
from tests.unit.notifyscenes import INCIDENT

SHOW = """\
import os, sys
with open(sys.argv[1], "w") as file:
    file.write("\\n".join(f"{name}={value}" for name, value in os.environ.items()))
"""


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Return what is logged."""
    with Messages() as log:
        yield log.messages


@pytest.mark.parametrize(
    ("command", "seconds", "why"),
    [
        (("/bin/sh", "-c", "sleep 60"), 0.2, "it took more than 0.2 s and was ended"),
        (("/no/such",), 60.0, "cannot run /no/such: No such file or directory"),
    ],
)
def test_a_hook_that_fails_is_said(
    said: list[str], command: tuple[str, ...], seconds: float, why: str
) -> None:
    made = Hooks({"fire": command}, seconds)
    made.run("fire", INCIDENT, Path("/x"))
    wait_until(lambda: said, "it is said")
    assert said == [f"plugin {command[0]}: {why}"]
    assert made.failed == 1


def test_hooks_that_hang_pile_nothing_up(tmp_path: Path, said: list[str]) -> None:
    gate = tmp_path / "gate"
    script = f"while [ ! -e {gate} ]; do sleep 0.1; done"
    made = Hooks({"stall": ("/bin/sh", "-c", script)}, 60.0)
    for _ in range(MAX_RUNNING + 10):
        made.run("stall", INCIDENT, Path("/x"))
    assert made.failed == 10
    assert said[0] == f"plugin /bin/sh: {MAX_RUNNING} are running already; this one was not started"
    gate.touch()
    wait_until(lambda: not any(t.name == "hook" for t in threading.enumerate()), "they end")


def test_hooks_are_run_at_their_events_alone(tmp_path: Path, said: list[str]) -> None:
    file = tmp_path / "variables"
    made = Hooks({"start": (sys.executable, "-c", SHOW, str(file))}, 60.0)
    made.run("stall", INCIDENT, Path("/x"))
    made.run("start", None, None)
    wait_until(lambda: file.exists() and "STALLSCOPE_EVENT=start" in file.read_text(), "it was run")
    assert said == []


def test_words_are_split_as_a_shell_splits_them() -> None:
    assert command_words("/bin/x 'a b' \"c\" $HOME") == ("/bin/x", "a b", "c", "$HOME")
    for text in ("  ", "'open"):
        with pytest.raises(UsageError, match="--notify-command"):
            command_words(text)
