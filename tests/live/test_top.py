# SPDX-License-Identifier: Apache-2.0
"""``stallscope top`` in tmux, on a real server in a real stall."""

from __future__ import annotations

import os
import re
import signal
import stat
import sys
from pathlib import Path

import pytest

from stallscope.collectors import processes
from stallscope.model import capturefile
from tests.live.shots import CHECKOUT, unharmed
from tests.live.tmux import CODE, Terminal, terminal
from tests.support.servers import MariaDB
from tests.support.servers.waiting import wait_until
from tests.support.stalls import metadata_lock_pileup

pytestmark = pytest.mark.needs("root", "waits", "tmux")

WAITERS = 20


def argv(server: MariaDB, folder: Path) -> list[str]:
    words = ["top", "-p", str(server.pid), "--capture-dir", str(folder), "--dest", str(folder)]
    return [sys.executable, "-m", "stallscope", *words]


def is_clean(screen: Terminal) -> None:
    """Check that nothing is left of the view: no screen of its own, the cursor, echo, no mouse."""
    text = screen.shows(CODE, "speed", "extproc")  # the last of what stty prints
    assert "Who waits on what" not in text
    assert screen.flag("alternate_on") == "0"
    assert screen.flag("cursor_flag") == "1"
    assert screen.flag("mouse_any_flag") == "0"
    assert re.search(r"(?<!-)\bicanon\b", text), text
    assert re.search(r"(?<!-)\becho\b", text), text


def probes_of(server: MariaDB) -> list[str]:
    """Return the probes that watch the server."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"stallscope-probe") and str(server.pid).encode() in words:
            found.append(path.parent.name)
    return found


def test_a_pileup_is_shown_inspected_and_captured(mariadb: MariaDB, tmp_path: Path) -> None:
    with (
        metadata_lock_pileup(mariadb, WAITERS),
        unharmed(mariadb),
        terminal(tmp_path) as screen,
    ):
        screen.begin(argv(mariadb, tmp_path), (80, 24), CHECKOUT)
        text = screen.shows(
            f"{WAITERS + 1} of ",
            "[metadata-lock]",
            "KILL QUERY",
            "metadata-lock shop.orders",
        )
        assert all(len(line) <= 80 for line in text.splitlines())
        screen.press("b")
        screen.shows("Stack, innermost frame first", "poll")
        screen.press("Escape")
        screen.shows("Who waits on what")
        screen.press("t")
        screen.shows("ALTER TABLE", "Back")
        screen.press("/")
        screen.shows("regular expression")
        screen.press("upgrade_shared", "Enter")
        screen.shows("/upgrade_shared/")
        screen.press("Enter")
        screen.shows("Stack, innermost frame first")
        screen.press("Escape")
        screen.until(lambda text: "Threads" in text and "Stack, inn" not in text, "the list again")
        screen.press("Escape")
        screen.shows("Who waits on what")
        screen.press("c")
        screen.shows("(0600)")
        (saved,) = tmp_path.glob("stallscope-mariadbd-*.jsonl.zst")
        assert stat.S_IMODE(saved.stat().st_mode) == 0o600
        capture = capturefile.read(saved)
        assert capture.processes[0].pid == mariadb.pid
        assert len(capture.threads) > WAITERS
        # No more rows than before: where they grow, tmux 3.3a keeps lines of the screen that was
        # left (docs/commands/top.md, Bugs). Other heights are tested without a terminal.
        screen.tmux("resize-window", "-x", "140", "-y", "24")
        text = screen.until(
            lambda text: (
                any(len(line) > 100 for line in text.splitlines()) and "Locks and files" in text
            ),
            "the wide screen",
        )
        assert len(text.splitlines()) <= 24
        screen.press("q")
        screen.shows(f"{CODE} 0")
        is_clean(screen)
    assert processes.read(mariadb.pid) is not None
    wait_until(lambda: not probes_of(mariadb), "no probe is left")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_leave_a_clean_terminal(
    mariadb: MariaDB, tmp_path: Path, number: signal.Signals
) -> None:
    with unharmed(mariadb), terminal(tmp_path) as screen:
        screen.begin(argv(mariadb, tmp_path), (80, 24), CHECKOUT)
        screen.shows("no stall found", "idle")
        pid = screen.flag("pane_pid")
        (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        os.kill(int(child), number)
        screen.shows(CODE)
        is_clean(screen)
    wait_until(lambda: not probes_of(mariadb), "no probe is left")


def test_an_error_is_one_line_on_a_clean_terminal(mariadb: MariaDB, tmp_path: Path) -> None:
    breaker = (
        "import sys; from stallscope.screens import panes; from stallscope.main import main;"
        " panes.chart = lambda *_: 1 / 0; sys.exit(main())"
    )
    with terminal(tmp_path) as screen:
        words = [sys.executable, "-c", breaker, *argv(mariadb, tmp_path)[3:]]
        screen.begin(words, (80, 24), CHECKOUT)
        text = screen.shows(f"{CODE} 1")
        assert "Traceback" not in text
        assert "internal error: ZeroDivisionError" in text
        is_clean(screen)
