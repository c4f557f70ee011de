# SPDX-License-Identifier: Apache-2.0
"""Take a burst of captures now, report what they show, and save them if requested."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stallscope.analyzers import catalog
from stallscope.base import atomicfile
from stallscope.base.errors import Exit, StallscopeError, UsageError
from stallscope.base.meanwhile import Meanwhile
from stallscope.base.text import one_line
from stallscope.collectors import processes, snapshot
from stallscope.collectors.calibration import layouts
from stallscope.collectors.host.accepting import Accepting
from stallscope.collectors.host.measured import Measured
from stallscope.commands import _calibration, _common, _options, _rings, _save, _sql
from stallscope.model import capturefile, sampled
from stallscope.model.capture import SESSIONS, Capture, Note
from stallscope.model.sessions import Sessions, annotate, from_memory, redact
from stallscope.reporters import progress
from stallscope.server.statements import normalize

if TYPE_CHECKING:
    from stallscope.collectors.sql.servers import ServerLogin

__all__ = ["EPILOG", "add_arguments", "run"]

CAPTURES = 20
INTERVAL_MS = 30
SECONDS = 10.0
"""The time limit, without the burst."""
LEAST_LOGIN = 0.3
"""Of the time limit of SQL: it is left after the burst for a server that has not answered yet."""
MAX_CAPTURES = 10_000
"""As the probe limits it."""

EPILOG = """\
examples:
  stallscope snap -p mysqld
  stallscope snap -p mariadbd --socket /run/mysqld/mysqld.sock -o stall.jsonl.zst
  stallscope snap -p mysqld --defaults-file /etc/stallscope/my.cnf
  stallscope snap -p 1234 --json | jq -r '.findings[0].signature'
  stallscope snap -p mysqld --calibrate
  stallscope snap -p mysqld --for 5 --interval 100
  stallscope snap -p mysqld --backend inproc
  stallscope snap --core core.1234 --exe /usr/sbin/mysqld
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_target_arguments(parser)
    how = parser.add_argument_group("capture")
    how.add_argument(
        "--backend",
        choices=snapshot.BACKENDS,
        default="auto",
        help="how to take stacks; auto never stops a thread without --allow-stop",
    )
    _options.add_ring_argument(how)
    how.add_argument(
        "--allow-stop",
        action="store_true",
        help="let auto use a backend that stops threads (ptrace, then gdb)",
    )
    how.add_argument(
        "--stop-blocked-reads",
        action="store_true",
        help="ptrace: also stop threads blocked in a read, which may then return EINTR",
    )
    how.add_argument(
        "--core", type=Path, metavar="FILE", help="read a core file instead of a process"
    )
    how.add_argument("--exe", type=Path, metavar="FILE", help="executable of the core file")
    how.add_argument(
        "--sysroot", type=Path, metavar="DIR", help="root directory of the core file's libraries"
    )
    how.add_argument(
        "--debug-dir",
        type=Path,
        metavar="DIR",
        help="directory of separate debug files, by build-id",
    )
    _options.add_pack_argument(how)
    how.add_argument(
        "--deadline",
        type=_common.seconds,
        metavar="SECONDS",
        help="time limit; a burst that is longer is cut (default: 10 more than the burst)",
    )
    how.add_argument(
        "--max-threads",
        type=_common.count,
        metavar="N",
        help="capture at most N threads (default 65536)",
    )
    how.add_argument(
        "--max-stack",
        type=_common.count,
        metavar="BYTES",
        help="copy at most BYTES of each stack (default 131072)",
    )
    how.add_argument(
        "--passes",
        type=_common.count,
        metavar="N",
        help="attempts to copy a thread that keeps running (default 8)",
    )
    how.add_argument("--no-kernel-stacks", action="store_true", help="omit kernel frames")
    _options.add_force_kernel_argument(how)
    _add_burst_arguments(parser)
    _add_file_arguments(parser)
    sql = _sql.add_sql_arguments(parser)
    _sql.add_deadline_argument(sql)
    sql.add_argument(
        "--calibrate",
        action="store_true",
        help="learn first where this build keeps connections in memory, for when SQL does not"
        " answer (see `stallscope calibrate`)",
    )
    _common.add_report_arguments(parser)


def _add_file_arguments(parser: argparse.ArgumentParser) -> None:
    save = parser.add_argument_group("file")
    save.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="save the capture; .zst compresses it; a file that exists is kept, and another name"
        " is chosen",
    )
    save.add_argument("--force", action="store_true", help="replace FILE if it exists")


def _add_burst_arguments(parser: argparse.ArgumentParser) -> None:
    burst = parser.add_argument_group("burst")
    burst.add_argument(
        "--captures",
        type=_common.count,
        metavar="N",
        help=f"captures of which the verdict is drawn (default {CAPTURES})",
    )
    burst.add_argument(
        "--interval",
        type=_common.milliseconds,
        default=INTERVAL_MS,
        metavar="MS",
        help=f"milliseconds from one capture to the next (default {INTERVAL_MS})",
    )
    burst.add_argument(
        "--for",
        dest="duration",
        type=_common.seconds,
        metavar="SECONDS",
        help="take captures for so long, instead of --captures",
    )
    burst.add_argument("--once", action="store_true", help="take one capture")


def run(args: argparse.Namespace) -> Exit:
    """Capture, analyze, print, save."""
    _check(args)
    # A mistake in the user's files comes first.
    theirs = catalog.load(args.signatures) if args.signatures else None
    if args.output is not None:
        args.output = _output(args)
    unsaved: str | None = None
    with ExitStack() as at_end:
        # The burst is a wait of half a second: the signatures are read meanwhile.
        signatures = Meanwhile(lambda: theirs or catalog.load(), "stallscope-signatures")
        capture = _capture(args, at_end)
        try:
            stall = _report(capture, args, signatures.result())
        finally:  # the report comes first: the disk may be the cause of the stall
            if args.output is not None:
                data = capturefile.encode(capture, args.output)
                unsaved = _save.save(args.output, data, force=args.force)
                if unsaved is not None:
                    print(f"stallscope: {one_line(unsaved, 2000)}", file=sys.stderr)
    return _common.exit_code(
        partial=capture.partial or unsaved is not None,
        stall=stall,
        fail_on_stall=args.fail_on_stall,
    )


def _output(args: argparse.Namespace) -> Path:
    """Return the file to write. One that exists is kept, and another name is chosen: what a server
    shows now does not come back."""
    wanted: Path = args.output
    is_taken = wanted.is_file() and not args.force
    found = atomicfile.free_name(wanted) if is_taken else wanted
    atomicfile.check_can_create(found, force=args.force)
    if is_taken:
        text = f"{wanted} exists: the capture goes to {found}"
        print(f"stallscope: {one_line(text, 2000)}", file=sys.stderr)
    return found


def _report(capture: Capture, args: argparse.Namespace, signatures: catalog.Catalog) -> bool:
    """Analyze and print; say whether there is a stall."""
    if args.output is not None:
        capture = msgspec.structs.replace(capture, path=str(args.output))
    inputs: tuple[dict[str, str | int], ...] = ()
    if args.core is not None:
        inputs = ({"path": str(args.core), "format": "core", "captures": 1},)
    analysis = _common.analyze(capture, signatures, grouping=_common.grouping(args), inputs=inputs)
    _common.print_report(analysis, args)
    sys.stdout.flush()
    return bool(analysis.findings)


def _check(args: argparse.Namespace) -> None:
    """Refuse contradicting options before anything is captured."""
    selected = args.pid or _common.selector(args)
    if args.ring is not None and args.core is not None:
        raise UsageError("a capture is of a ring or of a core file: give --ring or --core")
    if args.backend == "core" and args.core is None:
        raise UsageError("--backend core needs --core FILE")
    if args.core is not None and args.backend not in ("auto", "core"):
        raise UsageError(f"--core goes with --backend core, not {args.backend}")
    if args.core is not None and selected:
        raise UsageError("a capture is of a process or of a core file: give -p or --core")
    if sum((args.once, args.captures is not None, args.duration is not None)) > 1:
        raise UsageError("give one of --once, --captures and --for")
    if not 1 <= _captures(args) <= MAX_CAPTURES:
        raise UsageError(
            f"a burst has 1 to {MAX_CAPTURES} captures: change --captures, --for or --interval"
        )
    if args.calibrate and (args.no_sql or args.core is not None):
        raise UsageError("--calibrate needs a live server and SQL")
    if args.core is None and (args.exe is not None or args.sysroot is not None):
        raise UsageError("--exe and --sysroot go with --core")


def _captures(args: argparse.Namespace) -> int:
    """Return how many captures the burst is to have."""
    if args.once:
        return 1
    if args.duration is not None:
        length: float = args.duration * 1000
        interval: int = args.interval
        return max(1, round(length / interval))
    wanted: int = CAPTURES if args.captures is None else args.captures
    return wanted


def _deadline(args: argparse.Namespace) -> float:
    if args.deadline is not None:
        return float(args.deadline)
    length: float = _captures(args) * args.interval / 1000
    return SECONDS + length


def _capture(args: argparse.Namespace, at_end: ExitStack) -> Capture:
    """Take the captures. ``at_end`` closes the connection, after the report: a server that does not
    answer keeps nobody waiting for what is known."""
    options = snapshot.Options(
        backend=_rings.backend(args),
        allow_stop=args.allow_stop,
        stop_blocked_reads=args.stop_blocked_reads,
        kernel_stacks=not args.no_kernel_stacks,
        max_threads=args.max_threads,
        max_stack=args.max_stack,
        passes=args.passes,
        seconds=_deadline(args),
        debug_dir=args.debug_dir,
        pack_dirs=_options.pack_dirs(args),
        force_kernel=args.force_kernel,
        captures=_captures(args),
        interval_ms=args.interval,
        ring=args.ring,
    )
    if args.core is not None:
        with progress.while_waiting(f"unwinding {args.core.name}"):
            return snapshot.take_core(args.core, args.exe, args.sysroot, options)
    named = _sql.asked_for(args)
    pids, servers = _rings.resolve(args, args.pid, _common.selector(args))
    with progress.while_waiting("taking the capture"):
        login, notes = _login(args, servers, named=named or args.calibrate)
        if args.calibrate:
            _calibration.run(servers, login)
        sql = None if login is None else _Sql(login, args.sql_deadline, at_end)
        layout = layouts.of_servers(servers)
        if layout.note is not None:
            notes = (*notes, layout.note)
        options = msgspec.structs.replace(options, layout=layout.text)
        host = Measured(pids[0], servers[0] if servers else None)
        taken = snapshot.take(pids, servers, options)
        values, names = host.end()
        capture = _with_sessions(taken, sql, notes)
        return sampled.add(capture, {**values, **_queued(servers)}, names)


def _queued(servers: tuple[processes.Server, ...]) -> dict[str, float]:
    """Return how many clients queue at the sockets of the one server; nothing where that is not
    known."""
    if len(servers) != 1:
        return {}
    server = servers[0]
    try:
        with closing(Accepting(server.main.pid, server.ports, server.sockets)) as collector:
            return dict(collector.collect().values)
    except StallscopeError:
        return {}


def _login(
    args: argparse.Namespace, servers: tuple[processes.Server, ...], *, named: bool
) -> tuple[ServerLogin | None, tuple[str, ...]]:
    """Return the login of the one server that is asked over SQL, and notes; None: no SQL."""
    server = _sql.one_of(servers)
    if args.no_sql or (server is None and not named):
        return None, ()
    try:
        return _sql.login(args, server)
    except UsageError as error:
        if named:
            raise
        return None, (str(error),)  # errors of default option files: take the capture without SQL


class _Sql:
    """A connection that logs in while the captures are taken, and is asked after them. A first
    question meanwhile shows whether the server answers at all."""

    def __init__(self, login: ServerLogin, seconds: float, at_end: ExitStack) -> None:
        from stallscope.collectors.sql import servers

        self._seconds = seconds
        self._begun = time.monotonic()
        self._sql = servers.connect(login)
        at_end.enter_context(closing(self._sql.connection))
        self._sql.connection.begin(self._sql.first)

    def sessions(self) -> Sessions:
        """Return all connections and lock waits, or why they are not known."""
        seconds = self._seconds
        if self._sql.connection.is_busy:  # the time of the burst was enough for an answer
            spent = time.monotonic() - self._begun
            seconds = max(seconds - spent, LEAST_LOGIN * seconds)
        return self._sql.fetch(seconds)


def _with_sessions(taken: snapshot.Taken, sql: _Sql | None, notes: tuple[str, ...]) -> Capture:
    """Query the sessions after the stacks were captured; what SQL does not say is from the server's
    memory."""
    capture = taken.capture
    sessions = from_memory(taken.memory, None)
    if sql is not None:
        sessions = msgspec.structs.replace(sql.sessions(), memory=taken.memory)
    if sql is not None or taken.memory:
        capture = annotate(capture, redact(sessions, normalize))
    more = tuple(Note(SESSIONS, note) for note in notes)
    return msgspec.structs.replace(capture, notes=capture.notes + more)
