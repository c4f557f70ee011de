# SPDX-License-Identifier: Apache-2.0
"""One moment of a live server in every format that people have, and nothing of this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from stallscope.analyzers import importers
from stallscope.collectors import gdb as gdb_collector
from tests.support.dumps import held
from tests.support.servers import (
    ChildEnded,
    Late,
    Postgres,
    SqlServer,
    Unavailable,
    cache_folder,
    program,
    wait_until,
)
from tests.support.stalls import Device

__all__ = ["all_formats", "awk", "folded", "scrubber"]

CHECKOUT = Path(__file__).resolve().parents[2]
SECONDS = 60.0
SQL_SECONDS = 5
Server = SqlServer | Postgres

PROCESSLIST_SHOWS = {
    "metadata-lock": r"Waiting for table metadata lock",
    "global-read-lock": r"Waiting for (?:global read|backup) lock",
    "user-level-lock": r"\bUser lock",
    "table-flush-wait": r"Waiting for table flush",
    "table-open-lock": r"Opening tables",
}
STATUS_SHOWS = {
    "innodb-row-lock": r"LOCK WAIT[^\0]*RECORD LOCKS",
    "innodb-autoinc-lock": r"lock mode AUTO-INC waiting",
    "innodb-index-lock": r"has waited at btr0",
    "innodb-adaptive-hash": r"btr0sea|btr_search",
    "innodb-range-estimate": r"estimating records in index range",
    "innodb-thread-concurrency": r"[1-9]\d* queries in queue",
}
"""What the right signatures look like in a report of the server; others do not show in it.

That a table is MyISAM's is not in the list of processes.
"""


def all_formats(server: Server, device: Device | None, right: Sequence[str]) -> dict[str, str]:
    """Return the text of each dump by its file's name: of one moment, but for a disk's own capture.

    ``right``: the signatures that are right, by which it is seen whether a report shows the stall.
    """
    clean = scrubber(server)
    found: dict[str, str] = {}
    if isinstance(server, SqlServer):
        found |= _reports(server, right)
    if device is not None:  # its threads cannot be stopped while they wait for it
        found["capture.jsonl"] = _own(server.pid)
    with _all_held(server, device) as pids:
        if device is None:
            found["capture.jsonl"] = _own(server.pid)
        found["eu-stack.txt"] = _of_each(pids, lambda pid: _eu_stack(server, pid))
        found["gdb.txt"] = _of_each(pids, lambda pid: _gdb(server, pid))
    found["pt-pmp.txt"] = _pt_pmp(found["gdb.txt"])
    found["pmp-awk.txt"] = awk(found["gdb.txt"])
    found["folded.txt"] = folded(found["gdb.txt"])
    return {name: clean(text) for name, text in found.items()}


def awk(text: str) -> str:
    """Return what the one-liner of poormansprofiler.org makes of gdb's text."""
    stacks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("Thread"):
            stacks.append([])
        elif line.startswith("#"):
            words = line.split(maxsplit=4)
            stacks[-1].append(words[3] if len(words) > 3 else "")
    counted = Counter(",".join(stack) for stack in stacks)
    lines = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return "".join(f"{count:7} {stack}\n" for stack, count in lines)


def folded(text: str) -> str:
    """Return gdb's text as one line a stack: outermost first, and how many threads have it."""
    counted: Counter[str] = Counter()
    for capture in importers.load(text.encode(), "gdb.txt"):
        for thread in capture.threads:
            counted[";".join(str(frame) for frame in reversed(thread.frames))] += 1
    return "".join(f"{stack} {count}\n" for stack, count in sorted(counted.items()) if stack)


def scrubber(server: Server) -> Callable[[str], str]:
    """Return what takes this machine's name and folders out of a text."""
    folders = [(str(server.folder), "/var/lib/db")]
    if isinstance(server, SqlServer):
        folders.append((str(server.data), "/var/lib/db/data"))
        folders.append((str(server.temporary), "/var/lib/db/temporary"))
    folders.append((str(cache_folder()), "/opt"))
    host = re.compile(rf"(?<![\w./-]){re.escape(os.uname().nodename)}(?![\w/])")
    others = re.compile(r"/(?:work|tmp|dev/shm|root)/[^\s\"',;)]*")

    def clean(text: str) -> str:
        for folder, plain in sorted(folders, key=lambda item: -len(item[0])):
            text = text.replace(folder, plain)
        return host.sub("db1", others.sub("/var/lib/db/x", text))

    return clean


def _children(pid: int) -> tuple[int, ...]:
    return tuple(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@contextmanager
def _all_held(server: Server, device: Device | None) -> Iterator[tuple[int, ...]]:
    """Hold the server's processes at once, and yield them.

    A disk that does not answer does so then, and the stall is over.
    """
    with ExitStack() as stack:
        _stop(stack, server.pid)  # no more of them are made
        pids = (server.pid,) if isinstance(server, SqlServer) else _processes(server, stack)
        if device is not None:
            device.thaw()
        wait_until(lambda: all(_state(pid) in "TtZX" for pid in pids), "all are stopped")
        # Who was ending just then is a zombie: nobody waits for it.
        alive = tuple(pid for pid in pids if _state(pid) in "Tt")
        for pid in alive:
            stack.enter_context(held(pid))
        yield alive


def _processes(server: Postgres, stack: ExitStack) -> tuple[int, ...]:
    children = _children(server.pid)
    for pid in children:
        _stop(stack, pid)
    return (server.pid, *children)


def _stop(stack: ExitStack, pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        stack.callback(_go_on, pid)


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    """Return the state of its first thread; X where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _of_each(pids: Sequence[int], dump: Callable[[int], str]) -> str:
    return "\n".join(dump(pid) for pid in pids)


def _own(pid: int) -> str:
    with tempfile.TemporaryDirectory(prefix="stallscope-corpus-") as folder:
        file = Path(folder) / "capture.jsonl"
        command = [sys.executable, "-P", "-m", "stallscope", "snap", "-p", str(pid)]
        command += ["--once", "--no-sql", "--backend", "bpf", "-o", str(file)]
        _output(command, codes=(0, 3), PYTHONPATH=str(CHECKOUT))
        return file.read_text()


def _eu_stack(server: Server, pid: int) -> str:
    command = [_path("eu-stack"), "-p", str(pid)]
    if isinstance(server, SqlServer):
        command = server.seeing_its_files(*command)
    # 1 where one stack has no proper end.
    return _output(command, codes=(0, 1))


def _gdb(server: Server, pid: int) -> str:
    return _output(gdb_collector.command(_path("gdb"), pid), codes=(0, 1))


def _pt_pmp(text: str) -> str:
    with tempfile.TemporaryDirectory(prefix="stallscope-corpus-") as folder:
        file = Path(folder) / "gdb.txt"
        file.write_text(text)
        return _output([_path("pt-pmp"), str(file)])


def _reports(server: SqlServer, right: Sequence[str]) -> dict[str, str]:
    """Return the server's reports, where it answers and they show the stall."""
    statements = {
        "innodb-status.txt": ("SHOW ENGINE INNODB STATUS", STATUS_SHOWS, ("-N", "-B", "-r")),
        "processlist.txt": ("SHOW FULL PROCESSLIST", PROCESSLIST_SHOWS, ("-t",)),
    }
    found = {}
    for name, (statement, shows, how) in statements.items():
        command = [_path("mariadb"), "--no-defaults", f"--socket={server.socket}", "-uroot"]
        try:
            text = _output([*command, "--skip-ssl", *how, "-e", statement], seconds=SQL_SECONDS)
        except (Late, ChildEnded):
            continue  # it hangs with the others
        if not right or any(id in shows and re.search(shows[id], text) for id in right):
            found[name] = text
    return found


def _output(
    command: Sequence[str],
    codes: Sequence[int] = (0,),
    seconds: float = SECONDS,
    **variables: str,
) -> str:
    environment = {**os.environ, "DEBUGINFOD_URLS": "", "LC_ALL": "C.UTF-8", **variables}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Late(f"{command[0]} took more than {seconds:g} s") from None
    if done.returncode not in codes:
        said = done.stderr[-500:].decode(errors="replace").strip()
        raise ChildEnded(f"{command[0]} ended with {done.returncode}: {said}")
    return done.stdout.decode(errors="replace")


def _path(name: str) -> str:
    found = program(name)
    if found is None:
        raise Unavailable(f"no {name} here: run scripts/setup --all")
    return found
