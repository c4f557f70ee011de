# SPDX-License-Identifier: Apache-2.0
"""What can fail around an agent: its output, its disk, its webhook, its server, its probe, the
clock."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path

import msgspec
import pymysql

from stallscope.base.errors import StallscopeError
from stallscope.model import capturefile
from stallscope.model.incident import Incident, TargetEntry
from stallscope.store import Store, listing, read_incident
from tests.support.agents import BRIEF_TRIGGER, CHECKOUT
from tests.support.brokendisks import fill, full_disk, full_pipe, small_disk
from tests.support.receivers import Fault as HookFault
from tests.support.receivers import Receiver, receiver
from tests.support.servers import PATIENCE, MariaDB, wait_until
from tests.support.stalls import device_missing, metadata_lock_pileup
from tests.support.stalls.redo_sync import loop_device
from tests.support.usage import children

__all__ = [
    "KILLS_A_STALL",
    "LONGEST_LIFE",
    "SMALL_SERVER",
    "WAITERS",
    "Fault",
    "Hook",
    "LeftOut",
    "Scene",
    "Sizes",
    "chances",
    "faults",
    "fill_store",
]

Hook = Receiver

WAITERS = 3
"""Sessions of a stall."""
FAULT_SECONDS = 12.0
"""How long a fault lasts where it is not notified before."""
KILLS_A_STALL = 10
LONGEST_LIFE = 4.0
"""Seconds from the start: until it is ready, has fired, captured, notified, and written."""
SMALL_SERVER = ("--innodb-buffer-pool-size=8M", "--performance-schema=OFF", "--max-connections=20")
CLOCK = CHECKOUT / "tests" / "targets" / "shifted_clock.c"
DAY = 86400
TRIGGERS = """\
captures-an-hour = 100000
disk-bytes-free = 0
disk-pct-free = 0
retention-time = 30
{trigger}[[destination]]
kind = "webhook"
url = "{url}"
"""


class LeftOut(Exception):
    """A fault cannot be made here."""


class Sizes(msgspec.Struct, frozen=True):
    """How long and how often."""

    down_seconds: float
    kills: int
    stored: int
    servers: int


class Fault:
    """One fault: ``begin`` makes it, ``cure`` ends it; ``stall`` replaces the usual stall."""

    def __init__(
        self,
        begin: Callable[[], object] = lambda: None,
        cure: Callable[[], object] = lambda: None,
        *,
        seconds: float = FAULT_SECONDS,
        stall: Callable[[], AbstractContextManager[object]] | None = None,
    ) -> None:
        self.begin = begin
        self.cure = cure
        self.seconds = seconds
        self.stall = stall

    def wait(self, hook: Hook) -> None:
        """Let it last: for its time, or until the stall is notified in spite of it."""
        end = time.monotonic() + self.seconds
        while time.monotonic() < end and not hook.posted:
            hook.ending.wait(0.05)


class Scene:
    """An agent beside a server, with a webhook of the bench."""

    def __init__(self, server: MariaDB, home: Path, hook: Hook, *more: MariaDB) -> None:
        """``more``: servers that the same agent watches."""
        home.mkdir(exist_ok=True)
        self.server = server
        self.more = more
        self.home = home
        self.hook = hook
        self.url = hook.url
        self.store = home / "store"
        self.out: int | None = None
        self.err: int | None = None
        self.before: list[str] = []
        """Words before those of the agent."""
        self.env: dict[str, str] = {}
        self.words = ["watch"]
        """The command, with options of its own."""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def metrics(self) -> Path:
        return self.home / "agent.prom"

    def start(self, stack: ExitStack, *, ready: bool = True) -> None:
        """Start the agent; wait until its probe is ready."""
        config = self.home / "agent.toml"
        config.write_text(self.config())
        config.chmod(0o600)
        self.metrics.unlink(missing_ok=True)
        log = (self.home / "agent.log").open("ab")
        stack.callback(log.close)
        words = [*self.before, sys.executable, "-P", "-m", "stallscope", *self.words]
        words += ["--config", str(config), "--dest", str(self.store)]
        words += ["--prometheus", str(self.metrics)]
        self.process = subprocess.Popen(
            words,
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=log.fileno() if self.out is None else self.out,
            stderr=log.fileno() if self.err is None else self.err,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), **self.env},
            start_new_session=True,
        )
        stack.callback(self.end)
        if ready:
            wait_until(self.is_ready, "the agent is ready")

    def config(self) -> str:
        """Return its configuration."""
        return TRIGGERS.format(url=self.url, trigger=BRIEF_TRIGGER) + self._servers()

    def _servers(self) -> str:
        """Return the tables of the servers; a restarted one is found by its data."""
        tables = [
            f'[[server]]\nname = "s{number}"\ntarget = "mariadbd"\ndatadir = "{server.data}"\n'
            for number, server in enumerate((self.server, *self.more))
        ]
        return "".join(tables)

    def is_ready(self) -> bool:
        """Return whether it has a probe at each of its servers."""
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        with contextlib.suppress(OSError):
            ready = [
                line
                for line in self.metrics.read_text().splitlines()
                if line.startswith("stallscope_agent_up{")
                and 'what="probe"' in line
                and float(line.rpartition(" ")[2]) == 1
            ]
            return len(ready) == 1 + len(self.more)
        return False

    def log(self) -> str:
        return (self.home / "agent.log").read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        """Stop it cleanly."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE)

    def kill_after(self, seconds: float) -> None:
        """Kill it at a random moment: nothing that it does is waited for."""
        assert self.process is not None
        self.hook.ending.wait(seconds)
        self.process.kill()
        self.process.wait(PATIENCE)

    def damage(self) -> str:
        """Return what is wrong with what it has stored."""
        wrong = []
        for summary in listing(self.store, rebuild=True).incidents:
            folder = self.store / "incidents" / summary.id
            try:
                incident = read_incident(folder).incident
                for entry in incident.captures:
                    capturefile.read(folder / entry.file)
            except (StallscopeError, OSError) as error:
                wrong.append(f"{summary.id}: {error}")
        return "; ".join(wrong)

    def listing_seconds(self) -> float:
        """Return how long ``stallscope incidents`` takes."""
        begun = time.monotonic()
        subprocess.run(
            [sys.executable, "-P", "-m", "stallscope", "incidents", "--dest", str(self.store)],
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return time.monotonic() - begun

    def probe_pid(self) -> int:
        """Return the pid of its probe."""
        assert self.process is not None
        for child in children(self.process.pid):
            if Path(f"/proc/{child}/comm").read_text().startswith("stallscope-prob"):
                return child
        raise LeftOut("the agent has no probe here")

    def end(self) -> None:
        """End it at once, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


class _Chances(random.Random):
    seed_used = 0


def chances() -> _Chances:
    """Return random numbers whose seed is printed."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}", file=sys.stderr)
    made = _Chances(seed)
    made.seed_used = seed
    return made


def faults(sizes: Sizes) -> dict[str, Callable[[Scene], AbstractContextManager[Fault]]]:
    """Return all faults, by name."""
    return {
        "none": lambda scene: contextlib.nullcontext(Fault(seconds=0.0)),
        "stdout full": lambda scene: _stream(scene, "out", full_disk),
        "stdout stuck": lambda scene: _stream(scene, "out", full_pipe),
        "stderr full": lambda scene: _stream(scene, "err", full_disk),
        "stderr stuck": lambda scene: _stream(scene, "err", full_pipe),
        "log disk full": _log_disk_full,
        "log disk stuck": _log_disk_stuck,
        "store disk full": _store_full,
        "store disk read-only": _store_read_only,
        "store disk frozen": _store_frozen,
        "webhook down": lambda scene: _webhook_down(scene, sizes.down_seconds),
        "webhook slow": lambda scene: _webhook(scene, HookFault(seconds=8.0)),
        "webhook answers 500": lambda scene: _webhook(scene, HookFault(500)),
        "webhook's name unknown": _no_name,
        "server killed": _server_killed,
        "server restarted": _server_restarted,
        "server hung": _server_hung,
        "server out of connections": _no_connections,
        "probe killed": lambda scene: _probe(scene, signal.SIGKILL),
        "probe stopped": lambda scene: _probe(scene, signal.SIGSTOP),
        "clock 31 days ahead": lambda scene: _clock(scene, 31 * DAY),
        "clock one day back": lambda scene: _clock(scene, -DAY),
    }


@contextmanager
def _stream(
    scene: Scene, which: str, make: Callable[[], AbstractContextManager[int]]
) -> Iterator[Fault]:
    with make() as stream:
        setattr(scene, which, stream)
        yield Fault()


def _empty(folder: Path) -> None:
    (folder / "filler").unlink()


@contextmanager
def _log_disk_full(scene: Scene) -> Iterator[Fault]:
    with small_disk(scene.home / "log", 1) as folder, (folder / "log").open("ab") as file:
        scene.out = scene.err = file.fileno()
        yield Fault(lambda: fill(folder), lambda: _empty(folder))


@contextmanager
def _device() -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    why = device_missing()
    if why is not None:
        raise LeftOut(why)
    with loop_device() as device:
        try:
            yield device.folder, device.freeze_files, device.thaw
        finally:
            device.thaw()


@contextmanager
def _log_disk_stuck(scene: Scene) -> Iterator[Fault]:
    with _device() as (folder, freeze, thaw), (folder / "log").open("ab") as file:
        scene.out = scene.err = file.fileno()
        yield Fault(freeze, thaw)


@contextmanager
def _store_full(scene: Scene) -> Iterator[Fault]:
    with small_disk(scene.home / "disk", 16) as folder:
        scene.store = folder / "store"
        yield Fault(lambda: fill(folder), lambda: _empty(folder))


@contextmanager
def _store_read_only(scene: Scene) -> Iterator[Fault]:
    """Nothing can be made, changed or removed in the store.

    A mount that has files open for writing, as an agent has, cannot be made read-only; folders and
    files that are immutable refuse the same.
    """
    with _device() as (folder, _, _):
        scene.store = folder / "store"

        def begin() -> None:
            _run("chattr", "-R", "+i", str(scene.store))

        def cure() -> None:
            _run("chattr", "-R", "-i", str(scene.store))

        try:
            yield Fault(begin, cure)
        finally:
            cure()


@contextmanager
def _store_frozen(scene: Scene) -> Iterator[Fault]:
    with _device() as (folder, freeze, thaw):
        scene.store = folder / "store"
        yield Fault(freeze, thaw)


@contextmanager
def _webhook(scene: Scene, fault: HookFault) -> Iterator[Fault]:
    def begin() -> None:
        scene.hook.fault = fault

    def cure() -> None:
        scene.hook.fault = HookFault()

    yield Fault(begin, cure)


@contextmanager
def _webhook_down(scene: Scene, seconds: float) -> Iterator[Fault]:
    """Nobody listens at its address; later somebody does."""
    with receiver() as free:
        port = free.port
    scene.url = f"http://127.0.0.1:{port}/hook"
    with ExitStack() as stack:

        def cure() -> None:
            up = stack.enter_context(receiver(port))
            up.posted = scene.hook.posted

        yield Fault(cure=cure, seconds=seconds)


@contextmanager
def _no_name(scene: Scene) -> Iterator[Fault]:
    """The webhook's name is not found; later it is, in the agent's own /etc/hosts."""
    hosts = scene.home / "hosts"
    usual = Path("/etc/hosts").read_text()
    hosts.write_text(usual)
    name = "webhook.stallscope.invalid"
    scene.url = f"http://{name}:{scene.hook.port}/hook"
    scene.before = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        f'mount --bind {hosts} /etc/hosts; exec "$@"',
        "sh",
    ]

    def cure() -> None:
        with hosts.open("a") as file:  # in place: the mount shows this very file
            file.write(f"\n127.0.0.1 {name}\n")

    yield Fault(cure=cure)


@contextmanager
def _server_killed(scene: Scene) -> Iterator[Fault]:
    """Its server is killed in the middle of the stall, and is started again."""
    with MariaDB(*SMALL_SERVER) as server:
        scene.server = server

        def cure() -> None:
            server.stop()  # by SIGKILL
            server.start()

        yield Fault(cure=cure, stall=lambda: _stall(server))


@contextmanager
def _server_restarted(scene: Scene) -> Iterator[Fault]:
    """Its server is restarted before the stall."""
    with MariaDB(*SMALL_SERVER) as server:
        scene.server = server

        def begin() -> None:
            server.stop()
            server.start()
            scene.metrics.unlink()
            wait_until(scene.is_ready, "the agent is ready again")

        yield Fault(begin, stall=lambda: _stall(server), seconds=0.0)


@contextmanager
def _stall(server: MariaDB) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(metadata_lock_pileup(server, WAITERS))
        yield
        with contextlib.suppress(pymysql.err.Error):  # the server was killed meanwhile
            stack.close()


@contextmanager
def _server_hung(scene: Scene) -> Iterator[Fault]:
    """The whole server is stopped: that is the stall."""
    with MariaDB(*SMALL_SERVER) as server:
        scene.server = server

        @contextmanager
        def hang() -> Iterator[None]:
            os.kill(server.pid, signal.SIGSTOP)
            try:
                yield
            finally:
                os.kill(server.pid, signal.SIGCONT)

        yield Fault(stall=hang, seconds=0.0)


@contextmanager
def _no_connections(scene: Scene) -> Iterator[Fault]:
    """All connections are taken, until the cure."""
    with MariaDB("--max-connections=12") as server, ExitStack() as taken:
        scene.server = server

        @contextmanager
        def stall() -> Iterator[None]:
            with _stall(server):
                with contextlib.suppress(pymysql.err.OperationalError):
                    while True:
                        taken.enter_context(closing(server.connect()))
                yield

        yield Fault(stall=stall, cure=taken.close)


@contextmanager
def _probe(scene: Scene, number: signal.Signals) -> Iterator[Fault]:
    pids: list[int] = []

    def begin() -> None:
        pids.append(scene.probe_pid())
        os.kill(pids[0], number)

    def cure() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[0], signal.SIGCONT)

    yield Fault(begin, cure)


@contextmanager
def _clock(scene: Scene, by: int) -> Iterator[Fault]:
    """The clock of the agent jumps, and jumps back."""
    library, file = scene.home / "clock.so", scene.home / "clock"
    if shutil.which("cc") is None:
        raise LeftOut("no cc here: run scripts/setup --all")
    _run("cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(CLOCK))
    file.write_text("0")
    scene.env = {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(file)}
    yield Fault(lambda: file.write_text(str(by)), lambda: file.write_text("0"))


def fill_store(dest: Path, count: int) -> None:
    """Store so many incidents of earlier days."""
    store = Store.open(dest)
    day = 86_400_000_000_000 // 100
    now = time.time_ns()
    for number in range(count):
        start = now - (count - number) * day // 100
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(start // 10**9))
        incident = Incident(
            f"{stamp}.{number % 1000:03d}Z-mariadbd-{number}",
            start,
            TargetEntry(number, "mariadbd"),
            end_ns=start + 10**9,
        )
        store.begin(incident).finish(incident)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
