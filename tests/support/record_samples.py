# SPDX-License-Identifier: Apache-2.0
"""Record the samples that triggers decide on: of healthy servers, and through real stalls.

    .venv/bin/python -m tests.support.record_samples healthy mariadb FILE
    .venv/bin/python -m tests.support.record_samples stall row-lock FILE

Files are JSON lines under zstd, one stallscope.collectors.triggers.recording.Record each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP

import msgspec
from backports import zstd

from stallscope.base.errors import StallscopeError
from stallscope.collectors.collector import Collector
from stallscope.collectors.host.load import Load
from stallscope.collectors.host.pressure import Pressure
from stallscope.collectors.host.process import ProcessNumbers
from stallscope.collectors.probestream import Stream
from stallscope.collectors.sql.connection import Connection
from stallscope.collectors.sql.heartbeat import Heartbeat
from stallscope.collectors.sql.login import Login
from stallscope.collectors.sql.processlist import Processlist
from stallscope.collectors.sql.status import Status
from stallscope.collectors.triggers import recording, triggerfile
from stallscope.collectors.triggers.engine import status_variables
from stallscope.collectors.triggers.recording import Record
from stallscope.model import waitlines
from stallscope.model.samples import Sample
from tests.support.servers import MariaDB, MySQL55, MySQL97, SqlServer, program
from tests.support.servers.clients import running_statements
from tests.support.stall import STALLS
from tests.support.stalls import (
    deadlock_check_storm,
    global_read_lock,
    metadata_lock_pileup,
    row_lock_convoy,
)
from tests.support.stalls.load import sysbench_load

SERVERS: dict[str, Callable[[], SqlServer]] = {
    "mariadb": MariaDB,
    "mysql55": MySQL55,
    "mysql97": MySQL97,
}
MIXES = ("oltp_read_only", "oltp_write_only", "oltp_read_write")
CLIENTS = (4, 16, 64)
MORE_STATUS = frozenset(
    {"Com_select", "Com_insert", "Com_update", "Com_delete", "Com_commit", "Connections"}
    | {"Handler_read_key", "Handler_read_next", "Handler_read_rnd_next", "Handler_write"}
    | {"Handler_update", "Handler_delete", "Innodb_buffer_pool_read_requests", "Queries"}
    | {"Innodb_data_fsyncs", "Innodb_data_reads", "Innodb_data_writes", "Innodb_os_log_fsyncs"}
    | {"Opened_tables", "Threads_connected"}
)
"""In addition to those that the defaults read: to try other triggers on the same recordings."""
PREFIXES = ("processlist.", "heartbeat.", "psi.", "host.run_queue", "host.cpus")
PROCESS = frozenset(("process.rss_bytes", "process.cpu_share", "process.threads"))
LONG_WAITS = ("--threshold=50", "--top=8")
LEVEL = 19
SECONDS_BEFORE = 6
SECONDS_WITHIN = 12
SECONDS_AFTER = 6


class Recorder:
    """Polls once a second, as the agent does, in a thread of its own."""

    def __init__(self, server: SqlServer) -> None:
        self.records: list[Record] = []
        self._stop = threading.Event()
        self._connection = Connection(Login(user="root", socket=str(server.socket)))
        names = status_variables(triggerfile.defaults()) | MORE_STATUS
        self._lanes: Sequence[Sequence[Collector]] = (
            (
                Status(self._connection, names=names),
                Processlist(self._connection),
                Heartbeat(self._connection),
            ),
            (ProcessNumbers(server.pid), Pressure(), Load()),
        )
        self._stream = Stream(
            ["waits", f"--pid={server.pid}", "--interval=1000", *LONG_WAITS],
            max_line=waitlines.MAX_LINE,
        )
        self._threads = [
            *(threading.Thread(target=self._collect, args=(thread,)) for thread in self._lanes),
            threading.Thread(target=self._watch),
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._stream:
            for thread in self._threads:
                thread.start()
            try:
                yield
            finally:
                self._stop.set()
                self._stream.end()
                for thread in self._threads:
                    thread.join()
                self._connection.close()

    def mark(self, what: str) -> None:
        """Note what happens from here on."""
        print(f"{time.strftime('%X')} {what}", flush=True)
        self.records.append(Record(time.time_ns(), time.monotonic_ns(), mark=what))

    def stay(self, seconds: float) -> None:
        """Let it record for a while: the one thing to wait for is time."""
        self._stop.wait(seconds)

    def _collect(self, thread: Sequence[Collector]) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += 1.0
            for collector in thread:
                sample = _look(collector)
                self.records.append(Record(sample.time_ns, sample.clock_ns, sample=sample))

    def _watch(self) -> None:
        for number, data in enumerate(self._stream.lines(30.0, lambda: 1.0), 1):
            line = waitlines.loads(data, "probe", number)
            if isinstance(line, waitlines.WaitLine) and not line.final:
                short = recording.shortened(line)
                self.records.append(Record(time.time_ns(), time.monotonic_ns(), line=short))

    def save(self, path: Path) -> None:
        self.records.sort(key=lambda record: record.clock_ns)
        text = b"".join(msgspec.json.encode(record) + b"\n" for record in self.records)
        path.write_bytes(zstd.compress(text, LEVEL))
        print(f"{path}: {len(self.records)} records, {path.stat().st_size} bytes", flush=True)


def _look(collector: Collector) -> Sample:
    time_ns, clock_ns = time.time_ns(), time.monotonic_ns()
    try:
        sample = collector.collect()
    except StallscopeError as error:
        elapsed = (time.monotonic_ns() - clock_ns) / 1e6
        return Sample(collector.name, time_ns, clock_ns, elapsed_ms=elapsed, error=str(error))
    wanted = {
        name: float(f"{value:.6g}") if name.startswith(("psi.", "heartbeat.")) else value
        for name, value in sample.values.items()
        if "." not in name or name.startswith(PREFIXES) or name in PROCESS
    }
    return msgspec.structs.replace(sample, values=wanted, elapsed_ms=round(sample.elapsed_ms, 2))


def healthy(name: str, seconds: float, path: Path) -> None:
    """Record what a healthy server does, one kind of load after the other."""
    with SERVERS[name]() as server:
        recorder = Recorder(server)
        with recorder.running():
            recorder.mark("idle")
            recorder.stay(seconds)
            for clients in CLIENTS:
                for mix in MIXES:
                    recorder.mark(f"sysbench {mix} {clients}")
                    with sysbench_load(server, clients, mix):
                        recorder.stay(seconds)
            for _ in range(3):
                recorder.mark("sysbench comes and goes")
                with sysbench_load(server, 32):
                    recorder.stay(3)
                recorder.stay(3)
            with sysbench_load(server, 16):
                recorder.mark("mysqldump --single-transaction")
                dump(server)
                recorder.mark("ALTER TABLE of a table that nobody uses")
                server.execute(
                    "CREATE TABLE quiet AS SELECT * FROM sbtest1",
                    "ALTER TABLE quiet ADD INDEX (k)",
                    "ALTER TABLE quiet ENGINE=InnoDB",
                    "DROP TABLE quiet",
                    database="sbtest",
                )
            # Of transactions with several statements some wait for the lock and others for their
            # rows, which the lock waits for in turn: that would be a stall.
            with sysbench_load(server, 16, "oltp_update_index"):
                for _ in range(5):
                    recorder.mark("FLUSH TABLES WITH READ LOCK, as a backup does")
                    server.execute(
                        "FLUSH TABLES WITH READ LOCK", "SELECT SLEEP(0.2)", "UNLOCK TABLES"
                    )
                    recorder.stay(2)
            recorder.mark("idle connections and sleepers")
            with running_statements(server, "sbtest", ["SELECT SLEEP(3600)"] * 20):
                recorder.stay(seconds)
        recorder.save(path)


def dump(server: SqlServer) -> None:
    """Read all tables in one snapshot, by mysqldump where it speaks the server's language."""
    if not isinstance(server, MariaDB):
        connection = server.connect("sbtest")
        with connection, connection.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            for (table,) in server.query("SHOW TABLES FROM sbtest"):
                cursor.execute(f"SELECT * FROM `{table}`")
        return
    command = [str(program("mysqldump")), "--no-defaults", f"--socket={server.socket}"]
    command += ["--user=root", "--single-transaction", "--skip-triggers", "sbtest"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=300)


@contextmanager
def hang(server: SqlServer) -> Iterator[None]:
    """Stop the process, so that nothing answers."""
    os.kill(server.pid, SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, SIGCONT)


OTHERS: dict[
    str, tuple[Callable[[], SqlServer], Callable[[SqlServer], AbstractContextManager[object]]]
] = {
    "mariadb-row-lock": (MariaDB, row_lock_convoy),
    "mariadb-deadlock-check": (MariaDB, lambda server: deadlock_check_storm(server, 190)),
    "mariadb-hang": (MariaDB, hang),
    "mysql55-hang": (MySQL55, hang),
    "mysql55-metadata-lock": (MySQL55, metadata_lock_pileup),
    "mysql55-global-read-lock": (MySQL55, global_read_lock),
    "mysql97-metadata-lock": (MySQL97, metadata_lock_pileup),
    "mysql97-global-read-lock": (MySQL97, global_read_lock),
    "mysql97-row-lock": (MySQL97, row_lock_convoy),
}


def stall(name: str, path: Path) -> None:
    """Record a server before, during and after a stall. Marks: begin, there, over."""
    if name in OTHERS:
        with OTHERS[name][0]() as server:
            _through(server, OTHERS[name][1](server), path)
    else:
        with STALLS[name].started() as (server, made):
            _through(server, made, path)


def _through(server: SqlServer, made: AbstractContextManager[object], path: Path) -> None:
    recorder = Recorder(server)
    with recorder.running():
        recorder.mark("calm")
        recorder.stay(SECONDS_BEFORE)
        recorder.mark("begin")
        with made:
            recorder.mark("there")
            recorder.stay(SECONDS_WITHIN)
        recorder.mark("over")
        recorder.stay(SECONDS_AFTER)
    recorder.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("healthy", "stall"))
    parser.add_argument("name", choices=(*SERVERS, *STALLS, *OTHERS))
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each healthy load")
    arguments = parser.parse_args()
    if arguments.what == "healthy":
        healthy(arguments.name, arguments.seconds, arguments.file)
    else:
        stall(arguments.name, arguments.file)


if __name__ == "__main__":
    main()
