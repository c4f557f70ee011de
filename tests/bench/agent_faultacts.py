# SPDX-License-Identifier: Apache-2.0
"""What happens at a random moment of a stall: to the agent, its server, its account, its pager, its
store; each with what the agent can do meanwhile, and what its owner is promised."""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pymysql

from tests.bench.agent_faultkinds import Scene
from tests.bench.agent_faultpager import Pager
from tests.bench.agent_faultreferee import Span, Truth
from tests.bench.agent_faultstalls import Clients, LockStall, PostgresStall, Stall
from tests.support.impostors import impostor, open_folder
from tests.support.servers import PATIENCE, MariaDB, MySQL97, Postgres, SqlServer

__all__ = ["KINDS", "PASSWORD", "Act", "Kind", "Moment", "Watched", "account"]

USER, PASSWORD = "pager", "Pw-" + secrets.token_hex(8)
"""The agent's account. Nobody but a server of ours may get a byte of its password."""
BLIND_SECONDS = (3.0, 15.0)
"""A blind agent may say so after this, and must after that: an agent at rest asks rarely, and no
answer for some seconds is nothing."""
SENDING_SECONDS = 1.5
PASS_SECONDS = 8
CONFIG = """\
captures-an-hour = 100000
disk-bytes-free = 0
disk-pct-free = 0

[[destination]]
name = "pager"
kind = "webhook"
url = "{url}"
deadline = 2
"""
"""All triggers are the default ones."""
BLIND = """\

[[trigger]]
name = "blind"
about = "nobody knows whether the server stalls"
variable = "agent.blind_s"
threshold = 3
cycles = 1
clear = 0
clear-cycles = 1
sleep = 0
"""
"""The default one, but for the threshold."""


def program_of(server: SqlServer | Postgres) -> str:
    """Return the name of a server's program."""
    if isinstance(server, Postgres):
        return "postgres"
    return MySQL97.program if isinstance(server, MySQL97) else "mariadbd"


def account(server: SqlServer) -> tuple[str, ...]:
    """Return the statements that make the agent's account, as docs/operations.md has them."""
    replication = "SLAVE MONITOR" if isinstance(server, MariaDB) else "REPLICATION CLIENT"
    return (
        f"CREATE USER {USER}@localhost IDENTIFIED BY '{PASSWORD}'",
        f"GRANT PROCESS, {replication} ON *.* TO {USER}@localhost",
    )


class Watched(Scene):
    """An agent with its account, and the pager as its only destination."""

    def __init__(self, server: SqlServer | Postgres, home: Path, pager: Pager) -> None:
        super().__init__(server, home, pager)  # type: ignore[arg-type]
        self.watched = server
        self.extra = ""
        """More lines of its configuration."""

    def config(self) -> str:
        text = CONFIG.format(url=self.url) + self.extra
        folder = self.watched.folder / "data"
        folder = self.watched.data if isinstance(self.watched, SqlServer) else folder
        name = program_of(self.watched)
        text += f'[[server]]\nname = "s"\ntarget = "{name}"\ndatadir = "{folder}"\n'
        if isinstance(self.watched, SqlServer):
            text += f'[sql]\nuser = "{USER}"\npassword = "{PASSWORD}"\n'
        return text


@dataclass
class Moment:
    """One run: a server, an agent beside it, a pager, and what is true."""

    server: SqlServer | Postgres
    scene: Watched
    pager: Pager
    chance: random.Random
    device: Callable[[], tuple[Path, Callable[[], None], Callable[[], None]]]
    """Return a folder on a file system, and what freezes and thaws it."""
    stack: ExitStack
    truth: Truth = field(default_factory=Truth)
    said: list[str] = field(default_factory=list)
    """What was done, and when."""
    leaks: list[str] = field(default_factory=list)
    """Where the password went that it must not go to."""

    def note(self, what: str) -> float:
        now = time.monotonic()
        self.said.append(f"{now:.2f} {what}")
        return now

    @property
    def sql(self) -> SqlServer:
        assert isinstance(self.server, SqlServer)
        return self.server

    def stall(self) -> Stall:
        if isinstance(self.server, Postgres):
            return PostgresStall(self.server)
        return LockStall(self.server)

    def start_agent(self, *, ready: bool = True) -> None:
        self.scene.start(self.stack, ready=ready)

    def end_agent(self, number: signal.Signals) -> None:
        process = self.scene.process
        assert process is not None
        process.send_signal(number)
        process.wait(PATIENCE)


class Act:
    """Nothing: what the others are compared with."""

    seconds = (1.0, 6.0)
    """Between its two halves, at random."""
    away = False
    """Whether no stall can be made or ended meanwhile, since the server does not answer."""
    again: tuple[float, float] | None = None
    """After so many seconds another stall follows."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment

    def prepare(self) -> None:
        """Change what the agent is started with."""

    def start(self) -> None:
        """Start the agent."""
        self.moment.start_agent()

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def parts(self) -> Sequence[Act]:
        """Return what has its own moment each: this alone, for most."""
        return (self,)

    def another(self) -> None:
        """Take that another stall begins now."""

    def close(self) -> None:
        """Leave everything as it was, after a failure too."""


class Again(Act):
    """A second stall a few seconds after the end of the first, within the trigger's sleep."""

    again = (4.5, 8.0)


class Reload(Act):
    """SIGHUP, one to three times."""

    seconds = (0.2, 2.0)

    def begin(self) -> None:
        assert self.moment.scene.process is not None
        for _ in range(self.moment.chance.randint(1, 2)):
            self.moment.note("SIGHUP")
            self.moment.scene.process.send_signal(signal.SIGHUP)

    def end(self) -> None:
        if self.moment.chance.random() < 0.5:
            self.begin()


class Restart(Act):
    """The agent is ended, and started again."""

    seconds = (0.0, 2.0)
    number = signal.SIGTERM

    def begin(self) -> None:
        self.gone = self.moment.note(self.number.name)
        self.moment.end_agent(self.number)

    def end(self) -> None:
        at = self.moment.note("the agent is started")
        self.moment.truth.unseen.append(Span(self.gone, at))
        self.moment.start_agent(ready=False)


class Kill(Restart):
    number = signal.SIGKILL


class Refused(Act):
    """The agent's account gets another password, its sessions are killed; then it is put right,
    and the agent reloaded, as its owner is advised; perhaps also in between, which changes nothing.
    """

    seconds = (5.0, 25.0)

    def prepare(self) -> None:
        self.moment.scene.extra += BLIND

    def begin(self) -> None:
        self.at = self.moment.note("the account is refused")
        self._alter("Another-" + PASSWORD)
        find = f"SELECT id FROM information_schema.processlist WHERE user = '{USER}'"
        for (number,) in self.moment.sql.query(find):
            with suppress(pymysql.err.Error):  # it has ended by itself
                self.moment.sql.execute(f"KILL {number}")
        if self.moment.chance.random() < 0.5:
            self._reload()

    def end(self) -> None:
        self._alter(PASSWORD)
        now = self.moment.note("the account is accepted")
        self._reload()
        truth, (may, must) = self.moment.truth, BLIND_SECONDS
        truth.unseen.append(Span(self.at, now))
        if now - self.at > must:
            truth.blinds.append(Span(self.at + may, now))
        elif now - self.at > may:
            truth.dim.append(Span(self.at, now + SENDING_SECONDS))

    def close(self) -> None:
        self._alter(PASSWORD)

    def _reload(self) -> None:
        assert self.moment.scene.process is not None
        self.moment.note("SIGHUP")
        self.moment.scene.process.send_signal(signal.SIGHUP)

    def _alter(self, password: str) -> None:
        self.moment.sql.execute(f"ALTER USER {USER}@localhost IDENTIFIED BY '{password}'")


class Crash(Act):
    """The server is killed, and started again."""

    seconds = (0.0, 5.0)
    away = True

    def begin(self) -> None:
        self.at = self.moment.note("the server is killed")
        self.moment.sql.stop()

    def end(self) -> None:
        self.moment.sql.start()
        now = self.moment.note("the server answers again")
        self.moment.truth.downs.append(Span(self.at, now))


class Stop(Crash):
    """The server is shut down cleanly, and started again."""

    def begin(self) -> None:
        self.at = self.moment.note("the server is shut down")
        self.moment.sql.shut_down()

    def end(self) -> None:
        self.moment.sql.start()
        now = self.moment.note("the server answers again")
        self.moment.truth.downs.append(Span(self.at, now))
        self.moment.truth.stops.append(Span(self.at, now))


class Hang(Act):
    """The whole server is stopped, and goes on."""

    seconds = (4.0, 8.0)
    away = True

    def begin(self) -> None:
        self.client: Clients | None = None
        if isinstance(self.moment.server, SqlServer):
            self.client = Clients(self.moment.server)
            self.client.connect(1)
        self.pid = self.moment.server.pid
        os.kill(self.pid, signal.SIGSTOP)
        self.at = self.moment.note("the server is stopped by SIGSTOP")
        if self.client is not None:
            self.client.run("SELECT 1")

    def end(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        now = self.moment.note("the server goes on")
        over = now if self.client is None else self.client.join()
        self.moment.truth.waits.append(Span(self.at, over))

    def close(self) -> None:
        with suppress(AttributeError, ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)


class HangAndStart(Hang):
    """The whole server is stopped, and meanwhile the agent is ended and started."""

    def begin(self) -> None:
        super().begin()
        restart(self.moment)


class RefusedRestart(Refused):
    """The account is refused, and meanwhile the agent is ended and started."""

    seconds = (8.0, 25.0)

    def begin(self) -> None:
        super().begin()
        restart(self.moment)


class CrashRestart(Crash):
    """The server is killed, and while it is gone the agent is ended and started."""

    seconds = (2.0, 5.0)

    def begin(self) -> None:
        super().begin()
        time.sleep(self.moment.chance.uniform(0.5, 2.0))
        restart(self.moment)


def restart(moment: Moment) -> None:
    gone = moment.note("SIGTERM")
    moment.end_agent(signal.SIGTERM)
    moment.truth.unseen.append(Span(gone, moment.note("the agent is started")))
    moment.start_agent(ready=False)


class Poison(Act):
    """From a moment of the first stall on, the pager answers 500 to all that is of it, for good;
    another stall follows."""

    again = (4.5, 8.0)
    seconds = (0.0, 0.0)

    def begin(self) -> None:
        self.at = self.moment.note("the pager refuses the alert of this stall")
        self.limit = float("inf")
        """What is first sent after this is of the other stall."""
        self.moment.pager.refuses = self._refuses

    def another(self) -> None:
        self.limit = time.monotonic()
        # One that was about to be sent when the fault began has not reached the pager either.
        self.moment.truth.unseen.append(Span(self.at - SENDING_SECONDS, self.limit))

    def _refuses(self, key: str) -> bool:
        posts = self.moment.pager.posts
        return min((post.at for post in posts if post.key == key), default=self.at) < self.limit


class SlowHead(Act):
    """The pager's answer drips: its head never ends."""

    seconds = (2.0, 8.0)

    def begin(self) -> None:
        self.at = self.moment.note("the pager's answers drip")
        self.moment.pager.drips.set()

    def end(self) -> None:
        self.close()
        now = self.moment.note("the pager answers at once")
        self.moment.truth.unheard.append(Span(self.at, now))

    def close(self) -> None:
        self.moment.pager.drips.clear()


class Down(Act):
    """Nobody listens at the pager's address, for a while."""

    seconds = (2.0, 8.0)

    def begin(self) -> None:
        self.at = self.moment.note("the pager is down")
        self.moment.pager.down()

    def end(self) -> None:
        self.moment.pager.up()
        now = self.moment.note("the pager is up")
        self.moment.truth.unheard.append(Span(self.at, now))


class Impostor(Crash):
    """The server is killed; a program of another user, of its name and with its data directory in
    its command line, waits for the agent; the server is started again, beside it or after it."""

    seconds = (3.0, 6.0)

    def begin(self) -> None:
        super().begin()
        server = self.moment.sql
        self.open = ExitStack()
        folder = self.open.enter_context(open_folder())
        words = (f"--datadir={server.data}",)
        self.other = self.open.enter_context(impostor(folder, program_of(server), words=words))
        self.stays = self.moment.chance.random() < 0.5

    def end(self) -> None:
        if not self.stays:
            self.close()
        super().end()

    def close(self) -> None:
        with suppress(AttributeError):
            got = self.other.end()
            self.open.close()
            if got:
                self.moment.note(f"the impostor got {len(got)} bytes")
            if PASSWORD.encode() in got:
                self.moment.leaks.append("the impostor got the password in clear")
            elif USER.encode() in got:
                self.moment.leaks.append("the impostor got a login")


class Frozen(Act):
    """The file system of the agent's store hangs, for a while."""

    seconds = (3.0, 8.0)

    def prepare(self) -> None:
        folder, self.freeze, self.thaw = self.moment.device()
        self.moment.scene.store = folder / f"store-{self.moment.chance.getrandbits(32)}"

    def begin(self) -> None:
        self.moment.note("the store is frozen")
        self.freeze()

    def end(self) -> None:
        self.thaw()
        self.moment.note("the store is thawed")

    def close(self) -> None:
        with suppress(AttributeError):
            self.thaw()


class _Passes:
    """Passes of ``cron``, one after the other."""

    def __init__(self, moment: Moment) -> None:
        self.moment = moment
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.begun = threading.Event()

    def _run(self) -> None:
        moment, gone = self.moment, time.monotonic()
        while not self.ending.is_set():
            now = moment.note("a pass begins")
            moment.truth.unseen.append(Span(gone, now))
            moment.scene.start(moment.stack, ready=False)
            process = moment.scene.process
            assert process is not None
            while process.poll() is None and not self.ending.wait(0.02):
                self.begun.set()
            if self.ending.is_set():
                process.terminate()
            process.wait(PATIENCE)
            gone = moment.note(f"the pass has ended ({process.returncode})")


class Cron(Act):
    """Passes of ``cron`` of a few seconds each, one after the other."""

    def prepare(self) -> None:
        self.moment.scene.words = ["cron", "--seconds", str(PASS_SECONDS)]

    def start(self) -> None:
        self.passes = _Passes(self.moment)
        self.passes.thread.start()
        self.passes.begun.wait(PATIENCE)

    def close(self) -> None:
        with suppress(AttributeError):
            self.passes.ending.set()
            self.passes.thread.join(PATIENCE)


class CronHang(Cron, Hang):
    """The same, and the server hangs."""

    seconds = (12.0, 16.0)
    away = True

    def close(self) -> None:
        Cron.close(self)
        Hang.close(self)


class CronRefused(Cron, Refused):
    """The same, and its account is refused for longer than a pass takes."""

    seconds = (25.0, 32.0)

    def prepare(self) -> None:
        Cron.prepare(self)
        Refused.prepare(self)

    def close(self) -> None:
        Cron.close(self)
        Refused.close(self)

    def end(self) -> None:
        super().end()
        # A pass that was refused logs in no more; the next one does.
        now = time.monotonic()
        self.moment.truth.unseen.append(Span(now, now + PASS_SECONDS + SENDING_SECONDS))

    def _reload(self) -> None:
        """The next pass reads everything again."""


class Two(Act):
    """Something with the server or the store, and something with the agent or its pager."""

    def __init__(self, moment: Moment) -> None:
        super().__init__(moment)
        first = moment.chance.choice((Refused, Crash, Stop, Hang, Frozen))
        # No signal ends a process that waits for a frozen disk.
        ended = () if first is Frozen else (Restart, Kill)
        second = moment.chance.choice((Reload, SlowHead, Down, *ended))
        self.both: tuple[Act, ...] = (first(moment), second(moment))
        moment.note(f"two: {first.__name__}, {second.__name__}")

    def parts(self) -> Sequence[Act]:
        return self.both

    def prepare(self) -> None:
        for part in self.both:
            part.prepare()

    def close(self) -> None:
        for part in self.both:
            part.close()


@dataclass(frozen=True)
class Kind:
    """A kind of fault: what makes it, and what the pager gets of a stall with it, as a user reads
    it."""

    make: Callable[[Moment], Act]
    what: str
    promise: str
    servers: tuple[str, ...] = ("mariadb",)


ALL = ("mariadb", "mysql97", "postgres")
MYSQL = ("mariadb", "mysql97")
KINDS: dict[str, Kind] = {
    "control": Kind(Act, "nothing", "the stall, then its end", ALL),
    "again": Kind(
        Again, "a second stall within the trigger's `sleep`", "each stall, and each end", MYSQL
    ),
    "reload": Kind(Reload, "SIGHUP to the agent", "the stall, then its end", ALL),
    "restart": Kind(
        Restart, "the agent is stopped and started", "the stall once, then its end", ALL
    ),
    "kill": Kind(Kill, "SIGKILL to the agent, and a start", "the stall once, then its end", MYSQL),
    "refused": Kind(
        Refused,
        "the agent's account is refused",
        "nothing is over meanwhile; that the agent is blind, since when, and why",
        MYSQL,
    ),
    "crash": Kind(
        Crash,
        "the server is killed, and started",
        "how the server ended; both alerts are over when it answers again",
        MYSQL,
    ),
    "stop": Kind(
        Stop,
        "the server is shut down, and started",
        "the stall is over when the server answers again",
    ),
    "hang": Kind(Hang, "the whole server hangs (SIGSTOP)", "the stall, until the server goes on"),
    "hang-start": Kind(
        HangAndStart,
        "the server hangs, and the agent is restarted meanwhile",
        "the stall once, until the server goes on",
    ),
    "refused-restart": Kind(
        RefusedRestart,
        "its account is refused, and it is restarted meanwhile",
        "nothing is over meanwhile; that the agent is blind, since when, and why",
    ),
    "crash-restart": Kind(
        CrashRestart,
        "the server is killed, and the agent is restarted meanwhile",
        "how the server ended; both alerts are over when it answers again",
    ),
    "poison": Kind(
        Poison,
        "the receiver answers 500 to one alert, for good",
        "the next stall, and its end, in time",
    ),
    "slow-head": Kind(
        SlowHead, "the head of the receiver's answer drips", "both, when it answers again"
    ),
    "down": Kind(Down, "the receiver is down", "both, when it is back"),
    "impostor": Kind(
        Impostor,
        "the server is killed, and another user's program has its name",
        "as for a killed server; the program gets no login",
    ),
    "frozen": Kind(Frozen, "the disk of the store hangs", "the stall, then its end"),
    "two": Kind(
        Two,
        "two of these, each at its own moment",
        "what it gets of each",
    ),
    "cron": Kind(Cron, f"passes of `cron`, {PASS_SECONDS} s each", "the stall once, then its end"),
    "cron-hang": Kind(
        CronHang, "passes of `cron`, and the server hangs", "the stall, until the server goes on"
    ),
    "cron-refused": Kind(
        CronRefused,
        "passes of `cron`, and the account is refused",
        "nothing is over meanwhile; that the agent is blind, since when, and why",
    ),
}
