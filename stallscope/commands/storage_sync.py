# SPDX-License-Identifier: Apache-2.0
"""What a durable commit of a live server costs, and what other settings would give."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallscope.base.errors import Exit, UsageError
from stallscope.commands import _common, _options, _sql

if TYPE_CHECKING:
    from stallscope.analyzers.durability import ClassUse, Measured
    from stallscope.analyzers.syncfit import SyncSums
    from stallscope.collectors.processes import Server
    from stallscope.collectors.sql.asking import ServerConnection
    from stallscope.collectors.sql.commitclients import PauseMeter
    from stallscope.collectors.syncmeasure import Collected
    from stallscope.collectors.syncprobe import Probed
    from stallscope.model.storage import FileSums, StorageLine
    from stallscope.model.storagecounters import StorageCounters

__all__ = ["EPILOG", "add_arguments", "class_uses", "run"]

EPILOG = """\
examples:
  stallscope storage sync -p mysqld
  stallscope storage sync -p mariadbd --seconds 20 --json
  stallscope storage sync -p mysqld --probe-dir /var/lib/mysql --allow-write
  stallscope storage sync --probe-dir /mnt/new --allow-write      # a disk before it is used

Ctrl-C ends the measurement early and shows what was measured.
"""

_DEADLINE = 10.0
_MAX_SECONDS = 86_400
_SAMPLES = 60
_INTERVALS = (0.2, 10.0)
"""Seconds from one sample of the sessions that run to the next."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    _options.add_target_arguments(parser)
    _sql.add_sql_arguments(parser)
    what = parser.add_argument_group("measurement")
    what.add_argument(
        "--seconds",
        type=_common.time_between(1, _MAX_SECONDS),
        default=60.0,
        metavar="N",
        help="how long to watch the server (default 60)",
    )
    what.add_argument(
        "--probe-dir",
        type=Path,
        metavar="DIR",
        help="also write and sync a file of 64 MiB in DIR, for 5 s at most; needs --allow-write",
    )
    what.add_argument(
        "--allow-write", action="store_true", help="allow --probe-dir to write to its disk"
    )
    _options.add_force_kernel_argument(what)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", action="store_true", help="print JSON (stallscope.storage-sync/1)"
    )


def run(args: argparse.Namespace) -> Exit:
    """Measure, predict, print."""
    from stallscope.analyzers import durability
    from stallscope.collectors import processes
    from stallscope.reporters import lines, storagesync

    if args.allow_write != (args.probe_dir is not None):
        raise UsageError(
            "--probe-dir DIR writes 64 MiB to the disk of DIR: add --allow-write"
            if args.probe_dir is not None
            else "--allow-write needs --probe-dir DIR"
        )
    selector = _common.selector(args)
    server = None
    if args.pid or selector or args.probe_dir is None:
        servers = processes.resolve(args.pid, selector)[1]
        if len(servers) != 1:
            raise UsageError("give one -p: the prices are those of one server")
        server = servers[0]
    probed = () if args.probe_dir is None else _probe(args.probe_dir)
    found, partial = None, False
    if server is not None:
        measured, partial, said = _Measurement(args, server, probed).measure()
        found = storagesync.Report(
            durability.analyze(measured), server.name, server.main.pid, tuple(said)
        )
    report = storagesync.Whole(found, str(args.probe_dir or ""), _costs(probed))
    if args.json:
        print(storagesync.dumps(report))
    else:
        width = lines.width_of(sys.stdout)
        lines.print_lines(storagesync.render(report, width), sys.stdout)
    return _common.exit_code(partial=partial, stall=False, fail_on_stall=False)


def _probe(folder: Path) -> tuple[Probed, ...]:
    from stallscope.collectors import syncprobe
    from stallscope.collectors.waits import ended_by_signals
    from stallscope.reporters import progress

    ended = False

    def end() -> None:
        nonlocal ended
        ended = True

    what = f"writing and syncing {syncprobe.MAX_BYTES >> 20} MiB in {folder}"
    with ended_by_signals(end), progress.while_waiting(what):
        return syncprobe.measure_apart(folder, ended=lambda: ended)


def _sums(probed: Probed) -> SyncSums:
    from stallscope.analyzers.syncfit import SyncSums

    return SyncSums(
        probed.syncs, probed.sum_t, probed.sum_n, probed.sum_nn, probed.sum_nt, probed.sum_tt
    )


def _costs(probed: tuple[Probed, ...]) -> dict[str, Any]:
    from stallscope.analyzers.syncfit import cost

    return {one.call: cost(_sums(one)) for one in probed}


class _Measurement:
    """One run of the probe, with the server's counters before and after."""

    def __init__(
        self, args: argparse.Namespace, server: Server, probed: tuple[Probed, ...]
    ) -> None:
        self._args = args
        self._server = server
        self._probed = probed
        self._connection: ServerConnection[Any] | None = None
        self._first: StorageCounters | None = None
        self._last: StorageCounters | None = None
        self._clients: int | None = None
        self._running: list[int] = []
        self._own_thread: int | None = None
        self._pauses: PauseMeter | None = None
        self._notes: list[str] = []
        self._partial = False

    def measure(self) -> tuple[Measured, bool, list[str]]:
        """Return it, whether something is missing, and what."""
        from stallscope.collectors import storage, syncmeasure
        from stallscope.reporters import progress

        args = self._args
        interval = min(max(args.seconds / _SAMPLES, _INTERVALS[0]), _INTERVALS[1])
        asked = _sql.asked_for(args)
        if not args.no_sql and _sql.is_asked(self._server):
            self._connect(asked)
        try:
            what = f"watching the syncs of {self._server.name} for {args.seconds:g} s; Ctrl-C ends"
            with progress.while_waiting(what):
                collected = syncmeasure.collect(
                    self._server,
                    storage.Options(
                        seconds=args.seconds, interval=interval, force_kernel=args.force_kernel
                    ),
                    begun=self._begun,
                    meanwhile=self._sample,
                    over=self._over,
                )
        finally:
            if self._connection is not None:
                self._connection.close()
        if collected.lost:
            self._partial = True
            self._notes.append(f"{collected.lost} records were lost: counts are too small.")
        if collected.ended:
            self._partial = True
            self._notes.append("The server ended meanwhile.")
        return self._measured(collected), self._partial, self._notes

    def _connect(self, asked: bool) -> None:
        from stallscope.collectors.sql.servers import connect

        login, notes = _sql.login(self._args, self._server)
        self._notes += notes
        self._connection = connect(login).connection
        self._first = self._ask(required=asked)

    def _ask(self, *, required: bool = False) -> StorageCounters | None:
        from stallscope.collectors.sql.failures import SqlError
        from stallscope.collectors.sql.storagecounters import read_counters

        assert self._connection is not None
        try:
            counters: StorageCounters = self._connection.ask(read_counters, _DEADLINE)
            return counters
        except SqlError as error:
            if required:
                raise
            if not self._partial:
                self._notes.append(f"no SQL: {error}")
            self._partial = True
            return None

    def _begun(self) -> None:
        from stallscope.collectors.sql.commitclients import PauseMeter, own_thread
        from stallscope.collectors.sql.failures import SqlError

        if self._first is None or self._connection is None:
            return
        if self._first.family != "postgres":
            pid = self._server.main.pid
            with contextlib.suppress(SqlError):
                self._own_thread = self._connection.ask(
                    lambda session: own_thread(session, pid), _DEADLINE
                )
            self._pauses = PauseMeter(pid, self._own_thread)
        self._first = self._ask()

    def _sample(self, line: StorageLine) -> None:
        from stallscope.collectors.sql.commitclients import count_running
        from stallscope.collectors.sql.failures import SqlError

        if self._first is None or self._connection is None or self._first.family == "postgres":
            return
        # One sample less is no reason to report anything.
        with contextlib.suppress(SqlError):
            running = self._connection.ask(count_running, 1.0)
            if running is not None:
                self._running.append(running)
        syncs = [file for file in line.files if file.file_class in ("redo", "binlog")]
        count = sum(file.syncs for file in syncs)
        meter = self._pauses
        if meter is not None and count:
            pause = sum(file.sync_ns for file in syncs) / count / 1e9
            with contextlib.suppress(SqlError):
                self._connection.ask(lambda session: meter.sample(session, pause), 1.0)

    def _over(self) -> None:
        from stallscope.collectors.sql.commitclients import count_clients
        from stallscope.collectors.sql.failures import SqlError

        if self._first is None or self._connection is None:
            return
        self._last = self._ask()
        if self._last is None or self._last.family == "postgres":
            return
        seconds = self._last.clock_s - self._first.clock_s
        try:
            self._clients = self._connection.ask(
                lambda session: count_clients(session, seconds), _DEADLINE
            )
        except SqlError as error:
            self._notes.append(f"clients: {error}")
        if self._clients is None:
            self._notes.append(
                "The account sees no other sessions (GRANT PROCESS): clients are those that ran"
                " at the end."
            )
            running = self._last.values.get("Threads_running")
            self._clients = None if running is None else max(1, round(running) - 1)

    def _measured(self, collected: Collected) -> Measured:
        from stallscope.analyzers import syncfit
        from stallscope.analyzers.durability import Measured, ThreadUse
        from stallscope.analyzers.storagechanges import changes, is_on
        from stallscope.server.families import family

        main = self._server.main
        pauses = self._pauses.cost() if self._pauses is not None else None
        values: dict[str, Any] = {}
        if self._first is not None and self._last is not None:
            change = changes(self._first, self._last)
            self._notes += change.notes if change.restarted else ()
            # The counters cover some milliseconds more than the probe does.
            scale = collected.seconds / change.seconds if change.seconds else 0.0
            commits = change.commits
            settings = change.settings
            values = {
                "version": change.version,
                "commits": None if commits is None else commits.count * scale,
                "rows": None if change.rows is None else change.rows * scale,
                "binlog": is_on(settings.get("log_bin")),
                "flush": _number(settings.get("innodb_flush_log_at_trx_commit")),
                "sync_binlog": _number(settings.get("sync_binlog")),
            }
            if commits is not None and not commits.exact:
                self._notes.append(f"Commits are an estimate: {commits.source}.")
        probed = [syncfit.cost(_sums(one)) for one in self._probed if one.call == "fdatasync"]
        return Measured(
            seconds=collected.seconds,
            family=family(main.exe, main.comm),
            clients=self._clients,
            running=statistics.mean(self._running) if self._running else None,
            running_error=_standard_error(self._running),
            cpu_user=collected.cpu_user,
            cpu_system=collected.cpu_system,
            cpu_clients=collected.cpu_clients,
            threads=tuple(
                ThreadUse(time.seconds, time.turns, tid == self._own_thread)
                for tid, time in collected.threads.items()
            ),
            cpus=collected.cpus,
            pause_factor=None if pauses is None else pauses.factor,
            classes=class_uses(main.pid, collected.files),
            storage=probed[0] if probed else None,
            **values,
        )


def _standard_error(values: list[int]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def class_uses(pid: int, files: Iterable[FileSums]) -> dict[str, ClassUse]:
    """Add up the files of each class."""
    from stallscope.analyzers.durability import ClassUse
    from stallscope.analyzers.syncfit import SyncSums, total
    from stallscope.collectors.syncmeasure import file_system

    by_class = defaultdict(list)
    for file in files:
        by_class[file.file_class].append(file)
    uses = {}
    for name, group in by_class.items():
        asked = sum(file.requested_bytes for file in group)
        syncs = sum(file.syncs for file in group)
        uses[name] = ClassUse(
            total(
                SyncSums(
                    file.syncs,
                    file.sync_ns,
                    file.sum_n,
                    file.sum_nn,
                    file.sum_nt,
                    file.sum_tt,
                )
                for file in group
            ),
            writes=sum(file.requests for file in group),
            write_ns=sum(file.write_ns for file in group),
            direct=2 * sum(file.direct_bytes for file in group) > asked,
            dsync=2 * sum(file.dsync_writes for file in group) > syncs > 0,
            file_system=file_system(pid, group),
        )
    return uses
