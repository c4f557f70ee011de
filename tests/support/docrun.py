# SPDX-License-Identifier: Apache-2.0
"""Run the sessions in the docs, and compare or rewrite what they printed: see docblocks."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.demo import end_once
from tests.support.docblocks import Block, Command, DocError, blocks, difference, elided, missing
from tests.support.servers import (
    MEMORY,
    PATIENCE,
    ChildEnded,
    Late,
    MariaDB,
    MySQL55,
    MySQL97,
    Postgres,
    SqlServer,
    Unavailable,
)
from tests.support.stall import STALLS

__all__ = ["CHECKOUT", "PAGES", "Scene", "compare", "differences", "rewritten"]

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = (CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md")))
SERVERS = {"mariadb": MariaDB, "mysql55": MySQL55, "mysql97": MySQL97, "postgres": Postgres}
ON_DISK = frozenset({"index-lock", "index-lock-fixed"})
"""Stalls that are none where reading a file takes no time."""
TRIES = 40
LONGEST_SQL = 60
"""Seconds: the most that ``--sql-deadline`` takes."""
FAILURES = (ChildEnded, DocError, Late, Unavailable, subprocess.TimeoutExpired)

_PID = re.compile(r"(?<= -p )\d+")
_SNAP = re.compile(r"(?<=stallscope snap )(?=-p )")
_SOCKET = re.compile(r"(?<=--socket=)\S+")
_FOLDER = re.compile(r"(?<=psql -h )\S+")
_DEVICE = re.compile(r"(?<=fsfreeze --unfreeze )\S+")
_ENDED = re.compile(
    r"(?:(?<=KILL )|(?<=KILL QUERY )|(?<=pg_terminate_backend\()|(?<=pg_cancel_backend\())\d+"
)
# What a user copies from what was printed: in a command line, in what was printed before.
_COPIED = (
    (_ENDED, re.compile(r"connection (\d+)")),
    (re.compile(r"\b\d{8}T[\d.]+Z-[\w-]+"), re.compile(r"\b(\d{8}T[\d.]+Z-[\w-]+)")),
)


class Scene:
    """A folder to run commands in, as if in the checkout, and the server of the moment.

    ``parent`` is the folder to make those of servers in, where their stall is not the disk's.
    """

    def __init__(self, folder: Path, parent: Path | None = None) -> None:
        self.folder = folder
        self._parent = parent
        self._server: SqlServer | Postgres | None = None
        self._running = ExitStack()
        self._printed: list[str] = []
        for name in ("scripts", "docs", "tests"):
            (folder / name).symlink_to(CHECKOUT / name)

    def enter(self, context: dict[str, str]) -> None:
        """Start what the context asks for, after what runs has ended."""
        if not {"stall", "server"} & context.keys():
            return
        self.close()
        name = context.get("stall", context.get("server", ""))
        if name == "none":
            return
        with _temporary_folders_in(None if name in ON_DISK else self._parent):
            if "stall" in context:
                if name not in STALLS:
                    raise DocError(f"no stall {name}; scripts/stall --help has them")
                self._server, made = self._running.enter_context(STALLS[name].started())
                self._running.enter_context(made)
            elif name in SERVERS:
                self._server = self._running.enter_context(SERVERS[name]())
            else:
                raise DocError(f"no server {name}; known: {', '.join(SERVERS)}")

    def close(self) -> None:
        self._server = None
        self._running.close()

    def as_typed_here(self, line: str) -> str:
        """Return a command line for the server of this scene instead of the one it was of."""
        if self._server is not None:
            line = _PID.sub(str(self._server.pid), line)
            if isinstance(self._server, SqlServer):
                line = _SOCKET.sub(str(self._server.socket), line)
                device = self._server.folder.parent.with_name("below")
                line = _DEVICE.sub(str(device), line)
            elif isinstance(self._server, Postgres):
                line = _FOLDER.sub(str(self._server.folder), line)
        for typed, printed in _COPIED:
            copied = next(filter(None, map(printed.search, reversed(self._printed))), None)
            if copied is not None:
                line = typed.sub(copied[1], line)
        return line

    def run(self, line: str, context: dict[str, str]) -> list[str]:
        """Run one command line as a user's shell does; return what it printed.

        The server is asked with more patience than a user has: a machine can be away for longer.
        """
        line = _SNAP.sub(f"--sql-deadline {LONGEST_SQL} ", line)
        for _ in range(TRIES):
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", line],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=PATIENCE,
                check=False,
            )
            if done.returncode not in _codes(context):
                raise DocError(f"`{line}` ended with {done.returncode}: {done.stdout[-800:]}")
            if not missing(context.get("until", ""), done.stdout):
                self._printed.append(done.stdout)
                return [text.rstrip() for text in done.stdout.rstrip("\n").split("\n")]
        raise DocError(f"none of {TRIES} runs of `{line}` printed {context['until']!r}")

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "HOME": str(self.folder)}
        environment["XDG_STATE_HOME"] = str(self.folder / "state")
        environment["PATH"] = f"{CHECKOUT}/scripts:{os.environ['PATH']}:/usr/sbin:/sbin"
        return environment


def _codes(context: dict[str, str]) -> tuple[int, ...]:
    # 3: done in part, and the output says what is missing.
    return (int(context["code"]),) if "code" in context else (0, 3)


@contextmanager
def _temporary_folders_in(parent: Path | None) -> Iterator[None]:
    before = tempfile.tempdir
    if parent is not None:
        tempfile.tempdir = str(parent)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextmanager
def _scene(parent: Path | None = None) -> Iterator[Scene]:
    # The servers' unprivileged user need not enter it.
    with tempfile.TemporaryDirectory(prefix="stallscope-docs-", dir=parent) as name:
        scene = Scene(Path(name), parent)
        try:
            yield scene
        finally:
            scene.close()


def context_of(block: Block, command: Command) -> dict[str, str]:
    """Return what holds for a command: only a session's last one is repeated.

    Where it is the only one, it is repeated until it prints all that its block is about.
    """
    if command is not block.commands[-1]:
        return {key: value for key, value in block.context.items() if key != "until"}
    if len(block.commands) == 1 and {"until", "shows"} <= block.context.keys():
        return {**block.context, "until": "{until}; {shows}".format_map(block.context)}
    return block.context


def compare(scene: Scene, block: Block) -> list[str]:
    """Run a session; return how what it prints differs from the page."""
    scene.enter(block.context)
    found = []
    printed: list[str] = []
    for command in block.commands:
        line = scene.as_typed_here(command.line)
        actual = scene.run(line, context_of(block, command))
        printed += actual
        unlike = None if "shows" in block.context else difference(command.output, actual)
        if unlike is not None:
            found.append(f"line {block.first + 1}: `{line}`: {unlike}")
    page = [line for command in block.commands for line in command.output]
    for where, lines in (("the page", page), ("the output", printed)):
        for text in missing(block.context.get("shows", ""), "\n".join(lines)):
            found.append(f"line {block.first + 1}: {where} does not have {text!r}")
    return found


def differences(page: Path) -> list[str]:
    """Run the sessions of a page; return how what they print differs from what it says.

    All of it is in memory: a disk that is slow for a while would be another stall, or a thread
    more that waits.
    """
    found: list[str] = []
    with _scene(MEMORY) as scene:
        for block in blocks(page.read_text()):
            if block.not_run is None:
                found += compare(scene, block)
    return found


def rewritten(page: Path, pictures: bool) -> tuple[str, list[str]]:
    """Return the page with what its sessions print now, and what its author has to check."""
    text = page.read_text()
    lines = text.splitlines()
    moved = 0
    remarks: list[str] = []
    with _scene() as scene:
        for block in blocks(text):
            if block.not_run is not None:
                continue
            try:
                scene.enter(block.context)
                new = [line for c in block.commands for line in _session(scene, block, c, remarks)]
                if pictures and block.picture is not None:
                    source, picture = block.picture
                    photograph(scene.folder / source, page.parent / picture)
            except FAILURES as error:
                remarks.append(f"line {block.first + 1} stays as it was: {error}")
                continue
            lines[block.first + 1 + moved : block.last + moved] = new
            moved += len(new) - (block.last - block.first - 1)
    return "\n".join(lines) + "\n", remarks


def _session(scene: Scene, block: Block, command: Command, remarks: list[str]) -> list[str]:
    line = scene.as_typed_here(command.line)
    actual = scene.run(line, context_of(block, command))
    if not command.output and actual == [""]:
        return [f"$ {line}"]
    shown = elided(command.output, actual)
    if shown is None:
        remarks.append(f"`{line}`: what to leave out is not clear any more; all of it is there")
        shown = actual
    return [f"$ {line}", *shown]


def photograph(source: Path, picture: Path) -> None:
    """Save what a browser shows of a report at first."""
    # Imported late: the tests' browser is not there on every machine.
    sys.path.insert(0, str(CHECKOUT))
    from tests.support.browser import chromium, quiet_page

    picture.parent.mkdir(exist_ok=True)
    with chromium() as browser, quiet_page(browser, source, width=1000, height=800) as page:
        page.screenshot(path=picture)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/docs", description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, metavar="FILE", help="default: all pages")
    parser.add_argument("--update", action="store_true", help="write what is printed now")
    parser.add_argument("--no-pictures", action="store_true", help="do not make pictures")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_once)
    failed = 0
    for page in arguments.pages or PAGES:
        try:
            if arguments.update:
                text, remarks = rewritten(page, not arguments.no_pictures)
                page.write_text(text)
            else:
                remarks = differences(page)
        except FAILURES as error:
            remarks = [str(error)]
        for remark in remarks:
            print(f"docs: {page}: {remark}", file=sys.stderr)
        failed += bool(remarks)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
