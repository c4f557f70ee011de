# SPDX-License-Identifier: Apache-2.0
"""What ``watch`` and ``cron`` share: the environment of the agent's loop, and the loops of all
servers of a configuration."""

from __future__ import annotations

import argparse
import contextlib
import logging
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import msgspec

from stallscope.agent import agentstate, backends, pinfile, sources
from stallscope.agent.absent import Absent
from stallscope.agent.agentfile import AgentFile
from stallscope.agent.backends import CaptureBackend
from stallscope.agent.environment import Plan
from stallscope.agent.events import Put
from stallscope.agent.hooks import Hooks
from stallscope.agent.loop import Agent
from stallscope.agent.metrics import AgentMetrics, waiting
from stallscope.agent.output import LineWriter, lines_to, logging_to
from stallscope.agent.probe_session import ProbeSettings
from stallscope.agent.sources import Sources
from stallscope.agent.spool import spool
from stallscope.agent.supervisor import Policy, Supervisor, WatchedServer
from stallscope.agent.systemd import ServiceManager
from stallscope.agent.target import Target, finder
from stallscope.agent.verdict_process.client import VerdictProcess
from stallscope.base.errors import StallscopeError
from stallscope.base.priority import raise_priority
from stallscope.base.threads import server_of_thread
from stallscope.collectors.pins import Guard
from stallscope.collectors.processes import Server
from stallscope.collectors.serverlabels import labels_of
from stallscope.collectors.triggers.settings import AgentSettings, StorageSettings
from stallscope.commands import _config, _listen, _notify, _options, _rings, _ship, _sql, _store
from stallscope.commands._config import Configuration, ServerSettings
from stallscope.commands._metricsfile import MetricsFile
from stallscope.fleet.shipping.shipper import Shipper
from stallscope.model.capture import Capture
from stallscope.model.incident import SERVER_ENDED, Incident, TargetEntry
from stallscope.model.waitlines import WaitLine
from stallscope.notify.alerts import Alerts
from stallscope.reporters import agentlines
from stallscope.reporters.exposition import MetricsPage
from stallscope.reporters.prometheus import Metrics
from stallscope.server.families import family
from stallscope.store import Store
from stallscope.store.serverstate import ServerState

if TYPE_CHECKING:
    from stallscope.collectors.sql.servers import ServerLogin

__all__ = ["CommandEnvironment", "Hold", "signals", "supervisor"]

_log = logging.getLogger(__name__)

PRINTED = ("stall", "end")
CAPTURE_SECONDS = 10.0
"""The deadline of py-spy and gdb."""


Hold = Callable[[Path, Server], AbstractContextManager[ServerState | None]]
"""What must be held while the loop of a server runs, in a store; None: it cannot be written."""


class CommandEnvironment:
    """The environment of the loop (agent.environment.Environment) for these options."""

    def __init__(
        self,
        settings: Callable[[], ServerSettings],
        server: Server,
        store: Store,
        captures: Path,
        output: LineWriter,
        state: Path,
        page: MetricsPage | None = None,
        write: Callable[[], None] | None = None,
        failures: Callable[[], int] = lambda: 0,
        passes: float = 0.0,
    ) -> None:
        """``settings``: those of now. ``state``: the folder of what is not delivered. ``page``
        gets the metrics, ``write`` writes them to a file. ``failures``: how often the loop of this
        server failed. ``passes``: the seconds of one of many passes; 0: it is none."""
        self._settings = settings
        self._store = store
        self._is_python = server_is_python(server)
        self._captures = captures
        self._page = page
        self._waits = None if page is None else Metrics(labels_of([server]))
        self._write = write
        self._output = output
        self._failures = failures
        now = settings()
        self._hooks = _hooks(now.agent)
        self._alerts = _notify.alerts(now.options, now.agent, state)
        dry = getattr(now.options, "dry_run", False)
        self._shipper = _ship.shipper(now.options, now.agent, state, store.dest, passes, dry=dry)
        self._has_begun = False

    @property
    def _options(self) -> argparse.Namespace:
        return self._settings().options

    def sources(
        self, server: Server, settings: AgentSettings, use_layout: Callable[[str], None]
    ) -> Sources:
        """Return the sources of this server process. At the start, unreadable option files are an
        error. After a restart or a reload they are logged, and the agent continues.
        """

        def of(login: Callable[[Server], ServerLogin] | None) -> Sources:
            return sources.of_server(
                server,
                settings,
                login,
                poll_interval=self._options.poll_interval or settings.poll_interval,
                keep_deadlock=self._store.add_deadlock,
                use_layout=use_layout,
            )

        if getattr(self._options, "dry_run", False):  # it changes nothing on the host
            settings = msgspec.structs.replace(settings, storage=StorageSettings())
        login = None if self._options.no_sql else self._login
        try:
            found = of(login)
        except StallscopeError as error:
            if not self._has_begun:
                raise
            _log.error("SQL is not used until its next restart, or SIGHUP: %s", error)
            found = of(None)
        self._has_begun = True
        return found

    def backend(self, settings: AgentSettings, put: Put) -> CaptureBackend:
        """Return the backend of captures."""
        args = self._options
        if self._is_python:
            return backends.SerialBackend(_by_py_spy, put)
        if args.no_probe:
            return backends.SerialBackend(_by_gdb if args.allow_gdb else _refuse_capture, put)
        probe = backends.ProbeBackend(
            ProbeSettings(
                captures=self._captures,
                uprobes=not args.no_uprobes,
                force_kernel=args.force_kernel,
                backend=_rings.backend(args),
                ring=args.ring,
                pack_dirs=_options.pack_dirs(args),
            ),
            settings,
            put,
            always_on=args.always_on,
        )
        return (
            backends.FallbackBackend(probe, backends.SerialBackend(_by_gdb, put))
            if args.allow_gdb
            else probe
        )

    def reload(self) -> AgentSettings:
        """Use the configuration that was read again."""
        settings = self._settings()
        ship = _ship.settings_of(settings.options, settings.agent)
        dry = getattr(settings.options, "dry_run", False)
        targets = [] if dry else _ship.targets_of(settings.options, settings.agent)
        self._alerts.delivery.configure(_notify.receivers(settings.options, settings.agent))
        self._alerts.rules = _notify.rules(settings.agent)
        self._hooks = _hooks(settings.agent)
        self._shipper.configure(ship, targets)
        return settings.agent

    def alerts(self) -> Alerts:
        """Return what notifies of the stalls."""
        return self._alerts

    def shipper(self) -> Shipper:
        """Return what ships incidents to the fleet."""
        return self._shipper

    def notify(self, event: str, incident: Incident | None, folder: Path | None) -> None:
        """Print an event, and run its hook."""
        if incident is not None and event in PRINTED:
            for line in agentlines.render(event, incident, folder, as_json=self._options.json):
                self._output.put(line)
        self._hooks.run(event, incident, folder)

    def count_waits(self, line: WaitLine) -> None:
        """Count the waits."""
        if self._waits is not None:
            self._waits.count(line)

    def publish(self, metrics: AgentMetrics) -> Callable[[], None] | None:
        """Put the metrics on the page, and return what writes the file."""
        if self._page is None or self._waits is None:
            return None
        name = self._settings().name
        self._page.put(name, [*self._waits.families(), *metrics.families()])
        return self._write

    def failures(self) -> dict[str, int]:
        """Return how many notifications failed, and how many lines could not be printed."""
        return {
            "hook": self._hooks.failed,
            "notification": self._alerts.delivery.failed,
            "output": self._output.dropped,
            "loop": self._failures(),
        }

    def _login(self, server: Server) -> ServerLogin:
        settings = self._settings()
        login, notes = _sql.login(settings.options, server)
        for note in notes:
            _log.warning("%s", note)
        return settings.account.applied(login)


def _hooks(settings: AgentSettings) -> Hooks:
    plugin = settings.plugin
    commands = {
        "start": plugin.before_stalk,
        "fire": plugin.before_collect,
        "end": plugin.after_collect,
        "stop": plugin.after_stalk,
    }
    return Hooks(commands, plugin.deadline)


def _warn(text: str) -> None:
    _log.warning("%s", text)


def server_is_python(server: Server) -> bool:
    """Return whether its stacks are Python's, which an unwinder of C cannot see."""
    if family(server.main.exe, server.main.comm) is not None:
        return False  # a server that has loaded Python as a plugin is still a server
    from stallscope.collectors import pyspy

    return pyspy.is_python(server.main.pid)


def _by_py_spy(pids: tuple[int, ...]) -> Capture:
    from stallscope.collectors import pyspy

    return pyspy.capture(pids[0], seconds=CAPTURE_SECONDS, reason="a Python process")


def _by_gdb(pids: tuple[int, ...]) -> Capture:
    from stallscope.collectors import gdb

    return gdb.capture(pids, seconds=CAPTURE_SECONDS, reason="requested by --allow-gdb")


def _refuse_capture(pids: tuple[int, ...]) -> Capture:
    raise StallscopeError("--no-probe: no stacks are taken")


class _Servers:
    """The servers of a configuration, and what their loops share."""

    def __init__(
        self,
        configuration: Configuration,
        args: argparse.Namespace,
        plan: Plan,
        hold: Hold,
        *,
        continues: bool,
    ) -> None:
        self.configuration = configuration
        self._args = args
        self._plan = plan
        self._hold = hold
        self._continues = continues
        self._analysis = threading.Lock()
        """One analysis at a time: each takes as much memory as the agent."""
        self._resources = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._spool: Path | None = None
        self._dry: Path | None = None
        options = configuration.options
        wanted = options.prometheus is not None or options.listen is not None
        self.page = MetricsPage() if wanted else None
        self._file: MetricsFile | None = None
        self._writing = threading.Lock()

    @contextlib.contextmanager
    def open(self, output: LineWriter) -> Iterator[tuple[WatchedServer, ...]]:
        """Yield the servers, with all that is shared until the end."""
        self._output = output
        for warning in self.configuration.warnings:
            _log.warning("%s", warning)
        path = self.configuration.options.prometheus
        if path is not None and self.page is not None:
            self._file = MetricsFile(path, self.page, _warn)
        with self._resources:
            yield tuple(map(self._watched, self.configuration.servers))

    def load(self) -> None:
        """Read the configuration again. Raises: StallscopeError; nothing changes then."""
        new = _config.load(self._args)
        for warning in new.warnings:
            _log.warning("%s", warning)
        changed = _config.changed_keys(self.configuration, new)
        if changed:
            _log.warning(
                "these settings change when the agent is restarted: %s", ", ".join(changed)
            )
        by_name = {server.name: server for server in new.servers}
        kept = tuple(by_name.get(old.name, old) for old in self.configuration.servers)
        self.configuration = Configuration(kept, new.from_file)

    def settings_of(self, name: str) -> ServerSettings:
        """Return the settings of a server, as they are now."""
        return next(one for one in self.configuration.servers if one.name == name)

    def _watched(self, settings: ServerSettings) -> WatchedServer:
        guard = Guard(settings.users)
        dest = _store.writing_dest(settings.options)

        def find() -> Server:
            now = self.settings_of(settings.name)
            pid = now.options.pid
            targets = [] if pid is None else [pid]
            if guard.pin is None and not (pid or "").isdecimal():
                found = pinfile.find(dest, now.words)
                guard.pin = None if found is None else found[1].pin
            return _rings.resolve(now.options, targets, now.selector, guard.choose)[1][0]

        def make(server: Server, watched: WatchedServer) -> AbstractContextManager[Agent]:
            return self._agent(settings.name, server, watched, guard)

        def known() -> tuple[ServerState, TargetEntry] | None:
            now = self.settings_of(settings.name)
            found = pinfile.find(dest, now.words)
            notes_ends = any(one.name == SERVER_ENDED for one in now.agent.triggers)
            if found is None or found[1].target is None or not notes_ends:
                return None
            return found[0], found[1].target

        def alerts(state: ServerState) -> Alerts:
            now = self.settings_of(settings.name)
            return _notify.alerts(now.options, now.agent, state.path)

        absent = Absent(known, alerts) if self._plan.captures else None
        watched = WatchedServer(settings.name, find, make, settings.options.pid, guard, absent)
        page = self.page
        if page is not None:
            name = settings.options.pid or settings.name
            watched.on_waiting = lambda seconds: page.put(settings.name, waiting(name, seconds))
        return watched

    @contextlib.contextmanager
    def _agent(
        self, name: str, server: Server, watched: WatchedServer, guard: Guard
    ) -> Iterator[Agent]:
        """Yield the agent of one server. Raises: ServerBusy where another one watches it."""
        settings = self.settings_of(name)
        options = settings.options
        store = Store.open(self._dest())
        with self._hold(store.dest, server) as state:
            folder = self._folder(store.dest, name)
            target = Target(server, finder(options.pid, settings.selector, server, guard), guard)
            environment = CommandEnvironment(
                lambda: self.settings_of(name),
                server,
                store,
                folder,
                self._output,
                store.dest if state is None else state.path,
                self.page,
                None if self._file is None else self._write_metrics,
                lambda: watched.failures,
                (self._plan.seconds or 0.0) if self._continues else 0.0,
            )
            made = Agent(
                self._plan,
                settings.agent,
                target,
                store,
                folder,
                environment,
                VerdictProcess(options.signatures, turn=self._analysis),
            )
            if state is not None and self._plan.captures:
                made.kept.was = pinfile.last(state)
                made.kept.on_server = partial(self._keep, state, name, guard)
                made.kept.on_blind = partial(agentstate.save, state, made)
                agentstate.load(state, made, continues=self._continues)
            yield made
            if self._continues and state is not None:
                agentstate.save(state, made)

    def _keep(self, state: ServerState, name: str, guard: Guard, target: TargetEntry) -> None:
        """Keep which server it is, for the next agent."""
        if guard.pin is not None:
            pinfile.save(state, self.settings_of(name).words, guard.pin, target)

    def _folder(self, dest: Path, name: str) -> Path:
        """Return the folder in which captures of a server wait for their incident."""
        folder = self._own_folder(dest) / name
        try:
            shutil.rmtree(folder, ignore_errors=True)  # of its loop that failed
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise StallscopeError(f"cannot make {folder}: {error.strerror}") from error
        return folder

    def _own_folder(self, dest: Path) -> Path:
        """Return the folder of this process in a store."""
        with self._lock:
            if self._spool is None:
                self._spool = self._resources.enter_context(spool(dest))
        return self._spool

    def own_folder(self) -> Path:
        """Return the folder of this process in the store, which is made. Raises:
        StallscopeError."""
        return self._own_folder(Store.open(self._dest()).dest)

    def _dest(self) -> Path:
        """Return the store to write; that of a dry run is nobody's, and temporary."""
        options = self.configuration.options
        if not getattr(options, "dry_run", False):
            return _store.writing_dest(options)
        with self._lock:
            if self._dry is None:
                made = tempfile.TemporaryDirectory(prefix="stallscope-", ignore_cleanup_errors=True)
                self._dry = Path(self._resources.enter_context(made))
        return self._dry

    def _write_metrics(self) -> None:
        """Write the file of metrics, which has those of all servers."""
        if self._file is not None and self._writing.acquire(blocking=False):
            try:
                self._file.write()
            finally:
                self._writing.release()


@contextlib.contextmanager
def supervisor(
    configuration: Configuration,
    args: argparse.Namespace,
    plan: Plan,
    policy: Policy,
    hold: Hold,
    *,
    continues: bool = False,
) -> Iterator[Supervisor]:
    """Yield the supervisor of all servers, which also listens where that is wanted.

    ``args``: from which the configuration is read again. ``hold``: what is held while the loop of a
    server runs. ``continues``: with the state that the run before has saved, and saves its own.
    """
    servers = _Servers(configuration, args, plan, hold, continues=continues)
    options = configuration.options
    raise_priority()
    with (
        logging_to(sys.stderr, options.log_format, options.log_level),
        _naming_servers(several=len(configuration.servers) > 1),
        lines_to(sys.stdout) as output,
        servers.open(output) as watched,
        contextlib.ExitStack() as closing,
    ):
        made = Supervisor(watched, policy, servers.load, ServiceManager())
        output.on_closed = lambda: made.ask("stop")
        dest = _store.writing_dest(options)
        if not getattr(options, "dry_run", False):
            file = AgentFile(servers.own_folder, made.reports)
            closing.callback(file.close)
        with _listen.listening(options.listen, servers.page, made.health, dest, options.signatures):
            yield made


@contextlib.contextmanager
def _naming_servers(*, several: bool) -> Iterator[None]:
    """Begin each message of the log with its server, where there are several."""

    def name(record: logging.LogRecord) -> bool:
        server = server_of_thread(record.threadName)
        message = record.getMessage()
        if server is not None and not message.startswith(f"{server}: "):
            record.msg, record.args = f"{server}: {message}", ()
        return True

    handlers = logging.getLogger("stallscope").handlers if several else []
    for handler in handlers:
        handler.addFilter(name)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(name)


@contextlib.contextmanager
def signals(ask: Callable[[str], None], *, reload: bool) -> Iterator[None]:
    """Make SIGTERM and SIGINT ask for the end, and SIGHUP for a reload."""
    meant = {signal.SIGTERM: "stop", signal.SIGINT: "stop"}
    if reload:
        meant[signal.SIGHUP] = "reload"

    def handle(number: int, frame: FrameType | None) -> None:
        ask(meant[signal.Signals(number)])

    before = {number: signal.signal(number, handle) for number in meant}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
