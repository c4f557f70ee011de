# SPDX-License-Identifier: Apache-2.0
"""Notifier: what is notified, how long that may take, and that a failure has no effect."""

from __future__ import annotations

import http.server
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stallscope.agent.notifications import MAX_RUNNING, Notifier, command_words, webhook_url
from stallscope.base.errors import UsageError
from stallscope.model.incident import Fired, Incident, TargetEntry, Verdict
from tests.support.servers.waiting import PATIENCE, wait_until
from tests.unit.agentlog import Messages

__all__: list[str] = []

INCIDENT = Incident(
    "20261121T145012.345Z-mariadbd-4711",
    0,
    TargetEntry(4711, "mariadbd"),
    triggers=(Fired("threads", "Threads_running 187 > 40; $(reboot)", 0),),
    verdict=Verdict("metadata-lock", "Statements wait", 0.89, 20),
)
SHOW = """\
import os, sys
with open(sys.argv[1], "w") as file:
    file.write("\\n".join(f"{name}={value}" for name, value in os.environ.items()))
"""


class Asked(http.server.ThreadingHTTPServer):
    """A webhook, and what was posted to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.status = 200
        self.location: str | None = None
        self.gate = threading.Event()
        self.gate.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Asked

    def do_POST(self) -> None:
        self.server.paths.append(self.path)
        self.server.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.gate.wait(PATIENCE)
        self.send_response(self.server.status)
        if self.server.location is not None:
            self.send_header("Location", self.server.location)
        self.end_headers()

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def asked() -> Iterator[Asked]:
    with Asked() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.gate.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def said() -> Iterator[list[str]]:
    """Return what is logged."""
    with Messages() as log:
        yield log.messages


def notifier(
    *,
    command: tuple[str, ...] | None = None,
    webhook: str | None = None,
    seconds: float = 20.0,
) -> Notifier:
    return Notifier(command, webhook, command_seconds=seconds, webhook_seconds=seconds)


def test_a_command_gets_variables_and_no_shell(tmp_path: Path, said: list[str]) -> None:
    file = tmp_path / "variables"
    made = notifier(command=(sys.executable, "-c", SHOW, str(file)))
    made.notify("stall", INCIDENT, Path("/var/lib/x"))
    wait_until(lambda: file.exists() and "CONFIDENCE" in file.read_text(), "it was run")
    variables = dict(line.partition("=")[::2] for line in file.read_text().splitlines())
    assert variables["STALLSCOPE_EVENT"] == "stall"
    assert variables["STALLSCOPE_PATH"] == "/var/lib/x"
    assert variables["STALLSCOPE_VERDICT"] == "metadata-lock"
    assert variables["STALLSCOPE_CONFIDENCE"] == "0.89"
    assert variables["STALLSCOPE_WHY"] == "Threads_running 187 > 40; $(reboot)"
    assert said == []


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("/nonexistent/program",), "cannot run /nonexistent/program: No such file or directory"),
        (
            (sys.executable, "-c", "import sys; sys.exit('no network')"),
            "it ended with 1: no network",
        ),
    ],
)
def test_a_command_that_fails_is_said(command: tuple[str, ...], why: str, said: list[str]) -> None:
    made = notifier(command=command)
    made.notify("stall", INCIDENT, Path("/x"))
    wait_until(lambda: said, "it is said")
    assert said == [f"--notify-command: {why}"]
    assert made.failed == 1


@pytest.mark.slow
def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tmp_path: Path, said: list[str]
) -> None:
    file = tmp_path / "pid"
    script = f"sleep 60 & echo $! > {file}.part; mv {file}.part {file}; wait"
    made = notifier(command=("/bin/sh", "-c", script), seconds=5.0)
    made.notify("stall", INCIDENT, Path("/x"))
    wait_until(lambda: said, "it is said")
    assert said == ["--notify-command: it took more than 5 s and was ended"]
    child = int(file.read_text())
    wait_until(lambda: not running(child), "its child has ended, too")


def test_a_command_may_leave_a_child_with_its_pipes_and_print_what_it_likes(
    tmp_path: Path, said: list[str]
) -> None:
    file = tmp_path / "pid"
    # More than a pipe holds, and a child that nobody ends: neither the group nor the pipe does.
    script = (
        f"setsid sleep 60 & echo $! > {file}; echo why >&2; head -c 3000000 /dev/zero >&2; exit 3"
    )
    made = notifier(command=("/bin/sh", "-c", script), seconds=PATIENCE)
    made.notify("stall", INCIDENT, Path("/x"))
    wait_until(lambda: said, "it is said")
    os.kill(int(file.read_text()), signal.SIGKILL)
    assert said[0].startswith("--notify-command: it ended with 3: why")


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_plugins_have_a_deadline_of_their_own(said: list[str]) -> None:
    plugins = {"fire": ("/bin/sh", "-c", "sleep 60")}
    made = Notifier(None, None, plugins=plugins, plugin_seconds=0.2)
    made.notify("fire", INCIDENT, Path("/x"))
    wait_until(lambda: said, "it is said")
    assert said == ["plugin /bin/sh: it took more than 0.2 s and was ended"]


def test_hooks_that_hang_pile_nothing_up(asked: Asked, said: list[str]) -> None:
    asked.gate.clear()
    made = notifier(webhook=asked.url)
    begun = time.monotonic()
    for _ in range(MAX_RUNNING + 10):
        made.notify("stall", INCIDENT, Path("/x"))
    assert time.monotonic() - begun < 20, "it waited for one of them"
    assert made.failed == 10
    assert said[0] == f"--webhook: {MAX_RUNNING} are running already; this one was not started"
    asked.gate.set()  # so that none of them fails, and logs it, in another test
    wait_until(lambda: not any(t.name == "notify" for t in threading.enumerate()), "they end")


def test_a_webhook_gets_the_incident(asked: Asked, said: list[str]) -> None:
    notifier(webhook=asked.url).notify("end", INCIDENT, Path("/x"))
    wait_until(lambda: asked.bodies, "it was posted")
    value = json.loads(asked.bodies[0])
    assert (value["event"], value["path"]) == ("end", "/x")
    assert msgspec.convert(value["incident"], Incident) == INCIDENT
    assert said == []


def test_a_path_that_is_no_text_is_posted(asked: Asked, said: list[str]) -> None:
    target = msgspec.structs.replace(INCIDENT.target, exe="/opt/\udc80/mariadbd")
    incident = msgspec.structs.replace(INCIDENT, target=target)
    notifier(webhook=asked.url).notify("stall", incident, None)
    wait_until(lambda: asked.bodies, "it was posted")
    value = json.loads(asked.bodies[0])
    assert value["path"] is None
    assert value["incident"]["target"]["exe"] == "/opt/\\udc80/mariadbd"
    assert said == []


@pytest.mark.parametrize("location", ["file:///etc/passwd", "/elsewhere", "http://127.0.0.1:1/"])
def test_a_redirect_is_not_followed(asked: Asked, location: str, said: list[str]) -> None:
    asked.status, asked.location = 302, location
    notifier(webhook=asked.url).notify("stall", INCIDENT, Path("/x"))
    wait_until(lambda: said, "it is said")
    assert said[0].startswith("--webhook: it answers 302 (")
    assert asked.paths == ["/hook"]


def test_a_webhook_that_is_not_there_is_said(said: list[str]) -> None:
    notifier(webhook="http://127.0.0.1:1/").notify("stall", INCIDENT, Path("/x"))
    wait_until(lambda: said, "it is said")
    assert "cannot be reached" in said[0]
    assert "refused" in said[0]


def test_plugins_are_run_at_their_events_alone(tmp_path: Path, said: list[str]) -> None:
    file = tmp_path / "variables"
    plugin = (sys.executable, "-c", SHOW, str(file))
    made = Notifier(None, None, plugins={"start": plugin})
    made.notify("stall", INCIDENT, Path("/x"))
    made.notify("start", None, None)
    wait_until(lambda: file.exists() and "STALLSCOPE_EVENT=start" in file.read_text(), "it was run")
    assert said == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/", "https://", "x", "http://[", ""])
def test_a_webhook_has_a_web_address(url: str) -> None:
    with pytest.raises(UsageError, match="--webhook"):
        webhook_url(url)


@pytest.mark.parametrize("text", ["", "  ", "'open"])
def test_a_command_has_words(text: str) -> None:
    with pytest.raises(UsageError, match="--notify-command"):
        command_words(text)


def test_words_are_split_as_a_shell_splits_them() -> None:
    assert command_words("/bin/x 'a b' \"c\" $HOME") == ("/bin/x", "a b", "c", "$HOME")
