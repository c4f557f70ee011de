# SPDX-License-Identifier: Apache-2.0
"""The servers of one agent process: a loop in a thread of its own for each, started again where it
fails, and watched for progress. docs/agent.md.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import msgspec

from stallscope.agent.absent import Absent
from stallscope.agent.agentfile import ServerReport
from stallscope.agent.candidates import Candidates
from stallscope.agent.events import Callback, Signal
from stallscope.agent.liveness import BEAT_SECONDS, AgentHealth, AgentState
from stallscope.agent.loop import Agent
from stallscope.agent.systemd import ServiceManager
from stallscope.agent.waiting import wait_for
from stallscope.base.backoff import Backoff
from stallscope.base.errors import StallscopeError
from stallscope.base.threads import Pulse, place_of, traced
from stallscope.collectors.pins import Guard
from stallscope.collectors.processes import NotRunningError, Server
from stallscope.store.locking import Locked

__all__ = ["Policy", "Supervisor", "WatchedServer"]

_log = logging.getLogger(__name__)

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
STEADY_SECONDS = 300.0
"""A loop that ran for so long is started again at once when it fails."""
LOOK_SECONDS = 5.0
"""From one look at the loops to the next."""
END_SECONDS = 4.0
"""How long the end waits for the loops; each of them takes less than 2 s."""
ABSENT_SECONDS = 3.0
"""How long the end of a wait for a server waits for what is notified of that."""
STUCK_SECONDS = 60.0
"""A loop that is to end by itself and has not moved for so long is left: its end takes 30 s at
most."""
RELOAD_SECONDS = 10.0
"""How long a reload waits for the loops before the service counts as ready again."""


class Policy(msgspec.Struct, frozen=True):
    """What follows when there is no server, or when a loop fails."""

    waits: bool = True
    """Wait for a server that does not run; otherwise that is an error."""
    several_are_error: bool = False
    """Do not wait where several servers match: somebody is there who can choose."""
    skips: bool = False
    """A server that does not run, or that somebody else watches, is a line in the log, and the
    end."""
    restarts: bool = True
    """Start a loop that failed again."""


class WatchedServer:
    """One server: waits for it, and runs its loop."""

    def __init__(
        self,
        name: str,
        find: Callable[[], Server],
        make: Callable[[Server, WatchedServer], AbstractContextManager[Agent]],
        target: str | None = None,
        guard: Guard | None = None,
        absent: Absent | None = None,
    ) -> None:
        """``make``: the agent of this server, and what must be held while it runs. ``target``: the
        name of its program, or its pid, where that is known. ``guard``: knows what it was.
        ``absent``: notifies where it does not run."""
        self.name = name
        self._absent = absent
        self._guard = Guard() if guard is None else guard
        self._target = target
        self._find = find
        self._make = make
        self.state = "starting"
        """``starting``, ``waiting``, ``watching``, ``failed`` (it is started again), ``ended``."""
        self.why = ""
        """Why it waits, or has failed."""
        self.waits_since: float | None = None
        """Wall seconds since which its server is waited for; None: it is watched."""
        self.on_waiting: Callable[[float], None] = lambda seconds: None
        """Called at each look while it waits, with the seconds since the wait began."""
        self.agent: Agent | None = None
        """The latest one."""
        self.failures = 0
        """How often the loop failed."""
        self.stalls = 0
        """Incidents with a stall, of all loops that have ended, and stalls that go on."""
        self.error: Exception | None = None
        """What ended it for good."""
        self.hangs = False
        """Whether the loop hung at the latest look."""
        self.thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._pulse = Pulse()
        self._running: Agent | None = None

    @property
    def age(self) -> float:
        """Return for how many seconds the loop has not moved."""
        agent = self._running
        if agent is None:
            return self._pulse.age
        return agent.liveness.health(time.monotonic_ns()).loop_silent_seconds

    def start(self, policy: Policy, *, alone: bool, news: Callable[[], None]) -> None:
        """Begin. ``alone``: an error before the first poll ends it. ``news``: called in its thread
        when the state changes."""

        def run() -> None:
            try:
                self._run(policy, alone, news)
            finally:
                self.state = "ended"
                news()

        self.thread = threading.Thread(target=run, name=f"{self.name}/loop", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Ask it to end."""
        self._stop.set()
        agent = self._running
        if agent is not None:
            agent.events.put(Signal("stop"))

    def reload(self, done: Callable[[], None]) -> bool:
        """Have the loop use new settings; ``done`` follows. Return whether there is a loop."""
        agent = self._running
        if agent is None:
            return False
        agent.events.put(Signal("reload"))
        agent.events.put(Callback(done))
        return True

    def health(self) -> AgentHealth:
        """Return how the agent of this server is."""
        agent = self._running
        if agent is not None:
            return agent.liveness.health(time.monotonic_ns())
        state = AgentState(
            self._target or self.name,
            None,
            blind_since=self.waits_since,
            blind_why=self.why,
            others=self._guard.others,
        )
        silent = round(self._pulse.age, 3)
        if self.state == "failed":
            return AgentHealth("failed", state, silent, tuple(self.problems()), False)
        live = not self.hangs
        status = "degraded" if self.state == "starting" and live else "failed"
        others = (f"not watched: {other}" for other in self._guard.others)
        wrong = (f"{self.name}: {self.state}: {self.why}", *others)
        return AgentHealth(status, state, silent, wrong, live)

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the agent itself, not with the server."""
        if self.hangs:
            yield f"{self.name}: the loop has not moved for {self.age:.0f} s"
        if self.state == "failed":
            yield f"{self.name}: the loop failed and is started again: {self.why}"
        agent = self._running
        if agent is not None:
            for problem in agent.problems():
                yield f"{self.name}: {problem}"

    def _run(self, policy: Policy, alone: bool, news: Callable[[], None]) -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        began = False
        logged = ""
        while not self._stop.is_set():
            since = time.monotonic()
            try:
                server = self._found(policy, news)
                if server is None:
                    return
                with self._make(server, self) as agent:
                    self.agent = self._running = agent
                    agent.on_begun = lambda: self._changed("watching", "", news)
                    try:
                        if self._stop.is_set():
                            return
                        agent.run()
                    finally:
                        self._running = None
                        began = began or agent.begun
                        self.stalls += agent.stalls
                return
            except StallscopeError as error:
                if policy.skips and isinstance(error, Locked):
                    _log.warning("%s; exiting", error)
                    return
                self.error = error
                self.why = str(error)
                if (alone and not began) or not policy.restarts:
                    return
                if self.why != logged:
                    _log.error("%s: %s; trying again", self.name, self.why)
                    logged = self.why
            except Exception as error:
                self.error = error
                self.why = traced(error)
                _log.error("%s: the loop failed: %s", self.name, self.why)
                if not policy.restarts:
                    return
            self.error = None
            self.failures += 1
            if time.monotonic() - since > STEADY_SECONDS:
                backoff.reset()
            self._changed("failed", self.why, news)
            end = time.monotonic() + backoff.next()
            while (left := end - time.monotonic()) > 0 and not self._stop.wait(min(left, 1.0)):
                self._pulse.beat()

    def _found(self, policy: Policy, news: Callable[[], None]) -> Server | None:
        try:
            return self._server(policy, news)
        finally:
            if self._absent is not None:
                self._absent.close(ABSENT_SECONDS)

    def _server(self, policy: Policy, news: Callable[[], None]) -> Server | None:
        absent = self._absent

        def waits(why: str) -> None:
            self.waits_since = self.waits_since or time.time()
            self._changed("waiting", why, news)
            if absent is not None:
                absent.note()

        if policy.waits:
            found = wait_for(
                self._find,
                Candidates(self._target),
                self._stop,
                self._pulse,
                waits,
                NotRunningError if policy.several_are_error else StallscopeError,
            )
            self.waits_since = None
            return found
        try:
            return self._find()
        except NotRunningError as error:
            if not policy.skips:
                raise
            _log.warning("%s; nothing to watch", error)
            if absent is not None:
                absent.note(grace=0.0)
            return None

    def _changed(self, state: str, why: str, news: Callable[[], None]) -> None:
        changed = (state, why) != (self.state, self.why)
        self.state, self.why = state, why
        if changed:
            news()


def _is_stuck(server: WatchedServer) -> bool:
    return server.state == "ended" or server.age > STUCK_SECONDS


class Supervisor:
    """Runs the loops of all servers until they end, or a signal asks for the end.

    ``load``: reads the configuration again. Raises: StallscopeError, and nothing changes then.
    """

    def __init__(
        self,
        servers: Sequence[WatchedServer],
        policy: Policy,
        load: Callable[[], None],
        service: ServiceManager | None = None,
    ) -> None:
        self.servers = tuple(servers)
        self.failed_threads = 0
        """How many threads ended by an exception that nothing else handled."""
        self._policy = policy
        self._load = load
        self._service = service or ServiceManager({})
        self._requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._ready = False
        self._reloading = 0
        """Loops that have not reloaded yet."""
        self._reload_by = 0.0

    def ask(self, action: str) -> None:
        """Ask for ``stop`` or ``reload``; safe in a signal handler."""
        self._requests.put(action)

    def problems(self) -> list[str]:
        """Return what is wrong with the agent itself; empty: it is healthy. From any thread."""
        return [problem for server in self.servers for problem in server.problems()]

    def health(self) -> list[AgentHealth]:
        """Return how the agent of each server is. From any thread."""
        return [server.health() for server in self.servers]

    def reports(self) -> list[ServerReport]:
        """Return what is said of each server to other commands. From any thread."""
        return [ServerReport(one.name, one.state, one.health()) for one in self.servers]

    def run(self) -> None:
        """Run until all loops have ended. Raises: what ended one of them for good."""
        with self._noticing():
            for server in self.servers:
                server.start(
                    self._policy, alone=len(self.servers) == 1, news=lambda: self.ask("news")
                )
            end: float | None = None
            while any(server.state != "ended" for server in self.servers):
                if end is not None and time.monotonic() > end:
                    break
                match self._next(LOOK_SECONDS if end is None else 0.1):
                    case "stop" if end is None:
                        end = time.monotonic() + END_SECONDS
                        self._service.stopping()
                        for server in self.servers:
                            server.stop()
                    case "reload" if end is None:
                        self._reload()
                    case "reloaded":
                        self._reloading -= 1
                if end is None:
                    self._look()
                    if not self._policy.restarts and all(map(_is_stuck, self.servers)):
                        self.ask("stop")
            for server in self.servers:
                if server.state != "ended":
                    _log.error("%s: the loop did not end in time", server.name)
        for server in self.servers:
            if server.error is not None:
                raise server.error

    def _next(self, seconds: float) -> str | None:
        watchdog = self._service.watchdog_seconds
        if watchdog is not None:
            seconds = min(seconds, watchdog / 4)
        try:
            return self._requests.get(timeout=seconds)
        except queue.Empty:
            return None

    def _look(self) -> None:
        """Look whether all loops move, and report that to the service manager."""
        starting = any(server.state == "starting" for server in self.servers)
        if not self._ready and not starting:
            self._ready = True
            self._service.ready(self._status())
        elif self._ready and self._reloading and time.monotonic() < self._reload_by:
            pass  # the status comes with the end of the reload
        elif self._ready and self._reload_by:
            self._reloading, self._reload_by = 0, 0.0
            self._service.ready(self._status())
        elif self._ready:
            self._service.status(self._status())
        limit = min(BEAT_SECONDS, (self._service.watchdog_seconds or BEAT_SECONDS * 2) / 2)
        for server in self.servers:
            self._look_at(server, limit)
        if not any(server.hangs for server in self.servers):
            self._service.alive()

    def _look_at(self, server: WatchedServer, limit: float) -> None:
        since = server.waits_since
        if since is not None:
            server.on_waiting(max(0.0, time.time() - since))
        hangs = server.state != "ended" and server.age > limit
        if hangs and not server.hangs and server.thread is not None:
            _log.error(
                "%s: the loop has not moved for %.0f s: %s",
                server.name,
                server.age,
                place_of(server.thread),
            )
        elif server.hangs and not hangs:
            _log.warning("%s: the loop moves again", server.name)
        server.hangs = hangs

    def _status(self) -> str:
        """Return one line for ``systemctl status``."""
        by_state: dict[str, list[str]] = {}
        for server in self.servers:
            by_state.setdefault(server.state, []).append(server.name)
        said = {"waiting": "waiting for", "failed": "starting again"}
        parts = [
            f"{said.get(state, state)} {', '.join(by_state[state])}"
            for state in ("watching", "waiting", "failed", "starting", "ended")
            if state in by_state
        ]
        return "; ".join(parts)

    def _reload(self) -> None:
        self._service.reloading()
        self._reload_by = time.monotonic() + RELOAD_SECONDS
        try:
            self._load()
        except StallscopeError as error:
            _log.error("%s; keeping the previous configuration", error)
            self._reloading = 0
            return
        self._reloading = sum(
            server.reload(lambda: self.ask("reloaded")) for server in self.servers
        )

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        """Log and count threads that end by an exception."""
        before = threading.excepthook

        def hook(args: threading.ExceptHookArgs) -> None:
            if args.exc_value is None or args.exc_type is SystemExit:
                return
            self.failed_threads += 1
            name = "?" if args.thread is None else args.thread.name
            _log.error("the thread %s failed: %s", name, traced(args.exc_value))

        threading.excepthook = hook
        try:
            yield
        finally:
            threading.excepthook = before
