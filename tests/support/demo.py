# SPDX-License-Identifier: Apache-2.0
"""The demo: a server of its own, a real stall, the verdict, and proof that nothing was harmed."""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    from tests.support.servers import SqlServer

STALLSCOPE = Path(__file__).resolve().parents[2] / "scripts" / "stallscope"
BUILD = Path(__file__).resolve().parents[2] / "build"
STOPPED_STATES = frozenset("Tt")
SNAPSHOT_SECONDS = 120
TRIES = 5
SHOWN = (0, 3)
"""Exit codes with a result, whole or not: on a busy machine a capture may not be."""


class Scene(NamedTuple):
    """A server, the stall to make in it, and the verdicts that are right."""

    server: Callable[[], SqlServer]
    stall: Callable[[SqlServer], AbstractContextManager[object]]
    story: str
    verdicts: tuple[str, ...]


class DemoError(Exception):
    """The demo did not show what it is there to show."""


def scenes() -> dict[str, Scene]:
    """Return what can be shown, by the name of the server."""
    # Imported late, so that --help works before scripts/setup has made .venv.
    from tests.support.servers import MariaDB, MySQL55
    from tests.support.stalls import deadlock_check_storm, metadata_lock_pileup

    return {
        "mariadb": Scene(
            MariaDB,
            metadata_lock_pileup,
            "20 SELECTs queue behind an ALTER TABLE, which waits for a transaction that sits idle",
            ("metadata-lock",),
        ),
        "mysql55": Scene(
            MySQL55,
            deadlock_check_storm,
            "190 connections update one row; each new waiter is checked against all others",
            ("innodb-deadlock-check", "innodb-row-lock"),
        ),
    }


def say(text: str) -> None:
    print(f"demo: {text}", flush=True)


def snap(pid: int, how: Sequence[str], capture: Path) -> str:
    """Run ``stallscope snap`` on the server, show what it prints, and return it."""
    command = [str(STALLSCOPE), "snap", "-p", str(pid), *how, "-o", str(capture), "--force"]
    printed = shown([*by_root(), *command])
    print(printed, flush=True)
    if by_root():  # a capture is for the eyes of its owner alone
        subprocess.run([*by_root(), "chown", str(os.getuid()), str(capture)], check=False)
    return printed


def shown(command: list[str]) -> str:
    """Say a command of stallscope, run it, and return what it prints."""
    say(f"$ {' '.join(command).replace(str(STALLSCOPE), 'scripts/stallscope')}")
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=SNAPSHOT_SECONDS, check=False
    )
    if done.returncode not in SHOWN:
        raise DemoError(f"{' '.join(command[:3])} ended with {done.returncode}")
    return done.stdout


def write_report(capture: Path, page: Path) -> None:
    """Write the HTML report of the stall; its script needs npm's registry once."""
    try:
        shown([str(STALLSCOPE), "report", str(capture), "-o", str(page), "--force"])
    except DemoError:
        say("so there is no report; all else works without it")
    else:
        say(f"look at the stall in a browser: {page}")


@functools.cache
def by_root() -> tuple[str, ...]:
    """Return the command that runs another one as root, where that is needed and asks nothing."""
    if os.geteuid() == 0 or shutil.which("sudo") is None:
        return ()
    tried = subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False)
    return ("sudo", "-n") if tried.returncode == 0 else ()


def unreadable(pid: int) -> str | None:
    """Return why no backend that looks from outside can read a process, or None."""
    from stallscope.collectors import probe

    command = [*by_root(), str(probe.find()), "snap", "--pid", str(pid)]
    tried = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    if tried.returncode in SHOWN:
        return None
    said = tried.stderr.strip().removeprefix("stallscope-probe: ")
    return said or f"exit code {tried.returncode}"


@contextmanager
def started(scene: Scene) -> Iterator[tuple[SqlServer, Sequence[str]]]:
    """Start the server; yield it and the options by which snap can read it here."""
    from tests.support.servers.child import server_user
    from tests.support.servers.inside import agent_inside

    def show_server(server: SqlServer) -> None:
        say(f"started {server.name} {server.version()}, pid {server.pid}, in {server.folder}")

    with scene.server() as server:
        show_server(server)
        if os.geteuid() == 0 and server_user() is None:
            say("as root: this root may not read the processes of other users (CAP_SYS_PTRACE)")
        reason = unreadable(server.pid)
        if reason is None:
            yield server, ()
            return
    say(f"it cannot be read from outside here: {reason}")
    server = scene.server()
    with agent_inside(server) as rings, server:
        show_server(server)
        say("with the in-process library, which records what its threads wait for")
        yield server, ("--backend", "inproc", "--ring", str(rings))


def show_way(capture: Path) -> None:
    """Say by which backend the server was read, and why by that."""
    from stallscope.model import capturefile

    taken = capturefile.loads(capture.read_bytes(), capture.name)
    say(f"read by the backend {taken.backend} ({taken.backend_reason})")


def check_unharmed(server: SqlServer, before: frozenset[int]) -> None:
    """Prove that the server answers, kept every connection and has no stopped thread."""
    start = time.monotonic()
    if not server.answers():
        raise DemoError("the server does not answer any more")
    answered = (time.monotonic() - start) * 1000
    lost = before - server.connection_ids()
    if lost:
        raise DemoError(f"{len(lost)} of {len(before)} connections were lost")
    threads = 0
    for stat in Path(f"/proc/{server.pid}/task").glob("*/stat"):
        with suppress(OSError):  # the thread has ended
            state = stat.read_text().rpartition(")")[2].split()[0]
            threads += 1
            if state in STOPPED_STATES:
                raise DemoError(f"thread {stat.parent.name} was left stopped")
    say(
        f"afterwards: a new connection is answered in {answered:.1f} ms, "
        f"all {len(before)} connections are still there, none of {threads} threads is stopped"
    )


def capture_stall(scene: Scene, server: SqlServer, how: Sequence[str], capture: Path) -> None:
    """Take captures until one is of the moment that the scene is about: a storm has others."""
    for left in reversed(range(TRIES)):
        printed = snap(server.pid, how, capture)
        if any(verdict in printed for verdict in scene.verdicts):
            return
        if left:
            say("the storm was at another point just then; once more")
    raise DemoError(f"none of {TRIES} verdicts names {' or '.join(scene.verdicts)}")


def run(scene: Scene, page: Path, keep: bool) -> None:
    capture = page.with_suffix(".jsonl.zst")
    with started(scene) as (server, how), scene.stall(server):
        say(f"stalled it: {scene.story}")
        before = server.held_connection_ids()
        capture_stall(scene, server, how, capture)
        show_way(capture)
        check_unharmed(server, before)
        if keep:
            write_report(capture, page)
            say("the stall goes on until Ctrl-C; try scripts/stallscope in another terminal")
            say(f"to talk to the server: {server.client_command()}")
            signal.pause()
    say("the server is stopped and its folder removed")
    if not keep:
        write_report(capture, page)
        say("to try next:")
        say(f"  scripts/stallscope analyze {shlex.quote(str(capture))} --full   # all that it saw")
        say("  scripts/demo --keep, and in another terminal: scripts/stallscope top -p mariadbd")
        say("  scripts/stallscope doctor   # what works on this machine, and what is missing")


def end_once(number: int, frame: FrameType | None) -> NoReturn:
    """Leave through the clean-up, which a second signal does not interrupt."""
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--server", choices=("mariadb", "mysql55"), default="mariadb")
    parser.add_argument("--keep", action="store_true", help="keep the stall until Ctrl-C")
    parser.add_argument("--report", type=Path, metavar="FILE", help="the HTML report to write")
    arguments = parser.parse_args()
    page = arguments.report or BUILD / f"demo-{arguments.server}.html"
    from tests.support.servers import ChildEnded, Late, Unavailable

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_once)
    try:
        run(scenes()[arguments.server], page.absolute(), arguments.keep)
    except (DemoError, ChildEnded, Late, Unavailable, subprocess.TimeoutExpired) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
