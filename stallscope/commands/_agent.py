# SPDX-License-Identifier: Apache-2.0
"""What ``watch`` and ``cron`` share: their options, and the environment of the agent's loop."""

from __future__ import annotations

import argparse
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from stallscope.agent import backends, sources
from stallscope.agent.backends import CaptureBackend
from stallscope.agent.environment import Plan
from stallscope.agent.events import Put, Signal
from stallscope.agent.hooks import Hooks
from stallscope.agent.loop import Agent
from stallscope.agent.metrics import AgentMetrics
from stallscope.agent.output import LOG_FORMATS, LOG_LEVELS, LineWriter, lines_to, logging_to
from stallscope.agent.probe_session import ProbeSettings
from stallscope.agent.sources import Sources
from stallscope.agent.spool import spool
from stallscope.agent.target import Target, finder
from stallscope.agent.verdict_process.client import VerdictProcess
from stallscope.base.errors import StallscopeError
from stallscope.base.priority import raise_priority
from stallscope.collectors.processes import Selector, Server
from stallscope.collectors.triggers import triggerfile
from stallscope.collectors.triggers.settings import AgentSettings
from stallscope.commands import _notify, _options, _rings, _sql, _store
from stallscope.commands._metricsfile import MetricsFile, labels_of
from stallscope.model.capture import Capture
from stallscope.model.incident import Incident
from stallscope.model.waitlines import WaitLine
from stallscope.notify.alerts import Alerts
from stallscope.reporters import agentlines
from stallscope.reporters.exposition import MetricsPage
from stallscope.reporters.prometheus import Metrics
from stallscope.server.families import family
from stallscope.store import Store

if TYPE_CHECKING:
    from stallscope.collectors.sql.login import Login

__all__ = ["CommandEnvironment", "add_arguments", "agent", "settings_of", "signals"]

_log = logging.getLogger(__name__)

PRINTED = ("stall", "end")
CAPTURE_SECONDS = 10.0
"""The deadline of py-spy and gdb."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of both commands."""
    server = parser.add_argument_group("server")
    server.add_argument("-p", "--pid", metavar="PID|NAME", help="process id or program name")
    _options.add_place_arguments(server)
    sql = _sql.add_sql_arguments(parser)
    sql.add_argument(
        "--raw-sql",
        action="store_true",
        help="also keep statements with their literals, in a separate file",
    )
    what = parser.add_argument_group("captures")
    what.add_argument("--triggers", type=Path, metavar="FILE", help="your own triggers (TOML)")
    _store.add_dest_argument(what)
    _options.add_inproc_arguments(what)
    _options.add_pack_argument(what)
    _options.add_uprobes_argument(what)
    what.add_argument(
        "--always-on",
        action="store_true",
        help="keep the wait programs attached: they count every wait, and add to every system call"
        " of the host; without it they are attached while a wait is past half of its threshold,"
        " and shorter waits are not counted",
    )
    what.add_argument(
        "--no-probe", action="store_true", help="do not use stallscope-probe: take no stacks"
    )
    what.add_argument(
        "--allow-gdb",
        action="store_true",
        help="use gdb, which stops the server, while the probe does not work",
    )
    _options.add_force_kernel_argument(what)
    _options.add_signatures_argument(what)
    notify = parser.add_argument_group("notifications")
    notify.add_argument("--json", action="store_true", help="print each event as a line of JSON")
    _notify.add_arguments(notify)
    notify.add_argument(
        "--prometheus",
        type=Path,
        metavar="FILE",
        help="write metrics to FILE for node exporter's textfile collector",
    )
    notify.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default=LOG_FORMATS[0],
        help="format of the log on standard error (default text)",
    )
    notify.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default=LOG_LEVELS[0],
        help="least level of what is logged (default info)",
    )


def settings_of(args: argparse.Namespace) -> AgentSettings:
    """Read the triggers. Raises: UsageError with file and line."""
    return triggerfile.defaults() if args.triggers is None else triggerfile.load(args.triggers)


def _selector(args: argparse.Namespace) -> Selector:
    return Selector(socket=args.socket, port=args.port, datadir=args.datadir)


class CommandEnvironment:
    """The environment of the loop (agent.environment.Environment) for these options."""

    def __init__(
        self,
        args: argparse.Namespace,
        server: Server,
        store: Store,
        captures: Path,
        poll_interval: float | None,
        output: LineWriter,
        page: MetricsPage | None = None,
    ) -> None:
        self._store = store
        self._is_python = server_is_python(server)
        self._args = args
        self._captures = captures
        self._poll_interval = poll_interval
        if page is None and args.prometheus is not None:
            page = MetricsPage()
        self._page = page
        self._waits = None if page is None else Metrics(labels_of([server]))
        self._file = (
            None
            if page is None or args.prometheus is None
            else MetricsFile(args.prometheus, page, _warn)
        )
        self._output = output
        settings = settings_of(args)
        self._hooks = _hooks(settings)
        self._alerts = _notify.alerts(args, settings, store.dest)
        self._has_begun = False

    def sources(
        self, server: Server, settings: AgentSettings, use_layout: Callable[[str], None]
    ) -> Sources:
        """Return the sources of this server process. At the start, unreadable option files are an
        error. After a restart or a reload they are logged, and the agent continues.
        """

        def of(login: Callable[[Server], Login] | None) -> Sources:
            return sources.of_server(
                server,
                settings,
                login,
                poll_interval=self._poll_interval or settings.poll_interval,
                keep_deadlock=self._store.add_deadlock,
                use_layout=use_layout,
            )

        login = None if self._args.no_sql else self._login
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
        args = self._args
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
        """Read the triggers file again."""
        settings = settings_of(self._args)
        self._alerts.delivery.configure(_notify.receivers(self._args, settings))
        self._alerts.rules = _notify.rules(settings)
        self._hooks = _hooks(settings)
        return settings

    def alerts(self) -> Alerts:
        """Return what notifies of the stalls."""
        return self._alerts

    def notify(self, event: str, incident: Incident | None, folder: Path | None) -> None:
        """Print an event, and run its hook."""
        if incident is not None and event in PRINTED:
            for line in agentlines.render(event, incident, folder, as_json=self._args.json):
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
        self._page.put(self, [*self._waits.families(), *metrics.families()])
        return None if self._file is None else self._file.write

    def failures(self) -> dict[str, int]:
        """Return how many notifications failed, and how many lines could not be printed."""
        return {
            "hook": self._hooks.failed,
            "notification": self._alerts.delivery.failed,
            "output": self._output.dropped,
        }

    def _login(self, server: Server) -> Login:
        login, notes = _sql.login(self._args, server)
        for note in notes:
            _log.warning("%s", note)
        return login


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


@contextlib.contextmanager
def agent(
    args: argparse.Namespace, plan: Plan, page: MetricsPage | None = None
) -> Iterator[tuple[Agent, Store]]:
    """Yield the agent of these options; its spool is removed at the end.

    ``page`` gets its metrics.
    """
    _sql.asked_for(args)
    settings = settings_of(args)
    raise_priority()
    selector = _selector(args)
    targets = [] if args.pid is None else [args.pid]
    _, servers = _rings.resolve(args, targets, selector)
    server = servers[0]
    store = Store.open(_store.writing_dest(args))
    with (
        logging_to(sys.stderr, args.log_format, args.log_level),
        lines_to(sys.stdout) as output,
        spool(store.dest) as folder,
    ):
        environment = CommandEnvironment(
            args, server, store, folder, plan.poll_interval, output, page
        )
        target = Target(server, finder(args.pid, selector, server))
        verdicts = VerdictProcess(args.signatures)
        made = Agent(plan, settings, target, store, folder, environment, verdicts)
        output.on_closed = lambda: made.events.put(Signal("stop"))
        yield made, store


@contextlib.contextmanager
def signals(put: Put, *, reload: bool) -> Iterator[None]:
    """Make SIGTERM and SIGINT stop the agent, and SIGHUP reload its triggers."""
    meant = {signal.SIGTERM: "stop", signal.SIGINT: "stop"}
    if reload:
        meant[signal.SIGHUP] = "reload"

    def handle(number: int, frame: FrameType | None) -> None:
        put(Signal(meant[signal.Signals(number)]))

    before = {number: signal.signal(number, handle) for number in meant}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
