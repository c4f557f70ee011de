# SPDX-License-Identifier: Apache-2.0
"""Whether what is read of connections from memory is right, how fast, and how fast a build of a
server is calibrated, under a load of connections that change."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench import introspection_mysql, introspection_postgres, progress
from tests.bench.introspection_clients import Fleet, fleet
from tests.bench.introspection_compare import FIELDS, Look, Outcome, Tally
from tests.bench.introspection_probe import SessionsProbe, Shot, one_shot, sessions_probe
from tests.bench.introspection_scale import read_many
from tests.bench.introspection_times import calibrated, checked
from tests.bench.load import environment
from tests.bench.stats import BenchError, Figure, Row, Section, figure, wanted
from tests.support.servers import (
    MEMORY,
    MariaDB,
    MariaDB114,
    MySQL55,
    MySQL97,
    Postgres,
    Postgres17,
    SqlServer,
)
from tests.support.servers.mariadb114 import base
from tests.support.servers.ports import free_port
from tests.support.targets import Target, trouble

__all__ = ["Measured", "Sizes", "measure_mysql", "measure_postgres", "sections"]

RIGHT = 0.995
READ_MS = 2.0
MANY_MS = 20.0
CALIBRATE_SECONDS = 1.0
CHECK_MS = 50.0
STRANGERS = 2


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    connections: int = 200
    seconds: float = 60.0
    captures: int = 100
    calibrations: int = 10
    many: int = 5000
    many_captures: int = 20


FULL = Sizes()
QUICK = Sizes(seconds=6.0, captures=20, calibrations=3, many=1000, many_captures=10)


@dataclass
class Measured:
    """All figures of one server."""

    name: str
    tally: Tally = field(default_factory=Tally)
    reads_ms: list[float] = field(default_factory=list)
    read: int = 0
    """Connections of the last capture."""
    calibrations: list[float] = field(default_factory=list)
    checks_ms: list[float] = field(default_factory=list)
    connections: int = 0
    statements: int = 0


MYSQLS: dict[str, type[SqlServer]] = {
    "mysql55": MySQL55,
    "mysql97": MySQL97,
    "mariadb": MariaDB,
    "mariadb114": MariaDB114,
}
POSTGRES: dict[str, type[Postgres]] = {"postgres": Postgres, "postgres17": Postgres17}
SERVERS = (*MYSQLS, "mariadb114-stripped", *POSTGRES)


def sections(server_name: str, quick: bool, only: Sequence[str]) -> Iterator[Section]:
    """Measure all servers, or those that ``only`` names; ``many`` are very many connections."""
    names = wanted((*SERVERS, "many"), only)
    sizes = QUICK if quick else FULL
    seed = random.SystemRandom().randrange(1 << 32)
    with _own_state():
        found = [_measured(name, sizes, seed) for name in names if name in SERVERS]
        if found:
            yield _accuracy(found, sizes, seed)
            yield _fields(found)
        calibrations = [one for one in found if one.calibrations]
        if calibrations:
            yield _calibrations(calibrations, sizes)
        many = read_many(sizes.many, sizes.many_captures) if "many" in names else None
        yield _reading(found, many, sizes)


@contextmanager
def _own_state() -> Iterator[None]:
    """Keep calibrations in a folder of our own."""
    with tempfile.TemporaryDirectory() as state, environment(XDG_STATE_HOME=state):
        yield


def _measured(name: str, sizes: Sizes, seed: int) -> Measured:
    if name in POSTGRES:
        return measure_postgres(POSTGRES[name], sizes, seed)
    with ExitStack() as stack:
        port = free_port()
        options = introspection_mysql.options(port)
        server = MYSQLS[name.partition("-")[0]](*options, parent=MEMORY)
        if name.endswith("-stripped"):
            assert isinstance(server, MariaDB114)
            server.executable = str(stack.enter_context(_stripped()))
        found = measure_mysql(server, port, sizes, seed)
        if name.endswith("-stripped"):
            found.name += ", stripped"
        return found


@contextmanager
def _stripped() -> Iterator[Path]:
    """Make a copy without symbols, which every user can run."""
    folder = Path(tempfile.mkdtemp(prefix="stallscope-stripped-", dir=MEMORY))
    try:
        folder.chmod(0o755)
        copy = Path(shutil.copy(base() / "bin" / "mariadbd", folder))
        subprocess.run(["strip", str(copy)], check=True)
        yield copy
    finally:
        shutil.rmtree(folder)


def measure_mysql(server: SqlServer, port: int, sizes: Sizes, seed: int) -> Measured:
    """Measure a MySQL or MariaDB that listens at this port, too."""
    with server:
        found = Measured(f"{server.name} {server.version()}")
        introspection_mysql.prepare(server)
        dialect = introspection_mysql.MySQLDialect(server, port)
        with (
            introspection_mysql.strangers(port, STRANGERS),
            fleet(dialect, sizes.connections, seed) as clients,
        ):
            aborted = server.status("Aborted_clients")
            layout: dict[str, int] = {}
            for number in range(sizes.calibrations):
                progress(f"introspection: {found.name}, calibration {number + 1}")
                seconds, layout = calibrated(server.pid)
                found.calibrations.append(seconds)
            found.checks_ms = checked(server.pid, sizes.calibrations)
            with sessions_probe([server.pid], layout) as probe:
                _warm(probe)

                def look() -> Look:
                    facts = clients.facts()
                    return Look(introspection_mysql.look(server), facts)

                def shoot() -> tuple[Shot, Look]:
                    moment = probe.begin()
                    after = Look(introspection_mysql.look(server), clients.facts())
                    return Shot(moment, probe.finish()), after

                _compare(found, sizes, clients, look, shoot)
            if left := trouble(server.pid):
                raise BenchError(f"left behind in the server: {left[:3]}")
            if server.status("Aborted_clients") != aborted:
                raise BenchError(f"{found.name} has lost a connection")
            if not server.answers():
                raise BenchError(f"{found.name} does not answer")
        _no_call_is_interrupted(layout)
    return found


def measure_postgres(server_type: type[Postgres], sizes: Sizes, seed: int) -> Measured:
    """Measure a PostgreSQL."""
    address = f"127.77.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
    with server_type(*introspection_postgres.options(address), parent=MEMORY) as server:
        found = Measured(f"{server.name} {server.version().split()[0]}")
        introspection_postgres.prepare(server)
        dialect = introspection_postgres.PostgresDialect(server, address)
        asking = introspection_postgres.Asking(server)
        with fleet(dialect, sizes.connections, seed) as clients:

            def look() -> Look:
                facts = clients.facts()
                return Look(asking.look(), facts)

            def shoot() -> tuple[Shot, Look]:
                shot = one_shot((server.pid, *clients.facts()))
                return shot, Look(asking.look(), clients.facts())

            _compare(found, sizes, clients, look, shoot)
            found.reads_ms = _served_reads((server.pid, *clients.facts()), sizes.captures)
            for pid in (server.pid, *clients.facts()):
                if left := _trouble(pid):
                    raise BenchError(f"left behind in {pid}: {left[:3]}")
            if not server.answers():
                raise BenchError(f"{found.name} does not answer")
        asking.close()
    return found


def _warm(probe: SessionsProbe) -> None:
    """The first capture reads symbols."""
    probe.begin()
    probe.finish()


def _served_reads(pids: Sequence[int], captures: int) -> list[float]:
    """Return the milliseconds of a serving probe's readings; backends that end are left out."""
    reads = []
    with sessions_probe([pid for pid in pids if Path(f"/proc/{pid}").exists()], {}) as probe:
        _warm(probe)
        for _ in range(captures):
            moment = probe.begin()
            probe.finish()
            reads.append(moment.read_ns / 1e6)
    return reads


def _trouble(pid: int) -> list[str]:
    try:
        return trouble(pid)
    except FileNotFoundError:
        return []  # it has said goodbye


def _compare(
    found: Measured,
    sizes: Sizes,
    clients: Fleet,
    look: Callable[[], Look],
    shoot: Callable[[], tuple[Shot, Look]],
) -> None:
    """Take the captures, and compare each with SQL before and after it."""
    begun = time.monotonic()
    for number in range(sizes.captures):
        progress(f"introspection: {found.name}, capture {number + 1}")
        due = begun + number * sizes.seconds / sizes.captures
        time.sleep(max(0.0, due - time.monotonic()))
        before = look()
        shot, after = shoot()
        if shot.stopped_ns:
            raise BenchError(f"{found.name}: threads were stopped for {shot.stopped_ns} ns")
        seen = {session.connection: session for session in shot.moment.sessions}
        found.tally.add(before, after, seen)
        found.reads_ms.append(shot.moment.read_ns / 1e6)
        found.read = len(seen)
    found.connections, found.statements = clients.connections, clients.statements


def _no_call_is_interrupted(layout: dict[str, int]) -> None:
    """Read the threads of a target that counts EINTR by the same layout."""
    with Target("eintr", "5") as target:
        with sessions_probe([target.pid], layout) as probe:
            for _ in range(5):
                probe.begin()
                probe.finish()
        target.wait_asleep()
        if times := target.ask("eintr")["times"]:
            raise BenchError(f"{times} calls of a target were interrupted")


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2%}" if whole else "-"


def _accuracy(found: Sequence[Measured], sizes: Sizes, seed: int) -> Section:
    rows, goals, notes = [], [], []
    for one in found:
        counts = one.tally.connections
        compared = sum(counts.values())
        right, wrong = counts[Outcome.RIGHT], counts[Outcome.WRONG]
        cells: dict[str, Figure | str] = {
            "compared": str(compared),
            "all fields right": _share(right, compared),
            "a field missing": str(counts[Outcome.MISSING]),
            "a field wrong": str(wrong),
            "changed meanwhile": str(one.tally.listed - compared),
            "connections made": str(one.connections),
            "statements": str(one.statements),
        }
        rows.append(Row(one.name, cells))
        goals.append(
            (
                f"{one.name}: {RIGHT:.1%} right, none wrong",
                compared > 0 and right >= RIGHT * compared and not wrong,
            )
        )
        notes += [f"{one.name}: {example}" for example in one.tally.examples]
    return Section(
        "accuracy",
        f"{sizes.captures} captures of {sizes.connections} connections that change,"
        f" {sizes.seconds:g} s, beside SQL",
        tuple(rows),
        checks=(
            "no connection was lost, no thread stopped or traced, and no call of a target with the"
            " same reads saw EINTR",
        ),
        goals=tuple(goals),
        notes=(f"seed {seed}", *notes),
    )


def _fields(found: Sequence[Measured]) -> Section:
    rows = []
    for name in FIELDS:
        cells = {}
        for one in found:
            counts = one.tally.fields[name]
            if counts:
                cells[one.name] = " / ".join(str(counts[outcome]) for outcome in Outcome)
        rows.append(Row(name, cells))
    return Section("fields", "Fields of these connections: right / missing / wrong", tuple(rows))


def _calibrations(found: Sequence[Measured], sizes: Sizes) -> Section:
    rows, goals = [], []
    for one in found:
        command, check = figure(one.calibrations, "s"), figure(one.checks_ms, "ms")
        rows.append(Row(one.name, {"calibrate": command, "check of a kept one": check}))
        goals += [
            (
                f"{one.name}: calibrated in {CALIBRATE_SECONDS:g} s",
                command.median <= CALIBRATE_SECONDS,
            ),
            (f"{one.name}: checked in {CHECK_MS:g} ms", check.median <= CHECK_MS),
        ]
    return Section(
        "calibration",
        f"Calibrations under {sizes.connections} connections that change",
        tuple(rows),
        goals=tuple(goals),
        notes=("calibrate: the whole command, with the start of Python",),
    )


def _reading(
    found: Sequence[Measured], many: tuple[str, list[float]] | None, sizes: Sizes
) -> Section:
    rows, goals = [], []
    for one in found:
        read = figure(one.reads_ms, "ms")
        rows.append(Row(one.name, {"connections": str(one.read), "read": read}))
        goals.append((f"{one.name}: {READ_MS:g} ms or less", read.median <= READ_MS))
    if many is not None:
        name, reads = many
        read = figure(reads, "ms")
        rows.append(Row(name, {"connections": str(sizes.many), "read": read}))
        if sizes.many == FULL.many:
            goals.append(
                (f"{name}, {sizes.many} connections: {MANY_MS:g} ms", read.median <= MANY_MS)
            )
    return Section(
        "reading",
        "Reading the connections with a capture (read_ns)",
        tuple(rows),
        goals=tuple(goals),
        notes=("by a serving probe: all connections are read each time",),
    )
